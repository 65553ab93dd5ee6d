#include "compute-node/retrieval/baselines/static_policy.h"

#include <cmath>
#include <numeric>
#include <optional>

#include "compute-node/retrieval/baselines/token_scores.h"
#include "compute-node/retrieval/policy_state.h"

namespace cairn::compute {
namespace {

// The trained count, and the numbers of the clusters. (Version 1 had a selection between them.)
constexpr std::int32_t kStaticStateVersion = 2;

}  // namespace

StaticPolicy::StaticPolicy(const PolicyOptions& options)
    : PagePolicy({.name = "static-cluster", .needs_keys = true, .rebuilds_from_keys = true},
                 options),
      codes_(options.layout, options.selection.seed) {}

std::vector<std::int64_t> StaticPolicy::Choose(const SelectionInput& input, std::int32_t head,
                                               std::int64_t count) const {
  if (codes_.trained_count(input.layer) == 0) {
    std::vector<std::int64_t> newest(static_cast<std::size_t>(count));
    std::iota(newest.begin(), newest.end(), input.stored_token_count - count);
    return newest;
  }
  const std::size_t dim = static_cast<std::size_t>(options().layout.head_dim);
  const std::span<const float> queries = GroupQueries(input, options(), head);
  std::vector<float> scores(static_cast<std::size_t>(input.stored_token_count));
  const std::span<float> candidates = std::span(scores).subspan(kSinkTokens);
  std::vector<float> masses(candidates.size(), 0.0F);
  for (std::size_t i = 0; i < queries.size(); i += dim) {
    codes_.Score(input.layer, head, queries.subspan(i, dim), scores);
    AddSoftmax(candidates, 1.0F / std::sqrt(static_cast<float>(dim)), masses);
  }
  std::vector<std::int64_t> best = BestIndices(masses, count);
  for (std::int64_t& position : best) position += kSinkTokens;
  return best;
}

PutPolicyState StaticPolicy::SaveState() const {
  // All layers are trained in the same pass, and states are saved between two.
  std::vector<std::int64_t> numbers = {codes_.trained_count(0)};
  for (const std::int64_t number : clusters().Numbers()) numbers.push_back(number);
  return {.version = kStaticStateVersion, .state = PackNumbers(numbers)};
}

absl::Status StaticPolicy::RestoreState(const StoredPolicyState& stored) {
  codes_.Clear();
  clusters().Clear();
  stored_trained_count_ = 0;
  if (stored.is_new()) return absl::OkStatus();
  const std::optional<std::vector<std::int64_t>> numbers =
      UnpackNumbers(stored.state, 2, 1 + SequenceClusters::kNumbersMax);
  if (stored.version != kStaticStateVersion || !numbers.has_value()) {
    return ForeignState(traits().name, stored);
  }
  const std::span<const std::int64_t> all = *numbers;
  const std::int64_t trained = all[0];
  if (trained != 0 && (trained < kTrainingKeysMin || trained > kPositionMax)) {
    return ForeignState(traits().name, stored);
  }
  stored_trained_count_ = trained;
  return clusters().Restore(stored, all.subspan(1));
}

}  // namespace cairn::compute
