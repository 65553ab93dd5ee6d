#include "compute-node/retrieval/baselines/landmark_policy.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "compute-node/retrieval/baselines/token_scores.h"
#include "compute-node/retrieval/best_first.h"

namespace cairn::compute {

std::vector<float> LandmarkPolicy::Landmarks(std::int32_t layer, std::int32_t head) const {
  const std::int64_t dim = options().layout.head_dim;
  const std::int64_t count = keys_.count(layer, head);
  const std::span<const float> keys = keys_.Of(layer, head);
  std::vector<float> means(
      static_cast<std::size_t>((count + kLandmarkTokens - 1) / kLandmarkTokens * dim), 0.0F);
  for (std::int64_t position = 0; position < count; ++position) {
    const std::int64_t chunk = position / kLandmarkTokens;
    const std::int64_t tokens = std::min(kLandmarkTokens, count - chunk * kLandmarkTokens);
    for (std::int64_t i = 0; i < dim; ++i) {
      means[static_cast<std::size_t>(chunk * dim + i)] +=
          keys[static_cast<std::size_t>(position * dim + i)] / static_cast<float>(tokens);
    }
  }
  return means;
}

std::vector<std::int64_t> LandmarkPolicy::Choose(const SelectionInput& input, std::int32_t head,
                                                 std::int64_t count) const {
  CAIRN_CHECK_EQ(keys_.count(input.layer, head), input.stored_token_count);
  const std::int64_t dim = options().layout.head_dim;
  const std::vector<float> landmarks = Landmarks(input.layer, head);
  std::vector<float> scores(landmarks.size() / static_cast<std::size_t>(dim));
  std::vector<float> masses(scores.size(), 0.0F);
  const std::span<const float> queries = GroupQueries(input, options(), head);
  for (std::int64_t i = 0; i < options().group_size; ++i) {
    for (std::size_t chunk = 0; chunk < scores.size(); ++chunk) {
      scores[chunk] = Dot(queries.data() + i * dim,
                          landmarks.data() + static_cast<std::int64_t>(chunk) * dim, dim);
    }
    AddSoftmax(scores, 1.0F / std::sqrt(static_cast<float>(dim)), masses);
  }
  std::vector<std::int64_t> chosen;
  for (BestFirst best(masses); std::ssize(chosen) < count;) {
    const std::int64_t first = static_cast<std::int64_t>(best.Take()) * kLandmarkTokens;
    const std::int64_t end = std::min(first + kLandmarkTokens, input.stored_token_count);
    for (std::int64_t position = std::max(first, kSinkTokens); position < end; ++position) {
      if (std::ssize(chosen) < count) chosen.push_back(position);
    }
  }
  return chosen;
}

}  // namespace cairn::compute
