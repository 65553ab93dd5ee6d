#include "compute-node/retrieval/baselines/full_policy.h"

#include <algorithm>
#include <optional>

#include "compute-node/retrieval/policy_state.h"

namespace cairn::compute {
namespace {

// Version 1 has the entries of a cluster alone; 2 has the ranges of ids behind it.
constexpr std::int32_t kFullStateVersion = 1;
constexpr std::int32_t kFullRangesStateVersion = 2;

// Whole attention blocks of 32 entries where possible: then no block of a long conversation is
// shorter than the others, wherever a cluster ends.
constexpr std::int64_t kPreferredMultiple = 32;

std::int64_t FullClusterEntries(const PolicyOptions& options) {
  const std::int64_t fitting = options.part_bytes_max / options.layout.EntryBytes(0);
  const std::int64_t entries = std::clamp(fitting, kFullClusterEntriesMin, kFullClusterEntriesMax);
  return entries < kPreferredMultiple ? entries : entries / kPreferredMultiple * kPreferredMultiple;
}

}  // namespace

FullPolicy::FullPolicy(const PolicyTraits& traits, const PolicyOptions& options)
    : BasicPolicy(traits),
      options_(options),
      clusters_({.policy = traits.name,
                 .layout = options.layout,
                 .cluster_entries = FullClusterEntries(options),
                 .cluster_entries_min = kFullClusterEntriesMin,
                 .cluster_entries_max = kFullClusterEntriesMax}) {}

std::vector<FetchSlice> FullPolicy::Select(const SelectionInput& input) const {
  return clusters_.PlanAll(options_, input.stored_token_count);
}

StoreActions FullPolicy::Store(const LeavingEntries& leaving) {
  return {.appended = clusters_.Store(leaving), .held = {}};
}

PutPolicyState FullPolicy::SaveState() const {
  const std::vector<std::int64_t> numbers = clusters_.Numbers();
  return {.version = numbers.size() == 1 ? kFullStateVersion : kFullRangesStateVersion,
          .state = PackNumbers(numbers)};
}

absl::Status FullPolicy::RestoreState(const StoredPolicyState& stored) {
  clusters_.Clear();
  if (stored.is_new()) return absl::OkStatus();
  const std::optional<std::vector<std::int64_t>> numbers =
      UnpackNumbers(stored.state, 1, SequenceClusters::kNumbersMax);
  const bool is_mine =
      numbers.has_value() && (numbers->size() == 1 ? stored.version == kFullStateVersion
                                                   : stored.version == kFullRangesStateVersion);
  if (!is_mine) return ForeignState(traits().name, stored);
  return clusters_.Restore(stored, *numbers);
}

}  // namespace cairn::compute
