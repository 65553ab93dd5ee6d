// Every instruction set against plain arithmetic.
#include "compute-node/kernels/key_codes.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/unit/kernels/kernel_testing.h"

namespace cairn::compute {
namespace {

// Runs of each number of bits, alone and mixed.
const std::vector<KeyCodeShape>& Shapes() {
  static const std::vector<KeyCodeShape> all = [] {
    std::vector<KeyCodeShape> shapes;
    for (const int bits : {1, 2, 3, 4, 8}) shapes.push_back(KeyCodeShape::Even(3, bits));
    KeyCodeShape mixed;
    mixed.run_bits = {8, 4, 3, 2, 1, 1};
    shapes.push_back(mixed);
    shapes.push_back(KeyCodeShape::Even(1, 2));
    return shapes;
  }();
  return all;
}

struct CodedRows {
  CodedRows(test::Rng& rng, const KeyCodeShape& of_shape, std::int64_t row_count)
      : shape(of_shape),
        panel_count((row_count + kCodePanelRows - 1) / kCodePanelRows),
        panels(static_cast<std::size_t>(panel_count * shape.PanelBytes())) {
    for (std::int64_t row = 0; row < row_count; ++row) {
      std::vector<std::uint8_t>& codes = rows.emplace_back();
      for (std::int64_t axis = 0; axis < shape.axis_count(); ++axis) {
        codes.push_back(static_cast<std::uint8_t>(
            rng.Below(static_cast<std::uint64_t>(shape.CodeMaxOf(axis)) + 1)));
      }
      PutKeyCodes(shape, codes, row % kCodePanelRows, Panel(row));
    }
  }
  std::byte* Panel(std::int64_t row) {
    return panels.data() + row / kCodePanelRows * shape.PanelBytes();
  }

  KeyCodeShape shape;
  std::int64_t panel_count;
  std::vector<std::vector<std::uint8_t>> rows;
  std::vector<std::byte> panels;
};

TEST(KeyCodesTest, CodesComeBackAsTheyWerePut) {
  test::Rng rng(TestSeed());
  for (const KeyCodeShape& shape : Shapes()) {
    CodedRows coded(rng, shape, 50);
    // Over what was there.
    for (std::int64_t row = 0; row < 50; row += 7) {
      std::vector<std::uint8_t>& codes = coded.rows[static_cast<std::size_t>(row)];
      for (std::size_t axis = 0; axis < codes.size(); ++axis) {
        const int largest = shape.CodeMaxOf(static_cast<std::int64_t>(axis));
        codes[axis] = static_cast<std::uint8_t>(largest - codes[axis]);
      }
      PutKeyCodes(coded.shape, codes, row % kCodePanelRows, coded.Panel(row));
    }
    for (std::int64_t row = 0; row < 50; ++row) {
      std::vector<std::uint8_t> got(static_cast<std::size_t>(shape.axis_count()));
      GetKeyCodes(coded.shape, coded.Panel(row), row % kCodePanelRows, got);
      ASSERT_EQ(got, coded.rows[static_cast<std::size_t>(row)])
          << shape.RowBytes() << " bytes, row " << row;
    }
  }
}

TEST(KeyCodesTest, ScoresAreProductsWithWhatCodesAreFromTheMiddle) {
  test::Rng rng(TestSeed());
  for (const KeyCodeShape& shape : Shapes()) {
    for (const std::size_t query_count : {1U, 4U, 6U, 8U}) {
      CodedRows coded(rng, shape, 37);
      std::vector<std::vector<float>> numbers;
      for (std::size_t q = 0; q < query_count; ++q) {
        numbers.push_back(RandomRow(rng, static_cast<std::size_t>(shape.axis_count()), 2.0F));
      }
      ForEachSimdTarget([&] {
        std::vector<CodedQuery> queries;
        std::vector<std::vector<float>> scores;
        std::vector<float*> rows;
        for (const std::vector<float>& query : numbers) {
          queries.emplace_back(coded.shape, query);
          scores.emplace_back(static_cast<std::size_t>(coded.panel_count * kCodePanelRows));
        }
        rows.reserve(scores.size());
        for (std::vector<float>& each : scores) rows.push_back(each.data());
        ScoreKeyCodes(coded.shape, queries, coded.panels.data(), coded.panel_count, rows);
        for (std::size_t q = 0; q < query_count; ++q) {
          for (std::size_t row = 0; row < coded.rows.size(); ++row) {
            double expected = 0;
            double error_max = 1e-3;
            for (std::size_t axis = 0; axis < coded.rows[row].size(); ++axis) {
              const double code =
                  coded.rows[row][axis] - shape.CodeMaxOf(static_cast<std::int64_t>(axis)) / 2.0;
              expected += static_cast<double>(numbers[q][axis]) * code;
              // Half a step of the query's 8 bits.
              error_max += std::abs(code) * queries[q].scales()[axis / kCodeRunAxes] / 2;
            }
            ASSERT_NEAR(scores[q][row], expected, error_max)
                << shape.RowBytes() << " bytes, query " << q << ", row " << row;
          }
        }
      });
    }
  }
}

TEST(KeyCodesTest, QueriesOfNothingScoreNothing) {
  test::Rng rng(TestSeed());
  CodedRows coded(rng, KeyCodeShape::Even(1, 4), 16);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float number : {0.0F, infinity, std::nanf("")}) {
    const std::vector<CodedQuery> queries = {
        CodedQuery(coded.shape, std::vector<float>(32, number))};
    std::vector<float> scores(16, 7.0F);
    float* const rows[] = {scores.data()};
    ScoreKeyCodes(coded.shape, queries, coded.panels.data(), 1, rows);
    for (const float score : scores) EXPECT_EQ(score, scores[0]);
  }
}

TEST(AddSoftmaxOfTest, AddsSharesThatAreOneTogether) {
  test::Rng rng(TestSeed());
  for (const std::size_t count : {1U, 7U, 16U, 100U}) {
    const std::vector<float> scores = RandomRow(rng, count, 30.0F);
    double largest = -1e30;
    for (const float score : scores) largest = std::max(largest, static_cast<double>(score));
    double sum = 0;
    for (const float score : scores) sum += std::exp((score - largest) * 0.5);
    ForEachSimdTarget([&] {
      std::vector<float> masses(count, 0.25F);
      std::vector<float> scratch = scores;
      AddSoftmaxOf(scratch, 0.5F, masses);
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_NEAR(masses[i], 0.25 + std::exp((scores[i] - largest) * 0.5) / sum, 1e-5) << i;
      }
    });
  }
}

