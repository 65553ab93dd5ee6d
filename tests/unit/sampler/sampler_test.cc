#include "compute-node/model/sampler/sampler.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cairn::compute {
namespace {

Sampler Make(const SamplerOptions& options) {
  auto sampler = Sampler::Create(options);
  EXPECT_TRUE(sampler.ok()) << sampler.status();
  return *std::move(sampler);
}

std::int32_t Draw(Sampler& sampler, const std::vector<float>& logits) {
  const auto id = sampler.Sample(logits);
  EXPECT_TRUE(id.ok()) << id.status();
  return id.value_or(-1);
}

std::vector<std::int32_t> DrawMany(Sampler& sampler, const std::vector<float>& logits, int count) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::int32_t& id : ids) {
    id = Draw(sampler, logits);
  }
  return ids;
}

TEST(SamplerTest, GreedyTakesTheLargestAndTheLowestIdAmongEquals) {
  Sampler sampler = Make({});
  EXPECT_EQ(Draw(sampler, {0.5F, 3.0F, -1.0F, 3.0F}), 1);
  EXPECT_EQ(Draw(sampler, {-5.0F, -7.0F}), 0);
}

TEST(SamplerTest, GreedyDrawsNoRandomNumber) {
  Sampler sampler = Make({});
  const std::string before = sampler.SaveState();
  Draw(sampler, {1.0F, 2.0F});
  EXPECT_EQ(sampler.SaveState(), before);
}

// These ids are the promise that a seed gives the same text on every platform: they must never
// change.
TEST(SamplerTest, ASeedGivesTheSameTokensForever) {
  const std::vector<float> logits = {1.0F, 0.5F, 0.0F, -0.5F, 2.0F, 1.5F, -3.0F, 0.25F};
  Sampler sampler = Make({.temperature = 0.8, .seed = 42});
  EXPECT_EQ(DrawMany(sampler, logits, 16),
            (std::vector<std::int32_t>{5, 4, 7, 4, 5, 4, 0, 4, 2, 5, 4, 5, 4, 0, 4, 4}));
}

TEST(SamplerTest, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = {0.0F, 1.0F, 2.0F};
  constexpr int kDraws = 100000;
  for (const double temperature : {1.0, 0.5, 2.0}) {
    Sampler sampler = Make({.temperature = temperature, .seed = 7});
    std::array<int, 3> counts{};
    for (const std::int32_t id : DrawMany(sampler, logits, kDraws)) {
      ++counts.at(static_cast<size_t>(id));
    }
    double total = 0;
    for (const float logit : logits) {
      total += std::exp(static_cast<double>(logit) / temperature);
    }
    for (size_t i = 0; i < 3; ++i) {
      const double expected = std::exp(static_cast<double>(logits[i]) / temperature) / total;
      EXPECT_NEAR(static_cast<double>(counts.at(i)) / kDraws, expected, 0.006)
          << "token " << i << " at temperature " << temperature;
    }
  }
}

TEST(SamplerTest, TopKDrawsFromTheKMostLikely) {
  const std::vector<float> logits = {0.1F, 0.4F, 0.2F, 0.3F, 0.0F};
  Sampler sampler = Make({.temperature = 1.0, .top_k = 2, .seed = 3});
  const auto ids = DrawMany(sampler, logits, 500);
  EXPECT_EQ(std::set<std::int32_t>(ids.begin(), ids.end()), (std::set<std::int32_t>{1, 3}));
}

TEST(SamplerTest, TopKOfOneIsGreedy) {
  Sampler sampler = Make({.temperature = 5.0, .top_k = 1, .seed = 3});
  for (const std::int32_t id : DrawMany(sampler, {0.1F, 0.4F, 0.2F}, 100)) {
    EXPECT_EQ(id, 1);
  }
}

