#include "compute-node/model/sampler/log_probabilities.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/tools/rng.h"
#include "tests/tools/seed.h"

namespace cairn::compute {
namespace {

std::vector<std::int32_t> Ids(const std::vector<TokenLogProbability>& tokens) {
  std::vector<std::int32_t> ids;
  ids.reserve(tokens.size());
  for (const TokenLogProbability& token : tokens) ids.push_back(token.id);
  return ids;
}

TEST(LogProbabilitiesTest, AreLogarithmsOfTheSoftmax) {
  const std::vector<float> logits = {std::log(0.5F), std::log(0.125F), std::log(0.375F)};
  const LogProbabilities result = ComputeLogProbabilities(logits, 1, 2);
  EXPECT_EQ(result.chosen.id, 1);
  EXPECT_NEAR(result.chosen.value, std::log(0.125), 1e-6);
  EXPECT_EQ(Ids(result.top), (std::vector<std::int32_t>{0, 2}));
  EXPECT_NEAR(result.top[0].value, std::log(0.5), 1e-6);
  EXPECT_NEAR(result.top[1].value, std::log(0.375), 1e-6);
  EXPECT_TRUE(ComputeLogProbabilities(logits, 1, 0).top.empty());
}

TEST(LogProbabilitiesTest, EqualTokensComeInTheOrderOfTheirIds) {
  const std::vector<float> logits = {1, 2, 1, 2, 1, 2};
  EXPECT_EQ(Ids(ComputeLogProbabilities(logits, 0, 4).top),
            (std::vector<std::int32_t>{1, 3, 5, 0}));
}

TEST(LogProbabilitiesTest, LogitsWithoutAProbabilityAreLeftOut) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const LogProbabilities result =
      ComputeLogProbabilities(std::vector<float>{nan, 1e30F, -infinity, nan}, 1, 20);
  EXPECT_EQ(result.chosen.value, 0.0F);
  EXPECT_EQ(Ids(result.top), (std::vector<std::int32_t>{1}));
}

TEST(LogProbabilitiesTest, AWholeVocabularySumsToOneAndTheTopIsSorted) {
  test::Rng rng(test::TestSeed());
  std::vector<float> logits(50000);
  for (float& logit : logits) logit = std::round(rng.Normal() * 400) / 100;
  double sum = 0;
  for (std::int32_t id = 0; id < 50000; id += 2500) {
    sum += std::exp(static_cast<double>(ComputeLogProbabilities(logits, id, 0).chosen.value));
  }
  double expected = 0;
  double total = 0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    total += std::exp(static_cast<double>(logits[id]));
    if (id % 2500 == 0) expected += std::exp(static_cast<double>(logits[id]));
  }
  EXPECT_NEAR(sum, expected / total, 1e-6 * sum);
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  order.resize(20);
  EXPECT_EQ(Ids(ComputeLogProbabilities(logits, 0, 20).top), order);
}

}  // namespace
}  // namespace cairn::compute
