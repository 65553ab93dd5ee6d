// Every instruction set against the reference; a nearest row must be as near as the nearest one up
// to rounding, and where two are equal bit for bit the lower wins.
#include "compute-node/kernels/centroids.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/unit/kernels/kernel_testing.h"
#include "tests/unit/kernels/reference.h"

namespace cairn::compute {
namespace {

constexpr float kLeftOut = std::numeric_limits<float>::infinity();
constexpr std::size_t kRowCounts[] = {1, 2, 3, 4, 5, 31, 64, 101};

// Rows of codes as QuantizeCentroid makes them.
struct QuantizedRows {
  QuantizedRows(std::span<const float> values, std::size_t row_dim)
      : dim(row_dim),
        codes(values.size()),
        scales(values.size() / dim),
        half_squares(values.size() / dim) {
    for (std::size_t i = 0; i < scales.size(); ++i) {
      std::int8_t* const row = codes.data() + i * dim;
      scales[i] = QuantizeCentroid(values.subspan(i * dim, dim), row);
      const int square = std::inner_product(row, row + dim, row, 0);
      half_squares[i] = scales[i] * scales[i] * static_cast<float>(square) / 2;
    }
  }
  CodeRows View() const {
    return {static_cast<std::int64_t>(dim), codes.data(), scales, half_squares};
  }
  // Half the squared distance from each row, less half the key's square.
  std::vector<double> HalfDistances(std::span<const float> key) const {
    std::vector<double> distances = reference::ScoreCodes(key, codes.data(), scales);
    for (std::size_t i = 0; i < distances.size(); ++i) {
      distances[i] = static_cast<double>(half_squares[i]) - distances[i];
    }
    return distances;
  }

  std::size_t dim;
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
  std::vector<float> half_squares;
};

void ExpectNearest(std::int32_t nearest, const std::vector<double>& distances) {
  ASSERT_GE(nearest, 0);
  ASSERT_LT(nearest, std::ssize(distances));
  const double least = *std::min_element(distances.begin(), distances.end());
  EXPECT_LE(distances[static_cast<std::size_t>(nearest)], least + 1e-5 * (1.0 + std::abs(least)));
}

TEST(QuantizeCentroidTest, RoundsToTheNearestOf127StepsEachWay) {
  test::Rng rng(TestSeed());
  for (std::size_t dim = 8; dim <= kCodeDimMax; dim += 8) {
    const std::vector<float> row = RandomRow(rng, dim, 3.0F);
    float largest = 0.0F;
    for (const float value : row) {
      largest = std::max(largest, std::abs(value));
    }
    ForEachSimdTarget([&] {
      std::vector<std::int8_t> codes(dim);
      const float scale = QuantizeCentroid(row, codes.data());
      EXPECT_EQ(scale, largest / 127.0F);
      for (std::size_t i = 0; i < dim; ++i) {
        EXPECT_EQ(codes[i], static_cast<std::int8_t>(std::nearbyint(row[i] / scale))) << i;
      }
    });
  }
}

TEST(QuantizeCentroidTest, RowsOfNothingAreZero) {
  for (const float value : {0.0F, -0.0F, 1e-40F, -1e-37F}) {
    const std::vector<float> row(64, value);
    ForEachSimdTarget([&] {
      std::vector<std::int8_t> codes(row.size(), 5);
      EXPECT_EQ(QuantizeCentroid(row, codes.data()), 0.0F);
      EXPECT_EQ(codes, std::vector<std::int8_t>(row.size(), 0));
    });
  }
}

TEST(HalfSquareTest, MatchesItsFormula) {
  test::Rng rng(TestSeed());
  for (const std::size_t count : {0U, 1U, 7U, 8U, 64U, 100U}) {
    const std::vector<float> row = RandomRow(rng, count);
    double square = 0.0;
    for (const float value : row) {
      square += static_cast<double>(value) * static_cast<double>(value);
    }
    ForEachSimdTarget([&] { EXPECT_NEAR(HalfSquare(row), square / 2, 1e-6 * square); });
  }
}

TEST(SketchTest, RoundsEachCodeToTheNearestOf7StepsEachWay) {
  std::vector<std::int8_t> codes;
  for (int code = -128; code <= 127; ++code) codes.push_back(static_cast<std::int8_t>(code));
  std::vector<std::uint8_t> sketch(codes.size() / 2);
  SketchOf(codes, sketch.data());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const std::uint8_t byte = sketch[i % sketch.size()];
    const int number = (i < sketch.size() ? byte & 15 : byte >> 4) - kSketchZero;
    const double exact = std::max(-127, int{codes[i]}) * 7 / 127.0;
    EXPECT_EQ(number, std::lround(exact)) << int{codes[i]};
  }
}

// The sketches of QuantizedRows, and their numbers.
struct Sketches {
  explicit Sketches(const QuantizedRows& rows) : bytes(rows.codes.size() / 2) {
    const std::size_t half = rows.dim / 2;
    for (std::size_t i = 0; i < rows.scales.size(); ++i) {
      SketchOf(std::span(rows.codes).subspan(i * rows.dim, rows.dim), bytes.data() + i * half);
      for (const int shift : {0, 4}) {
        for (std::size_t j = 0; j < half; ++j) {
          const int number = (bytes[i * half + j] >> shift & 15) - kSketchZero;
          numbers.push_back(static_cast<std::int8_t>(number));
        }
      }
      scales.push_back(rows.scales[i] * 127.0F / 7.0F);
    }
  }

