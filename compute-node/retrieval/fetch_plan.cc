#include "compute-node/retrieval/fetch_plan.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

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

std::int64_t StoredBudget(const SelectionInput& input, const SelectionOptions& options) {
  if (input.token_count > 1) return input.stored_token_count;
  const std::int64_t all = input.first_position + input.token_count;
  return std::clamp<std::int64_t>(SelectedTokens(options, all) - (all - input.stored_token_count),
                                  0, input.stored_token_count);
}

std::vector<float> QuerySum(std::span<const float> queries, std::int64_t head_count,
                            std::int64_t head_dim, std::int32_t head) {
  CAIRN_CHECK(head >= 0 && head < head_count);
  CAIRN_CHECK(!queries.empty() && std::ssize(queries) % (head_count * head_dim) == 0);
  const std::size_t width = static_cast<std::size_t>(head_dim);
  const std::size_t floats = queries.size() / static_cast<std::size_t>(head_count);
  const std::size_t first = static_cast<std::size_t>(head) * floats;
  std::vector<float> sum(width, 0.0F);
  for (std::size_t i = 0; i < floats; ++i) sum[i % width] += queries[first + i];
  return sum;
}

}  // namespace cairn::compute
