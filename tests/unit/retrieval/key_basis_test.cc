#include "compute-node/retrieval/kvswap/key_basis.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/seed.h"

namespace cairn::compute {
namespace {

constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kHeadDim = 16;
constexpr std::int64_t kJointDim = kHeads * kHeadDim;
constexpr float kMean = 3.0F;

class KeyBasisTest : public testing::Test {
 protected:
  // Keys that differ along some directions only, around a mean.
  std::vector<float> Keys(std::int64_t count, std::size_t direction_count) {
    std::normal_distribution<float> normal;
    while (directions.size() < direction_count) {
      std::vector<float>& direction = directions.emplace_back(kJointDim);
      for (float& number : direction) number = normal(random);
    }
    std::vector<float> keys;
    for (std::int64_t i = 0; i < count; ++i) {
      std::vector<float> key(kJointDim, kMean);
      for (std::size_t d = 0; d < direction_count; ++d) {
        const float share = normal(random);
        for (std::size_t at = 0; at < key.size(); ++at) key[at] += share * directions[d][at];
      }
      keys.insert(keys.end(), key.begin(), key.end());
    }
    return keys;
  }

  // What is left of the variance of scores, once small keys make them: of queries at random.
  double ErrorShare(const KeyBasis& basis, std::span<const float> keys) {
    std::normal_distribution<float> normal;
    const std::size_t count = keys.size() / kJointDim;
    double error_sum = 0;
    double variance_sum = 0;
    for (std::int32_t head = 0; head < kHeads; ++head) {
      std::vector<float> query(kHeadDim);
      for (float& number : query) number = normal(random);
      const std::vector<float> projected = basis.Project(query, head);
      std::vector<double> scores;
      std::vector<double> errors;
      for (std::size_t i = 0; i < count; ++i) {
        const std::span<const float> key = keys.subspan(i * kJointDim, kJointDim);
        std::vector<std::uint8_t> codes(projected.size());
        basis.Encode(key, codes);
        double score = 0;
        for (std::size_t d = 0; d < query.size(); ++d) {
          score +=
              static_cast<double>(query[d]) * key[static_cast<std::size_t>(head) * kHeadDim + d];
        }
        double coded = 0;
        for (std::size_t axis = 0; axis < codes.size(); ++axis) {
          coded += static_cast<double>(projected[axis]) *
                   (codes[axis] - basis.shape().CodeMaxOf(static_cast<std::int64_t>(axis)) / 2.0);
        }
        scores.push_back(score);
        errors.push_back(score - coded);
      }
      error_sum += Variance(errors);
      variance_sum += Variance(scores);
    }
    return error_sum / variance_sum;
  }
  static double Variance(const std::vector<double>& numbers) {
    double sum = 0;
    for (const double number : numbers) sum += number;
    const double mean = sum / static_cast<double>(numbers.size());
    double squares = 0;
    for (const double number : numbers) squares += (number - mean) * (number - mean);
    return squares / static_cast<double>(numbers.size());
  }

