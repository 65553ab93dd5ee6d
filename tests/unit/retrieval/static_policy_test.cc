#include "compute-node/retrieval/baselines/static_policy.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "compute-node/retrieval/baselines/token_scores.h"
#include "compute-node/retrieval/policy_registry.h"
#include "tests/tools/seed.h"
#include "tests/unit/retrieval/policy_driver.h"

namespace cairn::compute {
namespace {

constexpr EntryLayout kCodesLayout = {
    .layer_count = 1, .head_count = 2, .head_dim = 16, .kv_format = KvFormat::kF32};

// Keys of both heads about 16 points.
class ProductCodesTest : public testing::Test {
 protected:
  std::vector<float> Keys(std::int64_t count, float shift = 0) {
    std::normal_distribution<float> noise(0, 0.01F);
    std::vector<float> keys;
    for (std::int64_t i = 0; i < 2 * count; ++i) {
      const std::uint64_t point = random() % 16;
      for (std::size_t j = 0; j < 16; ++j) {
        keys.push_back(shift + (j == point ? 5.0F : 0.0F) + noise(random));
      }
    }
    return keys;
  }
  static void Append(ProductCodes& codes, std::int64_t first, const std::vector<float>& keys) {
    codes.Append({.first_position = first, .token_count = std::ssize(keys) / 32, .keys = keys});
  }

  const std::uint64_t seed = test::TestSeed();
  std::mt19937_64 random{seed};
};

TEST_F(ProductCodesTest, ProductsAreNearlyThoseOfTheKeys) {
  ProductCodes codes(kCodesLayout, 1);
  const std::vector<float> keys = Keys(400);
  Append(codes, 0, keys);
  EXPECT_EQ(codes.trained_count(0), 400);
  const std::vector<float> query = Keys(1);
  std::vector<float> scores(400);
  codes.Score(0, 1, std::span(query).first(16), scores);
  for (std::size_t i = 0; i < 400; ++i) {
    const float product = Dot(query.data(), keys.data() + (400 + i) * 16, 16);
    ASSERT_NEAR(scores[i], product, 0.5) << i;
  }
}

TEST_F(ProductCodesTest, NothingIsTrainedBefore64KeysAreThere) {
  ProductCodes codes(kCodesLayout, 1);
  Append(codes, 0, Keys(63));
  EXPECT_EQ(codes.trained_count(0), 0);
  Append(codes, 63, Keys(8));
  EXPECT_EQ(codes.trained_count(0), 71);
}

TEST_F(ProductCodesTest, KeysUnlikeTheFirstOnesGetTheCodesOfTheFirst) {
  ProductCodes codes(kCodesLayout, 1);
  Append(codes, 0, Keys(200));
  const std::vector<float> later = Keys(8, 100);
  Append(codes, 200, later);
  std::vector<float> query(16, 1.0F);
  std::vector<float> scores(208);
  codes.Score(0, 0, query, scores);
  for (std::size_t i = 0; i < 208; ++i) EXPECT_LT(std::abs(scores[i]), 20) << i;
  EXPECT_EQ(codes.trained_count(0), 200);
}

TEST_F(ProductCodesTest, NumbersThatAreNoneChangeNothingElse) {
  std::vector<float> keys = Keys(100);
  keys[5] = std::numeric_limits<float>::quiet_NaN();
  keys[6] = std::numeric_limits<float>::infinity();
  keys[std::size_t{40} * 16] = 1e30F;  // its square is too large
  ProductCodes codes(kCodesLayout, 1);
  Append(codes, 0, keys);
  std::vector<float> later(32, std::numeric_limits<float>::infinity());
  Append(codes, 100, later);
  std::vector<float> query(16, 1e-3F);
  std::vector<float> scores(101);
  codes.Score(0, 1, query, scores);
  for (const float score : scores) EXPECT_TRUE(std::isfinite(score));
}

TEST(StaticPolicyTest, StateWithNumbersThatCannotBeIsRefused) {
  const auto policy = MakePolicy("static-cluster", DriverOptions()).value();
  const std::vector<std::int64_t> ids = policy->keeper().NextClusterIds();
  const auto restore = [&](const std::vector<std::int64_t>& numbers) {
    const std::string state(reinterpret_cast<const char*>(numbers.data()),
                            numbers.size() * sizeof(std::int64_t));
    return policy->keeper().RestoreState({2, state, ids, 100, 100}).code();
  };
  EXPECT_EQ(restore({64, 32}), absl::StatusCode::kOk);
  const std::vector<std::vector<std::int64_t>> foreign = {
      {64}, {63, 32}, {-1, 32}, {std::int64_t{1} << 40, 32}, {64, 100},
  };
  for (const std::vector<std::int64_t>& numbers : foreign) {
    EXPECT_EQ(restore(numbers), absl::StatusCode::kInvalidArgument)
        << testing::PrintToString(numbers);
  }
}

}  // namespace
}  // namespace cairn::compute
