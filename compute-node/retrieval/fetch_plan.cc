#include "compute-node/retrieval/fetch_plan.h"

#include <algorithm>
#include <utility>

namespace cairn::compute {

void AddToPlan(const PolicyOptions& options, PlannedCluster cluster,
               std::vector<FetchSlice>& plan) {
  const std::int64_t bytes = cluster.entry_count * options.layout.EntryBytes(cluster.cluster.head);
  const bool fits = !plan.empty() && plan.back().bytes + bytes <= options.fetch_slice_bytes &&
                    std::ssize(plan.back().clusters) < kFetchClusterCountMax;
  if (!fits) plan.emplace_back();
  plan.back().clusters.push_back(std::move(cluster));
  plan.back().bytes += bytes;
}

std::int64_t StoredBudget(const SelectionInput& input, std::int64_t selected) {
  if (input.token_count > 1) return input.stored_token_count;
  const std::int64_t recent = input.first_position + input.token_count - input.stored_token_count;
  return std::clamp<std::int64_t>(selected - recent, 0, input.stored_token_count);
}

}  // namespace cairn::compute
