// The sides of 2-means.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "compute-node/retrieval/clustering/kmeans.h"
#include "tests/tools/rng.h"
#include "tests/tools/seed.h"

namespace cairn::compute {
namespace {

using Sides = std::vector<std::uint8_t>;

std::vector<float> NormalRows(test::Rng& rng, std::size_t count) {
  std::vector<float> rows(count);
  for (float& value : rows) {
    value = rng.Normal();
  }
  return rows;
}

Sides Split(const std::vector<float>& rows, std::size_t dim) {
  Sides sides(rows.size() / dim, 7);
  SplitInTwo(rows, static_cast<std::int64_t>(dim), sides);
  return sides;
}

std::vector<double> SideMean(const std::vector<float>& rows, std::size_t dim, const Sides& sides,
                             std::uint8_t side) {
  std::vector<double> mean(dim);
  double count = 0.0;
  for (std::size_t r = 0; r < sides.size(); ++r) {
    if (sides[r] != side) continue;
    count += 1.0;
    for (std::size_t i = 0; i < dim; ++i) {
      mean[i] += static_cast<double>(rows[r * dim + i]);
    }
  }
  for (double& value : mean) {
    value /= std::max(count, 1.0);
  }
  return mean;
}

double DistanceSquare(const float* row, const std::vector<double>& mean) {
  double sum = 0.0;
  for (std::size_t i = 0; i < mean.size(); ++i) {
    const double difference = static_cast<double>(row[i]) - mean[i];
    sum += difference * difference;
  }
  return sum;
}

// Squared distances from the two means, summed.
double SquaresOf(const std::vector<float>& rows, std::size_t dim, const Sides& sides) {
  const std::vector<double> means[2] = {SideMean(rows, dim, sides, 0),
                                        SideMean(rows, dim, sides, 1)};
  double sum = 0.0;
  for (std::size_t r = 0; r < sides.size(); ++r) {
    sum += DistanceSquare(rows.data() + r * dim, means[sides[r]]);
  }
  return sum;
}

// Lloyd's algorithm in double precision from random sides.
Sides ReferenceSides(test::Rng& rng, const std::vector<float>& rows, std::size_t dim) {
  Sides sides(rows.size() / dim);
  for (std::uint8_t& side : sides) {
    side = static_cast<std::uint8_t>(rng.Below(2));
  }
  for (int round = 0; round < 50; ++round) {
    const std::vector<double> zero = SideMean(rows, dim, sides, 0);
    const std::vector<double> one = SideMean(rows, dim, sides, 1);
    for (std::size_t r = 0; r < sides.size(); ++r) {
      const float* row = rows.data() + r * dim;
      sides[r] = DistanceSquare(row, one) < DistanceSquare(row, zero) ? 1 : 0;
    }
  }
  return sides;
}

TEST(SplitInTwoTest, NeitherSideIsEmpty) {
  test::Rng rng(test::TestSeed());
  for (int repeat = 0; repeat < 500; ++repeat) {
    const std::size_t dim = 1 + rng.Below(40);
    const std::size_t count = 2 + rng.Below(40);
    std::vector<float> rows = NormalRows(rng, count * dim);
    // Ever more equal rows and numbers, and ever longer ones.
    const float step = std::pow(10.0F, static_cast<float>(rng.Below(3)) - 1.0F);
    const float factor = std::pow(10.0F, static_cast<float>(rng.Below(70)) - 35.0F);
    for (float& value : rows) {
      value = std::round(value / step) * step * factor;
    }
    const Sides sides = Split(rows, dim);
    EXPECT_EQ(std::count(sides.begin(), sides.end(), 0) + std::count(sides.begin(), sides.end(), 1),
              std::ssize(sides));
    EXPECT_NE(std::count(sides.begin(), sides.end(), 0), 0);
    EXPECT_NE(std::count(sides.begin(), sides.end(), 0), std::ssize(sides));
    EXPECT_EQ(Split(rows, dim), sides);
  }
}

TEST(SplitInTwoTest, EqualRowsAreHalvedInTheirOrder) {
  for (std::size_t count = 0; count < 20; ++count) {
    Sides expected(count, 1);
    std::fill_n(expected.begin(), count / 2, std::uint8_t{0});
    EXPECT_EQ(Split(std::vector<float>(count * 8, 0.3F), 8), expected);
  }
}

TEST(SplitInTwoTest, TwoBlobsFarFromZeroComeApart) {
  test::Rng rng(test::TestSeed());
  for (int repeat = 0; repeat < 50; ++repeat) {
    constexpr std::size_t kDim = 64;
    const std::size_t count = 3 + rng.Below(40);
    std::vector<float> rows = NormalRows(rng, count * kDim);
    Sides blobs(count);
    for (std::size_t r = 0; r < count; ++r) {
      // At least one of each.
      blobs[r] = static_cast<std::uint8_t>(r < 2 ? r : rng.Below(2));
      for (std::size_t i = 0; i < kDim; ++i) {
        rows[r * kDim + i] += 1000.0F + (blobs[r] == 0 ? 5.0F : -5.0F);
      }
    }
    Sides sides = Split(rows, kDim);
    if (sides[0] != blobs[0]) {
      for (std::uint8_t& side : sides) {
        side = side == 0 ? 1 : 0;
      }
    }
    EXPECT_EQ(sides, blobs);
  }
}

// What a cluster that has outgrown its cap looks like at worst: no sides at all.
TEST(SplitInTwoTest, IsAsGoodAsTheBestOfTenRandomStarts) {
  test::Rng rng(test::TestSeed());
  constexpr std::size_t kDim = 64;
  constexpr std::size_t kCount = 17;
  constexpr int kStarts = 10;
  double ours = 0.0;
  double best_sum = 0.0;
  double mean_sum = 0.0;
  for (int repeat = 0; repeat < 40; ++repeat) {
    const std::vector<float> rows = NormalRows(rng, kCount * kDim);
    ours += SquaresOf(rows, kDim, Split(rows, kDim));
    double best = SquaresOf(rows, kDim, ReferenceSides(rng, rows, kDim));
    double sum = best;
    for (int start = 1; start < kStarts; ++start) {
      const double squares = SquaresOf(rows, kDim, ReferenceSides(rng, rows, kDim));
      best = std::min(best, squares);
      sum += squares;
    }
    best_sum += best;
    mean_sum += sum / kStarts;
  }
  EXPECT_LT(ours, 0.997 * best_sum);
  EXPECT_LT(ours, mean_sum);
  std::cout << "squares " << ours / best_sum << " of the best start's, mean start "
            << mean_sum / best_sum << "\n";
}

}  // namespace
}  // namespace cairn::compute
