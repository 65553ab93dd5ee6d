#include "compute-node/retrieval/baselines/token_policy.h"

#include <cmath>

#include "common/base/check.h"
#include "compute-node/retrieval/baselines/token_scores.h"
#include "compute-node/retrieval/fetch_plan.h"

namespace cairn::compute {

TokenPolicy::TokenPolicy(std::string_view name, Score score, const PolicyOptions& options)
    : PagePolicy({.name = name,
                  .ranks_by_query_sums = score == Score::kQuerySum,
                  .needs_keys = true,
                  .rebuilds_from_keys = true},
                 options),
      score_(score),
      keys_(options.layout) {}

absl::Status TokenPolicy::RestoreState(const StoredPolicyState& stored) {
  keys_.Clear();
  return PagePolicy::RestoreState(stored);
}

// Of all positions that have left the window.
std::vector<float> TokenPolicy::Scores(const SelectionInput& input, std::int32_t head) const {
  const std::int64_t dim = options().layout.head_dim;
  const float* keys = keys_.Of(input.layer, head).data();
  std::vector<float> scores(static_cast<std::size_t>(input.stored_token_count));
  const auto score_all = [&](const float* query) {
    for (std::int64_t i = 0; i < input.stored_token_count; ++i) {
      scores[static_cast<std::size_t>(i)] = Dot(query, keys + i * dim, dim);
    }
  };
  if (score_ == Score::kQuerySum) {
    score_all(QuerySum(input.queries, options().layout.head_count, dim, head).data());
    return scores;
  }
  const std::span<const float> queries = GroupQueries(input, options(), head);
  const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
  std::vector<float> masses(scores.size(), 0.0F);
  for (std::int64_t i = 0; i < options().group_size; ++i) {
    score_all(queries.data() + i * dim);
    AddSoftmax(scores, scale, masses);
  }
  return masses;
}

std::vector<std::int64_t> TokenPolicy::Choose(const SelectionInput& input, std::int32_t head,
                                              std::int64_t count) const {
  CAIRN_CHECK_EQ(keys_.count(input.layer, head), input.stored_token_count);
  std::vector<float> scores = Scores(input, head);
  std::vector<std::int64_t> best = BestIndices(std::span(scores).subspan(kSinkTokens), count);
  for (std::int64_t& position : best) position += kSinkTokens;
  return best;
}

}  // namespace cairn::compute
