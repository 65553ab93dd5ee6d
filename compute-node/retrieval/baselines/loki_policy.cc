#include "compute-node/retrieval/baselines/loki_policy.h"

#include <cmath>
#include <numeric>

#include "compute-node/retrieval/baselines/token_scores.h"

namespace cairn::compute {
namespace {

// The axes of a run: a quarter of a head of 128 numbers, as published, half of one of 64.
constexpr std::int64_t kLokiRuns = 1;
constexpr int kLokiBits = 8;

// Of how many keys behind the sinks the axes are, if so many keys are there.
std::int64_t LearnedFrom(std::int64_t key_count) {
  const std::int64_t behind_sinks = key_count - kSinkTokens;
  if (behind_sinks >= kBasisTokensMax) return kBasisTokensMax;
  return behind_sinks >= kBasisTokensMin ? kBasisTokensMin : 0;
}

}  // namespace

LokiPolicy::LokiPolicy(const PolicyOptions& options)
    : PagePolicy({.name = "loki", .needs_keys = true, .rebuilds_from_keys = true}, options),
      shape_(KeyCodeShape::Even(kLokiRuns, kLokiBits)),
      keys_(options.layout) {
  Clear();
}

void LokiPolicy::Clear() {
  keys_.Clear();
  heads_.clear();
  const std::int64_t count =
      std::int64_t{options().layout.layer_count} * options().layout.head_count;
  for (std::int64_t i = 0; i < count; ++i) heads_.emplace_back(shape_);
}

void LokiPolicy::Encode(std::int32_t layer, std::int32_t index) {
  Head& head = HeadAt(layer, index);
  const std::span<const float> keys = keys_.Of(layer, index);
  const std::size_t dim = static_cast<std::size_t>(options().layout.head_dim);
  const std::int64_t count = keys_.count(layer, index);
  std::int64_t first = head.codes.count();
  if (const std::int64_t learned = LearnedFrom(count); learned != head.learned_count) {
    head.basis =
        KeyBasis::Learn(keys.subspan(kSinkTokens * dim, static_cast<std::size_t>(learned) * dim),
                        options().layout.head_dim, shape_);
    head.learned_count = learned;
    first = 0;
  }
  head.codes.Resize(count);
  if (!head.basis.has_value()) return;
  const std::size_t axis_count = static_cast<std::size_t>(shape_.axis_count());
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(count - first) * axis_count);
  head.basis->Encode(keys.subspan(static_cast<std::size_t>(first) * dim), codes);
  for (std::int64_t position = first; position < count; ++position) {
    const std::size_t at = static_cast<std::size_t>(position - first) * axis_count;
    head.codes.Put(position, std::span(codes).subspan(at, axis_count));
  }
}

void LokiPolicy::Keep(const LeavingEntries& leaving) {
  keys_.Append(leaving);
  for (std::int32_t head = 0; head < options().layout.head_count; ++head) {
    Encode(leaving.layer, head);
  }
}

absl::Status LokiPolicy::Rebuild(std::int32_t layer, std::span<const LoadedCluster> clusters) {
  CAIRN_RETURN_IF_ERROR(keys_.Rebuild(layer, clusters));
  for (std::int32_t head = 0; head < options().layout.head_count; ++head) Encode(layer, head);
  return absl::OkStatus();
}

absl::Status LokiPolicy::RestoreState(const StoredPolicyState& stored) {
  Clear();
  return PagePolicy::RestoreState(stored);
}

std::int64_t LokiPolicy::memory_bytes() const {
  std::int64_t bytes = 0;
  for (const Head& head : heads_) {
    bytes += head.codes.size_bytes();
    if (head.basis.has_value()) bytes += KeyBasis::SavedBytes(options().layout.head_dim, shape_);
  }
  return bytes;
}

std::vector<std::int64_t> LokiPolicy::Choose(const SelectionInput& input, std::int32_t index,
                                             std::int64_t count) const {
  const Head& head = HeadAt(input.layer, index);
  if (!head.basis.has_value()) {
    std::vector<std::int64_t> newest(static_cast<std::size_t>(count));
    std::iota(newest.begin(), newest.end(), input.stored_token_count - count);
    return newest;
  }
  const std::size_t dim = static_cast<std::size_t>(options().layout.head_dim);
  const std::span<const float> group = GroupQueries(input, options(), index);
  std::vector<CodedQuery> queries;
  for (std::size_t i = 0; i < group.size(); i += dim) {
    queries.emplace_back(shape_, head.basis->Project(group.subspan(i, dim), 0));
  }
  ScoreScratch scratch;
  const std::span<const float> masses =
      head.codes.Score(queries, 1.0F / std::sqrt(static_cast<float>(dim)), nullptr, scratch);
  std::vector<float> behind_sinks(masses.begin() + kSinkTokens, masses.end());
  std::vector<std::int64_t> best = BestIndices(behind_sinks, count);
  for (std::int64_t& position : best) position += kSinkTokens;
  return best;
}

}  // namespace cairn::compute
