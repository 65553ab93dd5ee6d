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

// INVALID_ARGUMENT unless there is one for each head and one for all heads of each layer.
absl::Status CheckNextClusterIds(const EntryLayout& layout, const StoredPolicyState& stored);

}  // namespace cairn::compute
