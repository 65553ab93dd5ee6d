#include "compute-node/retrieval/clustering/query_metric.h"

#include <cmath>

#include "common/base/check.h"

namespace cairn::compute {
namespace {

// Of one pair's block of the second moment.
struct Block {
  double first = 0;   // squares of the pair's first dimension
  double cross = 0;   // products of both
  double second = 0;  // squares of the second
};

}  // namespace

QueryMetric::QueryMetric(std::int64_t dim, RotaryPairs pairs) : dim_(dim), pairs_(pairs) {
  for (std::int64_t pair = 0; pair < pair_count(); ++pair) {
    factors_.insert(factors_.end(), {1.0F, 0.0F, 1.0F});
  }
}

void QueryMetric::Learn(std::span<const float> queries) {
  const std::size_t width = static_cast<std::size_t>(dim_);
  CAIRN_CHECK_EQ(queries.size() % width, 0U);
  std::vector<Block> blocks(static_cast<std::size_t>(pair_count()));
  double squares = 0;
  for (std::size_t row = 0; row < queries.size(); row += width) {
    for (std::int64_t pair = 0; pair < pair_count(); ++pair) {
      const double first = static_cast<double>(queries[row + FirstOf(pair)]);
      const double second = static_cast<double>(queries[row + SecondOf(pair)]);
      Block& block = blocks[static_cast<std::size_t>(pair)];
      block.first += first * first;
      block.cross += first * second;
      block.second += second * second;
      squares += first * first + second * second;
    }
  }
  if (!(squares > 0) || !std::isfinite(squares)) return;
  // So that a dimension's mean factor is 1.
  const double scale = (1 - kIdentityShare) * static_cast<double>(2 * pair_count()) / squares;
  for (std::size_t pair = 0; pair < blocks.size(); ++pair) {
    const Block& block = blocks[pair];
    const double first = std::sqrt(scale * block.first + kIdentityShare);
    const double cross = scale * block.cross / first;
    const double second = std::sqrt(scale * block.second + kIdentityShare - cross * cross);
    factors_[3 * pair] = static_cast<float>(first);
    factors_[3 * pair + 1] = static_cast<float>(cross);
    factors_[3 * pair + 2] = static_cast<float>(second);
  }
  has_learned_ = true;
}

void QueryMetric::StretchKeys(std::span<float> keys) const {
  if (!has_learned_) return;
  for (std::size_t row = 0; row < keys.size(); row += static_cast<std::size_t>(dim_)) {
    for (std::int64_t pair = 0; pair < pair_count(); ++pair) {
      const float* l = factors_.data() + 3 * pair;
      float& first = keys[row + FirstOf(pair)];
      float& second = keys[row + SecondOf(pair)];
      first = l[0] * first + l[1] * second;
      second *= l[2];
    }
  }
}

void QueryMetric::StretchQuery(std::span<float> query) const {
  if (!has_learned_) return;
  for (std::int64_t pair = 0; pair < pair_count(); ++pair) {
    const float* l = factors_.data() + 3 * pair;
    float& first = query[FirstOf(pair)];
    float& second = query[SecondOf(pair)];
    first /= l[0];
    second = (second - l[1] * first) / l[2];
  }
}

void QueryMetric::UnstretchColumns(std::span<float> columns, std::int64_t key_count) const {
  if (!has_learned_) return;
  const std::size_t count = static_cast<std::size_t>(key_count);
  CAIRN_CHECK_EQ(columns.size(), static_cast<std::size_t>(dim_) * count);
  for (std::int64_t pair = 0; pair < pair_count(); ++pair) {
    const float* l = factors_.data() + 3 * pair;
    const float first_factor = 1.0F / l[0];
    const float second_factor = 1.0F / l[2];
    float* first = columns.data() + FirstOf(pair) * count;
    float* second = columns.data() + SecondOf(pair) * count;
    for (std::size_t key = 0; key < count; ++key) {
      second[key] *= second_factor;
      first[key] = (first[key] - l[1] * second[key]) * first_factor;
    }
  }
}

bool QueryMetric::Restore(bool has_learned, std::span<const float> numbers) {
  if (std::ssize(numbers) != number_count()) return false;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (!std::isfinite(numbers[i]) || (i % 3 != 1 && !(numbers[i] > 0))) return false;
  }
  factors_.assign(numbers.begin(), numbers.end());
  has_learned_ = has_learned;
  return true;
}

}  // namespace cairn::compute