TEST(AddSoftmaxOfTest, WhatIsNotFiniteAddsNothing) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float number : {infinity, -infinity, std::nanf("")}) {
    std::vector<float> scores(20, number);
    std::vector<float> masses(20, 0.5F);
    AddSoftmaxOf(scores, 1, masses);
    EXPECT_EQ(masses, std::vector<float>(20, 0.5F));
  }
}

TEST(KeyCodesTest, ProjectionsAreSumsOfProducts) {
  test::Rng rng(TestSeed());
  for (const std::int64_t axis_count : {32, 64, 160}) {
    constexpr std::int64_t kDimensions = 40;
    std::vector<std::int8_t> axes(static_cast<std::size_t>(kDimensions * axis_count));
    for (std::int8_t& number : axes) {
      number = static_cast<std::int8_t>(static_cast<int>(rng.Below(255)) - 127);
    }
    for (const std::int64_t row_count : {0, 1, 3, 4, 9}) {
      std::vector<float> numbers(static_cast<std::size_t>(row_count * kDimensions));
      for (float& number : numbers) number = rng.Normal();
      std::vector<float> sums(static_cast<std::size_t>(row_count * axis_count), 0.5F);
      ForEachSimdTarget([&] {
        std::vector<float> got = sums;
        AddProjections(numbers, kDimensions, axes, axis_count, got);
        for (std::int64_t row = 0; row < row_count; ++row) {
          const auto row_numbers = std::span(numbers).subspan(
              static_cast<std::size_t>(row * kDimensions), static_cast<std::size_t>(kDimensions));
          // Alone it has the same bits.
          std::vector<float> alone(static_cast<std::size_t>(axis_count), 0.5F);
          AddProjections(row_numbers, kDimensions, axes, axis_count, alone);
          for (std::int64_t axis = 0; axis < axis_count; ++axis) {
            const float sum = got[static_cast<std::size_t>(row * axis_count + axis)];
            ASSERT_EQ(sum, alone[static_cast<std::size_t>(axis)]);
            double expected = 0.5;
            for (std::int64_t i = 0; i < kDimensions; ++i) {
              expected +=
                  double{row_numbers[static_cast<std::size_t>(i)]} *
                  static_cast<double>(axes[static_cast<std::size_t>(i * axis_count + axis)]);
            }
            ASSERT_NEAR(double{sum}, expected, 0.01);
          }
        }
      });
    }
  }
}

TEST(KeyCodesDeathTest, RefusesShapesThatNoKernelHas) {
  EXPECT_FALSE(KeyCodeShape().IsValid());
  EXPECT_FALSE(KeyCodeShape::Even(2, 5).IsValid());
  KeyCodeShape gap = KeyCodeShape::Even(4, 2);
  gap.run_bits[1] = 0;
  EXPECT_FALSE(gap.IsValid());
  EXPECT_DEATH(CodedQuery(KeyCodeShape(), {}), "IsValid");
}

}  // namespace
}  // namespace cairn::compute
