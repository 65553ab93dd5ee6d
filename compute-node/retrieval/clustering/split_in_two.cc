// 2-means. The best halves of a set lie on the two sides of a plane that is nearly perpendicular to
// the principal axis (Ding and He, "K-means Clustering via Principal Component Analysis", 2004):
// from there a few rounds end where the best of many random starts does.
#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "compute-node/retrieval/clustering/kmeans.h"

namespace cairn::compute {
namespace {

constexpr int kAxisRounds = 4;
constexpr int kRoundsMax = 10;

// Eight sums, so that additions need not wait for each other and the compiler makes vectors.
float Dot(const float* a, const float* b, std::size_t count) {
  float sums[8] = {};
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (std::size_t j = 0; j < 8; ++j) {
      sums[j] += a[i + j] * b[i + j];
    }
  }
  for (; i < count; ++i) {
    sums[i % 8] += a[i] * b[i];
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

void AddScaled(const float* row, float factor, std::vector<float>& sum) {
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] += factor * row[i];
  }
}

// Rows less their mean: distances between rows far from zero keep their digits.
class CentredRows {
 public:
  CentredRows(std::span<const float> rows, std::size_t dim)
      : dim_(dim), count_(rows.size() / dim), values_(rows.begin(), rows.end()) {
    std::vector<float> mean(dim);
    for (std::size_t r = 0; r < count_; ++r) {
      AddScaled(Row(r), 1.0F / static_cast<float>(count_), mean);
    }
    for (std::size_t i = 0; i < values_.size(); ++i) {
      values_[i] -= mean[i % dim];
    }
  }

  std::size_t count() const { return count_; }
  std::size_t dim() const { return dim_; }
  const float* Row(std::size_t index) const { return values_.data() + index * dim_; }

  // The direction in which the rows differ most, about; of any length. Zero if all are equal.
  std::vector<float> PrincipalAxis() const {
    std::size_t farthest = 0;
    float most = 0.0F;
    for (std::size_t r = 0; r < count_; ++r) {
      const float square = Dot(Row(r), Row(r), dim_);
      if (square > most) {
        most = square;
        farthest = r;
      }
    }
    std::vector<float> axis(dim_);
    if (most == 0.0F) return axis;
    AddScaled(Row(farthest), 1.0F / std::sqrt(most), axis);
    std::vector<float> next(dim_);
    for (int round = 0; round < kAxisRounds; ++round) {
      std::fill(next.begin(), next.end(), 0.0F);
      for (std::size_t r = 0; r < count_; ++r) {
        AddScaled(Row(r), Dot(Row(r), axis.data(), dim_), next);
      }
      const float length = std::sqrt(Dot(next.data(), next.data(), dim_));
      // Neither is a length to divide by; the axis so far is one, too.
      if (!(length > 0.0F) || !std::isfinite(length)) return axis;
      for (std::size_t i = 0; i < dim_; ++i) {
        axis[i] = next[i] / length;
      }
    }
    return axis;
  }

 private:
  std::size_t dim_;
  std::size_t count_;
  std::vector<float> values_;
};

bool HaveBothSides(std::span<const std::uint8_t> sides) {
  return std::find(sides.begin(), sides.end(), 0) != sides.end() &&
         std::find(sides.begin(), sides.end(), 1) != sides.end();
}

// Side 1 is where row . axis > threshold.
void Divide(const CentredRows& rows, const std::vector<float>& axis, float threshold,
            std::vector<std::uint8_t>& sides) {
  for (std::size_t r = 0; r < rows.count(); ++r) {
    sides[r] = Dot(rows.Row(r), axis.data(), rows.dim()) > threshold ? 1 : 0;
  }
}

// What lies nearer to the mean of side 1 than to that of side 0 becomes side 1.
void Reassign(const CentredRows& rows, std::span<const std::uint8_t> sides,
              std::vector<std::uint8_t>& next) {
  std::vector<float> means[2] = {std::vector<float>(rows.dim()), std::vector<float>(rows.dim())};
  float counts[2] = {};
  for (std::size_t r = 0; r < rows.count(); ++r) {
    AddScaled(rows.Row(r), 1.0F, means[sides[r]]);
    counts[sides[r]] += 1.0F;
  }
  std::vector<float> axis(rows.dim());
  std::vector<float> middle(rows.dim());
  for (std::size_t i = 0; i < rows.dim(); ++i) {
    const float zero = means[0][i] / counts[0];
    const float one = means[1][i] / counts[1];
    axis[i] = one - zero;
    middle[i] = (one + zero) / 2;
  }
  Divide(rows, axis, Dot(axis.data(), middle.data(), rows.dim()), next);
}

}  // namespace

void SplitInTwo(std::span<const float> rows, std::int64_t dim, std::span<std::uint8_t> sides) {
  CAIRN_CHECK(dim > 0);
  CAIRN_CHECK_EQ(std::ssize(rows), std::ssize(sides) * dim);
  const auto halve = [&] {
    const auto middle = sides.begin() + std::ssize(sides) / 2;
    std::fill(sides.begin(), middle, std::uint8_t{0});
    std::fill(middle, sides.end(), std::uint8_t{1});
  };
  if (sides.size() <= 2) {
    halve();
    return;
  }
  const CentredRows centred(rows, static_cast<std::size_t>(dim));
  std::vector<std::uint8_t> next(sides.size());
  Divide(centred, centred.PrincipalAxis(), 0.0F, next);
  if (!HaveBothSides(next)) {
    halve();
    return;
  }
  for (int round = 0; round < kRoundsMax; ++round) {
    std::copy(next.begin(), next.end(), sides.begin());
    Reassign(centred, sides, next);
    // Rounding may empty a side, not the algorithm.
    if (std::equal(next.begin(), next.end(), sides.begin()) || !HaveBothSides(next)) return;
  }
  std::copy(next.begin(), next.end(), sides.begin());
}

}  // namespace cairn::compute