TEST(SamplerTest, TopPDrawsFromTheSmallestSetThatHoldsP) {
  // Probabilities 0.5, 0.3, 0.15, 0.05, out of order.
  const std::vector<float> logits = {std::log(0.15F), std::log(0.5F), std::log(0.05F),
                                     std::log(0.3F)};
  const std::map<double, std::set<std::int32_t>> expected = {
      {0.001, {1}},      {0.49, {1}},          {0.51, {1, 3}},     {0.79, {1, 3}},
      {0.81, {0, 1, 3}}, {0.97, {0, 1, 2, 3}}, {1.0, {0, 1, 2, 3}}};
  for (const auto& [top_p, ids] : expected) {
    Sampler sampler = Make({.temperature = 1.0, .top_p = top_p, .seed = 11});
    const auto drawn = DrawMany(sampler, logits, 2000);
    EXPECT_EQ(std::set<std::int32_t>(drawn.begin(), drawn.end()), ids) << "top_p " << top_p;
  }
}

TEST(SamplerTest, TopPAppliesToWhatTopKLeaves) {
  // Of tokens 0 and 1 (top-k 2), token 0 has 5/8 of the probability.
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), std::log(0.2F)};
  Sampler sampler = Make({.temperature = 1.0, .top_k = 2, .top_p = 0.6, .seed = 1});
  for (const std::int32_t id : DrawMany(sampler, logits, 300)) {
    EXPECT_EQ(id, 0);
  }
}

TEST(SamplerTest, ExtremeLogitsAndTemperatures) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Sampler cold = Make({.temperature = 1e-300, .seed = 1});
  EXPECT_EQ(Draw(cold, {1.0F, 2.0F, 3e38F, -3e38F}), 2);
  Sampler warm = Make({.temperature = 100.0, .seed = 1});
  for (const std::int32_t id : DrawMany(warm, {nan, 1.0F, -infinity}, 50)) {
    EXPECT_EQ(id, 1);
  }
}

TEST(SamplerTest, LogitsWithoutAFiniteLargestAreAnError) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const double temperature : {0.0, 1.0}) {
    Sampler sampler = Make({.temperature = temperature});
    for (const std::vector<float>& logits :
         std::vector<std::vector<float>>{{}, {nan, nan}, {-infinity}, {1.0F, infinity}}) {
      EXPECT_EQ(sampler.Sample(logits).status().code(), absl::StatusCode::kInternal);
    }
  }
}

TEST(SamplerTest, ARestoredStateContinuesTheSequence) {
  const std::vector<float> logits(64, 0.0F);
  const SamplerOptions options = {.temperature = 1.0, .seed = 5};
  Sampler original = Make(options);
  DrawMany(original, logits, 10);
  const std::string state = original.SaveState();
  const auto expected = DrawMany(original, logits, 20);

  Sampler restored = Make({.temperature = 1.0, .seed = 999});
  ASSERT_TRUE(restored.RestoreState(state).ok());
  EXPECT_EQ(DrawMany(restored, logits, 20), expected);
}

TEST(SamplerTest, BadStatesAreRefusedAndChangeNothing) {
  Sampler sampler = Make({.temperature = 1.0, .seed = 5});
  const std::string good = sampler.SaveState();
  std::string zero = good;
  std::fill(zero.begin() + 4, zero.end(), '\0');
  std::string other = good;
  other[0] = 'X';
  for (const std::string& bad : {std::string(), good.substr(1), good + "x", zero, other}) {
    EXPECT_EQ(sampler.RestoreState(bad).code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_EQ(sampler.SaveState(), good);
}

TEST(SamplerTest, OptionsOutOfRangeAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const SamplerOptions& options : std::vector<SamplerOptions>{{.temperature = -0.1},
                                                                   {.temperature = 101},
                                                                   {.temperature = nan},
                                                                   {.top_k = -1},
                                                                   {.top_k = 1 << 30},
                                                                   {.top_p = 0.0},
                                                                   {.top_p = 1.5},
                                                                   {.top_p = nan},
                                                                   {.typical_p = 0.0},
                                                                   {.typical_p = 1.5},
                                                                   {.typical_p = nan},
                                                                   {.min_p = -0.1},
                                                                   {.min_p = 1.5},
                                                                   {.min_p = nan}}) {
    EXPECT_EQ(Sampler::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace cairn::compute
