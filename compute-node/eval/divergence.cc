#include "compute-node/eval/divergence.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/check.h"

namespace cairn::eval {
namespace {

// The logarithm of the sum of the logits' exponentials.
double LogSum(std::span<const float> logits) {
  const double largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum);
}

}  // namespace

double KlDivergence(std::span<const float> reference, std::span<const float> other) {
  CAIRN_CHECK_EQ(reference.size(), other.size());
  const double reference_sum = LogSum(reference);
  const double other_sum = LogSum(other);
  double divergence = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double log_p = static_cast<double>(reference[i]) - reference_sum;
    const double log_q = static_cast<double>(other[i]) - other_sum;
    divergence += std::exp(log_p) * (log_p - log_q);
  }
  // Of equal distributions rounding leaves a little on either side.
  return std::max(0.0, divergence);
}

void Divergence::Add(std::span<const float> reference, std::span<const float> other) {
  values_.push_back(KlDivergence(reference, other));
  const auto best = [](std::span<const float> logits) {
    return std::max_element(logits.begin(), logits.end()) - logits.begin();
  };
  same_best_count_ += best(reference) == best(other) ? 1 : 0;
}

double Divergence::mean() const {
  CAIRN_CHECK(!values_.empty());
  return std::accumulate(values_.begin(), values_.end(), 0.0) / static_cast<double>(count());
}

double Divergence::Quantile(double quantile) const {
  CAIRN_CHECK(!values_.empty());
  std::vector<double> sorted = values_;
  std::sort(sorted.begin(), sorted.end());
  const double rank = std::ceil(quantile * static_cast<double>(count())) - 1;
  return sorted[static_cast<std::size_t>(std::max(0.0, rank))];
}

double Divergence::same_best() const {
  CAIRN_CHECK(!values_.empty());
  return static_cast<double>(same_best_count_) / static_cast<double>(count());
}

}  // namespace cairn::eval
