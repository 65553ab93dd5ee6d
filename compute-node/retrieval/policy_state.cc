#include "compute-node/retrieval/policy_state.h"

#include <cstring>

namespace cairn::compute {

std::string PackNumbers(std::span<const std::int64_t> numbers) {
  std::string state(numbers.size_bytes(), '\0');
  std::memcpy(state.data(), numbers.data(), state.size());
  return state;
}

std::optional<std::vector<std::int64_t>> UnpackNumbers(std::string_view state,
                                                       std::int64_t count_min,
                                                       std::int64_t count_max) {
  constexpr std::size_t kNumberBytes = sizeof(std::int64_t);
  if (state.size() % kNumberBytes != 0) return std::nullopt;
  const std::int64_t count = static_cast<std::int64_t>(state.size() / kNumberBytes);
  if (count < count_min || count > count_max) return std::nullopt;
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  std::memcpy(numbers.data(), state.data(), state.size());
  return numbers;
}

absl::Status ForeignState(std::string_view policy, const StoredPolicyState& stored) {
  return InvalidArgument("stored policy state has version {} and {} bytes: not one of policy {}",
                         stored.version, stored.state.size(), policy);
}

absl::Status CheckNextClusterIds(const EntryLayout& layout, const StoredPolicyState& stored) {
  const std::size_t needed = static_cast<std::size_t>(layout.layer_count) *
                             (static_cast<std::size_t>(layout.head_count) + 1);
  if (stored.next_cluster_ids.size() != needed) {
    return InvalidArgument("stored policy state has {} next cluster ids, {} are needed",
                           stored.next_cluster_ids.size(), needed);
  }
  return absl::OkStatus();
}

}  // namespace cairn::compute