  std::mt19937_64 random{test::TestSeed()};
  std::vector<std::vector<float>> directions;
};

TEST_F(KeyBasisTest, MoreBitsScoreNearer) {
  const std::vector<float> sample = Keys(512, 20);
  const std::vector<float> others = Keys(300, 20);
  // What equal steps of that many bits lose of a normal distribution, and a little more.
  const std::pair<int, double> limits[] = {{1, 0.45}, {2, 0.16}, {3, 0.06}, {4, 0.025}, {8, 0.001}};
  for (const auto& [bits, limit] : limits) {
    const KeyBasis basis = KeyBasis::Learn(sample, kJointDim, KeyCodeShape::Even(1, bits));
    EXPECT_LT(ErrorShare(basis, others), limit) << bits;
  }
}

TEST_F(KeyBasisTest, FewAxesKeepWhatDiffersMost) {
  std::vector<float> sample = Keys(512, 60);
  // The first half of the directions counts for little.
  for (std::size_t d = 0; d < 30; ++d) {
    for (float& number : directions[d]) number /= 20;
  }
  sample = Keys(512, 60);
  const KeyBasis basis = KeyBasis::Learn(sample, kJointDim, KeyCodeShape::Even(1, 8));
  EXPECT_LT(ErrorShare(basis, Keys(300, 60)), 0.02);
}

TEST_F(KeyBasisTest, AxesThatTheSampleDoesNotHaveAreEmpty) {
  const std::vector<float> same(kBasisTokensMin * kJointDim, 1.5F);
  const KeyBasis basis = KeyBasis::Learn(same, kJointDim, KeyCodeShape::Even(2, 4));
  for (const float number : basis.Project(std::vector<float>(kHeadDim, 1.0F), 1)) {
    EXPECT_EQ(number, 0.0F);
  }
  std::vector<std::uint8_t> codes(64);
  basis.Encode(std::vector<float>(kJointDim, 7.0F), codes);
  for (const std::uint8_t code : codes) EXPECT_EQ(code, codes[0]);
}

TEST_F(KeyBasisTest, MoreAxesThanNumbersStayEmpty) {
  const std::vector<float> sample = Keys(200, 20);
  const KeyBasis basis = KeyBasis::Learn(sample, kJointDim, KeyCodeShape::Even(3, 4));
  EXPECT_LT(ErrorShare(basis, Keys(100, 20)), 0.03);
}

TEST_F(KeyBasisTest, WhatIsNotFiniteCountsAsZero) {
  std::vector<float> sample = Keys(256, 20);
  sample[5] = std::numeric_limits<float>::infinity();
  sample[900] = std::nanf("");
  const KeyBasis basis = KeyBasis::Learn(sample, kJointDim, KeyCodeShape::Even(1, 4));
  std::vector<float> key(kJointDim, std::nanf(""));
  key[3] = std::numeric_limits<float>::infinity();
  key[4] = std::numeric_limits<float>::max();
  std::vector<std::uint8_t> codes(32);
  basis.Encode(key, codes);
  for (const std::uint8_t code : codes) EXPECT_LE(code, 15);
  EXPECT_LT(ErrorShare(basis, Keys(100, 20)), 0.1);
}

TEST_F(KeyBasisTest, ComesBackFromItsBytes) {
  const KeyCodeShape shape = KeyCodeShape::Even(1, 4);
  const KeyBasis basis = KeyBasis::Learn(Keys(256, 20), kJointDim, shape);
  std::string bytes;
  basis.Save(bytes);
  ASSERT_EQ(std::ssize(bytes), KeyBasis::SavedBytes(kJointDim, shape));
  const std::optional<KeyBasis> restored = KeyBasis::Restore(bytes, kJointDim, shape);
  ASSERT_TRUE(restored.has_value());
  const std::vector<float> keys = Keys(20, 20);
  for (std::size_t i = 0; i < 20; ++i) {
    std::vector<std::uint8_t> codes(32);
    std::vector<std::uint8_t> again(32);
    basis.Encode(std::span(keys).subspan(i * kJointDim, kJointDim), codes);
    restored->Encode(std::span(keys).subspan(i * kJointDim, kJointDim), again);
    EXPECT_EQ(codes, again);
  }
  const std::vector<float> query(kHeadDim, 0.5F);
  EXPECT_EQ(basis.Project(query, 2), restored->Project(query, 2));
  const float none = std::nanf("");
  for (const std::size_t at : {std::size_t{0}, std::size_t{kJointDim} * 4}) {
    std::string damaged = bytes;
    std::memcpy(damaged.data() + at, &none, sizeof none);
    EXPECT_FALSE(KeyBasis::Restore(damaged, kJointDim, shape).has_value());
  }
}

}  // namespace
}  // namespace cairn::compute
