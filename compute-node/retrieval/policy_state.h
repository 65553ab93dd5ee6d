// Stored states of policies that are lists of numbers.
//
// Threading:  functions of their arguments only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "compute-node/retrieval/cluster_keeper.h"

namespace cairn::compute {

std::string PackNumbers(std::span<const std::int64_t> numbers);
// Nullopt unless the state is `count_min` to `count_max` numbers.
std::optional<std::vector<std::int64_t>> UnpackNumbers(std::string_view state,
                                                       std::int64_t count_min,
                                                       std::int64_t count_max);

// The error of a state that is not one of `policy`.
absl::Status ForeignState(std::string_view policy, const StoredPolicyState& stored);

// The next unused cluster ids as ClusterKeeper answers them: next_id(layer, head) is that of a
// head, or of kAllHeads; kNoClusterId where there never are clusters.
inline constexpr std::int64_t kNoClusterId = 1;
template <typename NextId>
std::vector<std::int64_t> ClusterIdsOf(const EntryLayout& layout, const NextId& next_id) {
  std::vector<std::int64_t> ids;
  for (std::int32_t layer = 0; layer < layout.layer_count; ++layer) {
    for (std::int32_t head = 0; head < layout.head_count; ++head) {
      ids.push_back(next_id(layer, head));
    }
    ids.push_back(next_id(layer, kAllHeads));
  }
  return ids;
}

// INVALID_ARGUMENT unless there is one for each head and one for all heads of each layer.
absl::Status CheckNextClusterIds(const EntryLayout& layout, const StoredPolicyState& stored);

}  // namespace cairn::compute