  std::vector<std::uint8_t> bytes;
  std::vector<std::int8_t> numbers;
  std::vector<float> scales;
};

TEST(ScoreSketchesTest, MatchesTheReference) {
  test::Rng rng(TestSeed());
  for (std::size_t dim = 8; dim <= kCodeDimMax; dim += 8) {
    for (const std::size_t count : kRowCounts) {
      const std::vector<float> query = RandomRow(rng, dim);
      const QuantizedRows rows(RandomRow(rng, count * dim), dim);
      const Sketches sketches(rows);
      const auto expected = reference::ScoreCodes(query, sketches.numbers.data(), sketches.scales);
      ForEachSimdTarget([&] {
        std::vector<float> scores(count + 1, 7.0F);
        ScoreSketches(query, sketches.bytes.data(), rows.scales, std::span(scores).first(count));
        EXPECT_EQ(scores[count], 7.0F);
        for (std::size_t i = 0; i < count; ++i) {
          EXPECT_NEAR(scores[i], expected[i], 1e-5 * static_cast<double>(dim)) << dim << " " << i;
        }
      });
    }
  }
}

TEST(ScoreSketchesTest, AScoreDependsOnItsRowOnly) {
  test::Rng rng(TestSeed());
  for (const std::size_t dim : {8U, 64U, 72U, 80U, 96U, 128U, 256U}) {
    constexpr std::size_t kCount = 23;
    const std::vector<float> query = RandomRow(rng, dim);
    const QuantizedRows rows(RandomRow(rng, kCount * dim), dim);
    const Sketches sketches(rows);
    ForEachSimdTarget([&] {
      std::vector<float> whole(kCount);
      ScoreSketches(query, sketches.bytes.data(), rows.scales, whole);
      for (std::size_t first = 0; first < kCount; ++first) {
        for (std::size_t count = 1; first + count <= kCount; ++count) {
          std::vector<float> part(count);
          ScoreSketches(query, sketches.bytes.data() + first * dim / 2,
                        std::span(rows.scales).subspan(first, count), part);
          ASSERT_TRUE(SameBits(part.data(), whole.data() + first, count)) << dim << " " << first;
        }
      }
    });
  }
}

TEST(NearestCodeTest, MatchesTheReference) {
  test::Rng rng(TestSeed());
  for (std::size_t dim = 8; dim <= kCodeDimMax; dim += 8) {
    for (const std::size_t count : kRowCounts) {
      const std::size_t key_count = 1 + rng.Below(19);
      const std::vector<float> keys = RandomRow(rng, key_count * dim);
      const QuantizedRows rows(RandomRow(rng, count * dim), dim);
      ForEachSimdTarget([&] {
        std::vector<std::int32_t> nearest(key_count + 1, -7);
        NearestCode(keys, rows.View(), std::span(nearest).first(key_count));
        EXPECT_EQ(nearest[key_count], -7);
        for (std::size_t k = 0; k < key_count; ++k) {
          const auto key = std::span(keys).subspan(k * dim, dim);
          ExpectNearest(nearest[k], rows.HalfDistances(key));
          std::int32_t alone = -7;
          NearestCode(key, rows.View(), {&alone, 1});
          EXPECT_EQ(alone, nearest[k]);
        }
      });
    }
  }
}

TEST(NearestCodeTest, TheLowestOfEqualRowsWinsAndARowLeftOutNever) {
  test::Rng rng(TestSeed());
  for (int repeat = 0; repeat < 50; ++repeat) {
    const std::size_t dim = 8 * (1 + rng.Below(16));
    const std::size_t count = 1 + rng.Below(60);
    const std::vector<float> key = RandomRow(rng, dim);
    QuantizedRows rows(RandomRow(rng, count * dim), dim);
    // Copies of the key, the nearest there can be, all over the place; some are left out.
    const QuantizedRows copy(key, dim);
    std::int32_t expected = -1;
    for (std::size_t i = 0; i < count; ++i) {
      rows.half_squares[i] = kLeftOut;
      if (rng.Below(3) != 0) continue;
      std::copy(copy.codes.begin(), copy.codes.end(),
                rows.codes.begin() + static_cast<std::ptrdiff_t>(i * dim));
      rows.scales[i] = copy.scales[0];
      if (rng.Below(2) == 0) continue;
      rows.half_squares[i] = copy.half_squares[0];
      if (expected < 0) expected = static_cast<std::int32_t>(i);
    }
    ForEachSimdTarget([&] {
      std::int32_t nearest = -7;
      NearestCode(key, rows.View(), {&nearest, 1});
      EXPECT_EQ(nearest, expected);
    });
  }
}

TEST(NearestCentroidsTest, MatchesTheReference) {
  test::Rng rng(TestSeed());
  for (const std::size_t dim : {1U, 5U, 8U, 24U, 64U, 80U, 96U, 128U, 256U}) {
    for (const std::size_t count : kRowCounts) {
      const std::size_t point_count = 1 + rng.Below(150);
      const std::vector<float> points = RandomRow(rng, point_count * dim);
      const std::vector<float> centroids = RandomRow(rng, count * dim);
      std::vector<float> half_squares;
      for (std::size_t i = 0; i < count; ++i) {
        half_squares.push_back(HalfSquare(std::span(centroids).subspan(i * dim, dim)));
      }
      ForEachSimdTarget([&] {
        std::vector<std::int32_t> nearest(point_count + 1, -7);
        NearestCentroids(points, centroids, half_squares, std::span(nearest).first(point_count));
        EXPECT_EQ(nearest[point_count], -7);
        for (std::size_t p = 0; p < point_count; ++p) {
          const auto point = std::span(points).subspan(p * dim, dim);
          ExpectNearest(nearest[p], reference::HalfDistances(point, centroids, half_squares));
        }
        const std::size_t first = point_count / 3;
        std::vector<std::int32_t> part(point_count - first);
        NearestCentroids(std::span(points).subspan(first * dim), centroids, half_squares, part);
        EXPECT_TRUE(std::equal(part.begin(), part.end(),
                               nearest.begin() + static_cast<std::ptrdiff_t>(first)));
      });
    }
  }
}

TEST(NearestCentroidsTest, TheLowestOfEqualCentroidsWinsAndOneLeftOutNever) {
  test::Rng rng(TestSeed());
  for (int repeat = 0; repeat < 50; ++repeat) {
    const std::size_t dim = 1 + rng.Below(100);
    const std::size_t count = 1 + rng.Below(150);
    const std::vector<float> point = RandomRow(rng, dim);
    std::vector<float> centroids;
    std::vector<float> half_squares;
    std::int32_t expected = -1;
    for (std::size_t i = 0; i < count; ++i) {
      centroids.insert(centroids.end(), point.begin(), point.end());
      const bool is_left_out = rng.Below(4) != 0;
      half_squares.push_back(is_left_out ? kLeftOut : HalfSquare(point));
      if (!is_left_out && expected < 0) expected = static_cast<std::int32_t>(i);
    }
    ForEachSimdTarget([&] {
      std::int32_t nearest = -7;
      NearestCentroids(point, centroids, half_squares, {&nearest, 1});
      EXPECT_EQ(nearest, expected);
    });
  }
}

TEST(NearestCentroidsTest, NoPointsAndNoCentroidsAreAnswered) {
  ForEachSimdTarget([&] {
    NearestCentroids({}, {}, {}, {});
    NearestCode({}, {8, nullptr, {}, {}}, {});
    ScoreSketches(std::vector<float>(8), nullptr, {}, {});
    const std::vector<float> point(8);
    std::int32_t nearest = -7;
    NearestCentroids(point, {}, {}, {&nearest, 1});
    EXPECT_EQ(nearest, -1);
    nearest = -7;
    NearestCode(point, {8, nullptr, {}, {}}, {&nearest, 1});
    EXPECT_EQ(nearest, -1);
  });
}

}  // namespace
}  // namespace cairn::compute
