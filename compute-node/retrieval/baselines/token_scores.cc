#include "compute-node/retrieval/baselines/token_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/check.h"
#include "compute-node/retrieval/best_first.h"

namespace cairn::compute {

float Dot(const float* a, const float* b, std::int64_t count) {
  // As many sums as make vectors of every width; a compiler may not split one by itself.
  constexpr std::int64_t kSums = 16;
  float sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (std::int64_t j = 0; j < kSums; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < count; ++i) sums[0] += a[i] * b[i];
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

std::span<const float> GroupQueries(const SelectionInput& input, const PolicyOptions& options,
                                    std::int32_t head) {
  const std::int64_t floats = options.group_size * options.layout.head_dim;
  CAIRN_CHECK_EQ(input.token_count, 1);
  CAIRN_CHECK_EQ(std::ssize(input.queries), floats * options.layout.head_count);
  return input.queries.subspan(static_cast<std::size_t>(head * floats),
                               static_cast<std::size_t>(floats));
}

void AddSoftmax(std::span<float> scores, float scale, std::span<float> masses) {
  if (scores.empty()) return;
  const float largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (float& score : scores) {
    score = std::exp((score - largest) * scale);
    sum += score;
  }
  if (!std::isfinite(sum) || sum <= 0) return;
  const float factor = static_cast<float>(1 / sum);
  for (std::size_t i = 0; i < scores.size(); ++i) masses[i] += scores[i] * factor;
}

std::vector<std::int64_t> BestIndices(std::span<float> scores, std::int64_t count) {
  CAIRN_CHECK_LE(count, std::ssize(scores));
  for (float& score : scores) {
    if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
  }
  BestFirst best(scores);
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  for (std::int64_t& index : indices) index = static_cast<std::int64_t>(best.Take());
  return indices;
}

}  // namespace cairn::compute
