#include "compute-node/retrieval/clustering/query_metric.h"

#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/seed.h"

namespace cairn::compute {
namespace {

std::vector<float> RandomRows(std::mt19937_64& random, std::size_t count) {
  std::normal_distribution<float> noise;
  std::vector<float> rows(count);
  for (float& value : rows) value = noise(random);
  return rows;
}

double Product(std::span<const float> a, std::span<const float> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// Rows of 4: those of the first pair large and correlated.
std::vector<float> PairedQueries(std::mt19937_64& random, std::size_t second_of_pair) {
  std::vector<float> queries = RandomRows(random, std::size_t{20000} * 4);
  for (std::size_t row = 0; row < queries.size(); row += 4) {
    queries[row] *= 5.0F;
    queries[row + second_of_pair] += 0.7F * queries[row];
  }
  return queries;
}

// The distance between stretched keys is what their products with queries differ by, root mean
// square, where queries are correlated within pairs only.
TEST(QueryMetricTest, DistancesAreWhatQueriesSee) {
  std::mt19937_64 random(test::TestSeed());
  for (const RotaryPairs pairs : {RotaryPairs::kAdjacent, RotaryPairs::kHalves}) {
    const std::vector<float> queries =
        PairedQueries(random, pairs == RotaryPairs::kAdjacent ? 1 : 2);
    const double count = static_cast<double>(queries.size());
    const double mean_square = Product(queries, queries) / count;
    QueryMetric metric(4, pairs);
    metric.Learn(queries);
    ASSERT_TRUE(metric.has_learned());
    for (int i = 0; i < 20; ++i) {
      const std::vector<float> difference = RandomRows(random, 4);
      double seen = 0;
      for (std::size_t row = 0; row < queries.size(); row += 4) {
        const double product = Product(difference, std::span(queries).subspan(row, 4));
        seen += product * product;
      }
      seen /= mean_square * count / 4;
      std::vector<float> stretched = difference;
      metric.StretchKeys(stretched);
      const double expected = (1 - QueryMetric::kIdentityShare) * seen +
                              QueryMetric::kIdentityShare * Product(difference, difference);
      EXPECT_NEAR(Product(stretched, stretched), expected, 0.05 * expected + 0.01);
    }
  }
}

TEST(QueryMetricTest, ProductsWithQueriesStay) {
  std::mt19937_64 random(test::TestSeed());
  for (const std::int64_t dim : {1, 2, 7, 64}) {
    const std::size_t width = static_cast<std::size_t>(dim);
    for (const RotaryPairs pairs : {RotaryPairs::kAdjacent, RotaryPairs::kHalves}) {
      QueryMetric metric(dim, pairs);
      metric.Learn(RandomRows(random, 50 * width));
      const std::vector<float> keys = RandomRows(random, 2 * width);
      std::vector<float> query = RandomRows(random, width);
      const double before = Product(query, std::span(keys).subspan(width));
      std::vector<float> stretched = keys;
      metric.StretchKeys(stretched);
      metric.StretchQuery(query);
      EXPECT_NEAR(Product(query, std::span(stretched).subspan(width)), before, 1e-4);
    }
  }
}

TEST(QueryMetricTest, UnstretchingColumnsGivesTheKeysBack) {
  std::mt19937_64 random(test::TestSeed());
  constexpr std::size_t kKeys = 5;
  for (const std::int64_t dim : {1, 2, 7, 64}) {
    const std::size_t width = static_cast<std::size_t>(dim);
    for (const RotaryPairs pairs : {RotaryPairs::kAdjacent, RotaryPairs::kHalves}) {
      QueryMetric metric(dim, pairs);
      const std::vector<float> keys = RandomRows(random, kKeys * width);
      for (const bool learned : {false, true}) {
        if (learned) metric.Learn(RandomRows(random, 50 * width));
        std::vector<float> stretched = keys;
        metric.StretchKeys(stretched);
        std::vector<float> columns(keys.size());
        for (std::size_t i = 0; i < keys.size(); ++i) {
          columns[i % width * kKeys + i / width] = stretched[i];
        }
        metric.UnstretchColumns(columns, kKeys);
        for (std::size_t i = 0; i < keys.size(); ++i) {
          EXPECT_NEAR(columns[i % width * kKeys + i / width], keys[i], 1e-5);
        }
      }
    }
  }
}

TEST(QueryMetricTest, QueriesThatSayNothingChangeNothing) {
  for (const float value :
       {0.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    QueryMetric metric(4, RotaryPairs::kAdjacent);
    metric.Learn(std::vector<float>(64, value));
    EXPECT_FALSE(metric.has_learned());
    std::vector<float> key = {1, 2, 3, 4};
    metric.StretchKeys(key);
    EXPECT_EQ(key, (std::vector<float>{1, 2, 3, 4}));
  }
}

TEST(QueryMetricTest, WhatItLearnedCanBeStored) {
  std::mt19937_64 random(test::TestSeed());
  QueryMetric metric(8, RotaryPairs::kHalves);
  metric.Learn(RandomRows(random, 80));
  std::vector<float> numbers(metric.numbers().begin(), metric.numbers().end());
  ASSERT_EQ(std::ssize(numbers), metric.number_count());
  QueryMetric restored(8, RotaryPairs::kHalves);
  ASSERT_TRUE(restored.Restore(true, numbers));
  std::vector<float> key = RandomRows(random, 8);
  std::vector<float> other = key;
  metric.StretchKeys(key);
  restored.StretchKeys(other);
  EXPECT_EQ(key, other);
  numbers[2] = 0;
  EXPECT_FALSE(restored.Restore(true, numbers));
  numbers[2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(restored.Restore(true, numbers));
  EXPECT_FALSE(restored.Restore(true, std::span(numbers).first(9)));
}

}  // namespace
}  // namespace cairn::compute
