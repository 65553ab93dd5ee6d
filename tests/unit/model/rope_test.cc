// Angles against numbers computed beforehand, in float64 with numpy from the formulas that rope.cc
// names. That models with such angles give the right logits is model_reference_test's.
#include "compute-node/model/forward/rope.h"

#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

namespace cairn::compute {
namespace {

ModelConfig Config(std::int64_t head_dim, double base, double factor) {
  ModelConfig config;
  config.head_dim = head_dim;
  config.rope_freq_base = base;
  config.rope_frequency_scale = 1 / factor;
  return config;
}

ModelConfig YarnConfig(std::int64_t head_dim, double base, double factor, double original_context) {
  ModelConfig config = Config(head_dim, base, factor);
  config.yarn_ext_factor = 1;
  config.yarn_original_context = original_context;
  return config;
}

struct PairFrequency {
  std::size_t pair;
  double frequency;
};

void ExpectFrequencies(const RotaryAngles& angles, const std::vector<PairFrequency>& expected) {
  for (const auto& [pair, frequency] : expected) {
    EXPECT_NEAR(angles.frequencies[pair] / frequency, 1, 1e-12) << "pair " << pair;
  }
}

TEST(RotaryAnglesTest, WithoutScalingTheFrequenciesArePowersOfTheBase) {
  const RotaryAngles angles = MakeRotaryAngles(Config(64, 1e4, 1), {});
  ASSERT_EQ(angles.frequencies.size(), 32U);
  ExpectFrequencies(angles, {{0, 1.0}, {8, 0.1}, {16, 0.01}, {24, 0.001}});
  EXPECT_EQ(angles.magnitude, 1.0);
}

TEST(RotaryAnglesTest, LinearScalingAndDivisorsDivideEveryFrequency) {
  std::vector<float> divisors(32, 2.0F);
  divisors[8] = 5.0F;
  const RotaryAngles angles = MakeRotaryAngles(Config(64, 1e4, 4), divisors);
  ExpectFrequencies(angles, {{0, 0.125}, {8, 0.005}, {16, 0.00125}});
  EXPECT_EQ(angles.magnitude, 1.0);
}

// The setting of Qwen2.5 for long contexts.
TEST(RotaryAnglesTest, YarnOfQwen) {
  const RotaryAngles angles = MakeRotaryAngles(YarnConfig(128, 1e6, 4, 32768), {});
  ExpectFrequencies(angles, {{0, 1.0},
                             {23, 0.006978305848598663},  // turns 36 times: the last that is kept
                             {24, 0.005375321490790102},
                             {30, 0.0010643609812470017},
                             {31, 0.0008029597275452302},
                             {35, 0.00024625840690893863},
                             {39, 6.490394320837029e-05},
                             {40, 4.4456985250973074e-05},  // the first that is divided by 4
                             {63, 3.102344401879299e-07}});
  EXPECT_NEAR(angles.magnitude, 1.138629436111989, 1e-15);
}

TEST(RotaryAnglesTest, YarnOfAShorterHead) {
  const RotaryAngles angles = MakeRotaryAngles(YarnConfig(64, 1e4, 8, 4096), {});
  ExpectFrequencies(angles, {{0, 1.0},
                             {10, 0.056234132519034905},
                             {11, 0.03933130849285815},
                             {16, 0.005961538461538462},
                             {22, 0.00034197680962286963},
                             {23, 0.00016669017902041548},
                             {24, 0.000125},
                             {31, 1.666901790204155e-05}});
  EXPECT_NEAR(angles.magnitude, 1.2079441541679836, 1e-15);
}

// What the paper says of the two ends, whatever lies between.
TEST(RotaryAnglesTest, YarnKeepsFastPairsAndInterpolatesSlowOnes) {
  constexpr double kContext = 8192;
  constexpr double kFactor = 16;
  const RotaryAngles angles = MakeRotaryAngles(YarnConfig(128, 5e5, kFactor, kContext), {});
  const RotaryAngles plain = MakeRotaryAngles(Config(128, 5e5, 1), {});
  int kept = 0;
  int interpolated = 0;
  for (std::size_t i = 0; i < plain.frequencies.size(); ++i) {
    const double turns = kContext * plain.frequencies[i] / (2 * std::numbers::pi);
    const double ratio = angles.frequencies[i] / plain.frequencies[i];
    if (turns >= 32) {
      EXPECT_EQ(ratio, 1) << "pair " << i;
      ++kept;
    } else if (turns <= 1) {
      EXPECT_NEAR(ratio * kFactor, 1, 1e-12) << "pair " << i;
      ++interpolated;
    }
  }
  EXPECT_GT(kept, 10);
  EXPECT_GT(interpolated, 10);
}

TEST(RotaryAnglesTest, YarnTakesItsKeys) {
  ModelConfig config = YarnConfig(64, 1e4, 8, 4096);
  config.rope_magnitude = 0.5;
  EXPECT_NEAR(MakeRotaryAngles(config, {}).magnitude, 0.5 * 1.2079441541679836, 1e-15);
  // Half of what would be kept is interpolated.
  config.yarn_ext_factor = 0.5;
  ExpectFrequencies(MakeRotaryAngles(config, {}), {{0, 0.5 + 0.5 / 8}, {24, 0.000125}});
  // All pairs turn more often than that.
  config.yarn_ext_factor = 1;
  config.yarn_beta_fast = 0.001;
  config.yarn_beta_slow = 0.001;
  ExpectFrequencies(MakeRotaryAngles(config, {}), {{31, 1.666901790204155e-05 * 8}});
}

TEST(RotaryAnglesTest, YarnWithAFactorBelowOneDoesNotShrinkScores) {
  EXPECT_EQ(MakeRotaryAngles(YarnConfig(64, 1e4, 0.5, 4096), {}).magnitude, 1.0);
}

// A context shorter than one turn of the fastest pair: the range would end before it begins.
TEST(RotaryAnglesTest, YarnOfAShortContextIsFinite) {
  for (const double frequency : MakeRotaryAngles(YarnConfig(64, 1e4, 8, 1), {}).frequencies) {
    EXPECT_TRUE(std::isfinite(frequency) && frequency > 0) << frequency;
  }
}

}  // namespace
}  // namespace cairn::compute
