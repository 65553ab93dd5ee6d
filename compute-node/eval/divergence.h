// Divergence: how far the next-token distributions of two ways to compute the same text lie apart.
//
// Units:      nats; everything in double from the whole logits.
// Threading:  one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cairn::eval {

// KL(reference || other) of the distributions that the logits stand for, at least 0. REQUIRES: of
// one length, finite.
double KlDivergence(std::span<const float> reference, std::span<const float> other);

class Divergence {
 public:
  // What two sets of logits for the same next token have.
  void Add(std::span<const float> reference, std::span<const float> other);

  std::int64_t count() const { return static_cast<std::int64_t>(values_.size()); }
  // The rest REQUIRES: count() > 0.
  double mean() const;
  // The smallest value that a share of `quantile` of them does not exceed.
  double Quantile(double quantile) const;
  double max() const { return Quantile(1); }
  // The share of tokens where both have the same most likely one.
  double same_best() const;

 private:
  std::vector<double> values_;
  std::int64_t same_best_count_ = 0;
};

}  // namespace cairn::eval
