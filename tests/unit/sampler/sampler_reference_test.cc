// The sampler against reference_sampler.h: random logits, random options, token for token.
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "compute-node/model/sampler/sampler_weight.h"
#include "tests/tools/seed.h"
#include "tests/unit/sampler/reference_sampler.h"

namespace cairn::compute {
namespace {

constexpr int kStepsOfARound = 12;

// Peaked, flat, with equal logits, with some that are no number.
std::vector<float> RandomLogits(test::Rng& rng, std::size_t count) {
  std::vector<float> logits(count);
  const float spread = static_cast<float>(rng.Below(80)) * 0.1F;
  const bool coarse = rng.Below(3) == 0;
  const bool broken = rng.Below(5) == 0;
  for (float& logit : logits) {
    logit = rng.Normal() * spread;
    if (coarse) logit = std::round(logit);
    if (broken && rng.Below(7) == 0) {
      logit = rng.Below(2) == 0 ? std::numeric_limits<float>::quiet_NaN()
                                : -std::numeric_limits<float>::infinity();
    }
  }
  logits[rng.Below(count)] = spread * 2;  // some number is there always
  return logits;
}

double Share(test::Rng& rng) { return static_cast<double>(1 + rng.Below(999)) / 1000.0; }

SamplerOptions RandomOptions(test::Rng& rng, std::size_t vocab) {
  SamplerOptions options;
  options.temperature = 0.1 + static_cast<double>(rng.Below(30)) / 10.0;
  options.seed = rng.Next();
  if (rng.Below(2) == 0) options.top_k = static_cast<std::int32_t>(1 + rng.Below(vocab + 5));
  if (rng.Below(2) == 0) options.top_p = Share(rng);
  if (rng.Below(3) == 0) options.typical_p = Share(rng);
  if (rng.Below(2) == 0) options.min_p = Share(rng) * Share(rng);
  return options;
}

PenaltyOptions RandomPenalties(test::Rng& rng, std::size_t vocab) {
  PenaltyOptions options;
  // No tenths: tokens a rounding error apart would be put in one order here, in another there.
  const auto eighths = [&rng](std::uint64_t bound) {
    return static_cast<double>(rng.Below(bound)) / 8.0;
  };
  if (rng.Below(2) == 0) options.repetition_penalty = 0.5 + eighths(20);
  if (rng.Below(2) == 0) options.presence_penalty = eighths(33) - 2;
  if (rng.Below(2) == 0) options.frequency_penalty = eighths(33) - 2;
  options.penalty_last_tokens = static_cast<std::int32_t>(rng.Below(12)) - 1;
  const std::size_t step = 1 + rng.Below(vocab);
  if (rng.Below(2) == 0) {
    for (std::size_t id = rng.Below(vocab);
         id < vocab && std::ssize(options.logit_bias) < kLogitBiasCountMax; id += step) {
      const double bias = rng.Below(4) == 0 ? -100.0 : eighths(80) - 5;
      options.logit_bias.push_back({static_cast<std::int32_t>(id), bias});
    }
  }
  if (std::ssize(options.logit_bias) == static_cast<std::ptrdiff_t>(vocab)) {
    options.logit_bias.pop_back();
  }
  return options;
}

std::string Describe(const SamplerOptions& options) {
  const PenaltyOptions& penalties = options.penalties;
  return fmt::format(
      "temperature {} top_k {} typical_p {} top_p {} min_p {} repetition {} presence {} frequency "
      "{} last {} biases {}",
      options.temperature, options.top_k, options.typical_p, options.top_p, options.min_p,
      penalties.repetition_penalty, penalties.presence_penalty, penalties.frequency_penalty,
      penalties.penalty_last_tokens, penalties.logit_bias.size());
}

// Some steps of a text whose logits are new at each step.
void CompareRound(test::Rng& rng, bool with_penalties, bool greedy) {
  const std::size_t vocab = 1 + rng.Below(rng.Below(4) == 0 ? 3000 : 60);
  SamplerOptions options = RandomOptions(rng, vocab);
  if (with_penalties) options.penalties = RandomPenalties(rng, vocab);
  if (greedy) options.temperature = 0;
  std::vector<std::int32_t> history(rng.Below(20));
  for (std::int32_t& id : history) id = static_cast<std::int32_t>(rng.Below(vocab));
  Sampler sampler = Sampler::Create(options).value();
  sampler.Observe(history);
  ReferenceDraw draw(options.seed);
  for (int step = 0; step < kStepsOfARound; ++step) {
    const std::vector<float> logits = RandomLogits(rng, vocab);
    const std::vector<float> changed = ReferencePenalties(logits, options.penalties, history);
    const auto id = sampler.Sample(logits);
    SamplerOptions reference = options;
    // Greedy is what a single most likely token leaves to draw.
    if (greedy) reference = {.temperature = 1, .top_k = 1};
    const std::vector<ReferenceToken> tokens = ReferenceTokens(changed, reference);
    if (tokens.empty()) {
      EXPECT_FALSE(id.ok());
      return;
    }
    ASSERT_TRUE(id.ok()) << Message(id.status());
    ASSERT_EQ(*id, greedy ? tokens[0].id : draw(tokens))
        << "step " << step << " of " << vocab << " tokens, " << Describe(options);
    history.push_back(*id);
  }
}

TEST(SamplerReferenceTest, EveryTokenIsTheReferences) {
  test::Rng rng(test::TestSeed());
  for (int round = 0; round < 2000 && !testing::Test::HasFatalFailure(); ++round) {
    CompareRound(rng, round % 2 == 0, round % 8 == 0);
  }
}

TEST(SamplerReferenceTest, AWholeVocabularyIsTheReferencesToo) {
  test::Rng rng(test::TestSeed());
  for (int round = 0; round < 12; ++round) {
    const std::size_t vocab = 152064;
    SamplerOptions options = RandomOptions(rng, vocab);
    if (round % 3 == 0) options.top_k = static_cast<std::int32_t>(1 + rng.Below(100));
    std::vector<float> logits = RandomLogits(rng, vocab);
    Sampler sampler = Sampler::Create(options).value();
    ReferenceDraw draw(options.seed);
    const std::vector<ReferenceToken> tokens = ReferenceTokens(logits, options);
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(sampler.Sample(logits).value(), draw(tokens)) << Describe(options);
    }
  }
}

TEST(SamplerReferenceTest, WeightsAreTheExactOnes) {
  test::Rng rng(test::TestSeed());
  constexpr int kCount = 2000000;
  for (int i = 0; i < kCount; ++i) {
    const double x =
        -std::ldexp(static_cast<double>(rng.Next() >> 11), -53) * (i % 4 == 0 ? 1 : 30);
    ASSERT_EQ(SamplerWeight(x), ReferenceWeight(x)) << fmt::format("{:.17g}", x);
  }
  for (const double x : {0.0, -1e-300, -1e-13, -27.725, -27.7259, -27.75, -28.0, -1e30,
                         -std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(SamplerWeight(x), ReferenceWeight(x)) << x;
  }
  EXPECT_EQ(SamplerWeight(0.0), std::uint64_t{1} << 40);
}

// Against probabilities from the library's exp, in no way connected with weights.
TEST(SamplerReferenceTest, FrequenciesFollowTheFilteredDistribution) {
  constexpr int kDraws = 60000;
  const std::vector<float> logits = {0.0F, 2.0F, 1.0F, -1.0F, 1.5F, 0.5F};
  // At temperature 2 the probabilities are, from the most likely on: tokens 1, 4, 2, 5, 0, 3:
  // 0.289 0.225 0.175 0.137 0.106 0.065.
  struct Case {
    SamplerOptions options;
    std::vector<std::size_t> kept;
  };
  const std::vector<Case> cases = {
      {{.temperature = 2, .min_p = 0.5, .seed = 3}, {1, 4, 2}},
      {{.temperature = 2, .min_p = 0.45, .seed = 3}, {1, 4, 2, 5}},
      // Entropy 1.69; surprises 1.24 1.49 1.74 1.99 2.24 2.74: token 2 is the most typical, then 4.
      {{.temperature = 2, .typical_p = 0.17, .seed = 3}, {2}},
      {{.temperature = 2, .typical_p = 0.39, .seed = 3}, {2, 4}},
      {{.temperature = 2, .typical_p = 0.5, .seed = 3}, {2, 4, 5}},
      {{.temperature = 2, .typical_p = 0.6, .seed = 3}, {1, 2, 4, 5}},
      {{.temperature = 2, .top_k = 5, .top_p = 0.8, .min_p = 0.7, .seed = 3}, {1, 4}},
  };
  for (const Case& test : cases) {
    double total = 0;
    for (const std::size_t id : test.kept) total += std::exp(static_cast<double>(logits[id]) / 2);
    Sampler sampler = Sampler::Create(test.options).value();
    std::map<std::size_t, int> counts;
    for (int i = 0; i < kDraws; ++i) {
      ++counts[static_cast<std::size_t>(sampler.Sample(logits).value())];
    }
    EXPECT_EQ(counts.size(), test.kept.size()) << Describe(test.options);
    for (const std::size_t id : test.kept) {
      EXPECT_NEAR(static_cast<double>(counts[id]) / kDraws,
                  std::exp(static_cast<double>(logits[id]) / 2) / total, 0.01)
          << id << ": " << Describe(test.options);
    }
  }
}

}  // namespace
}  // namespace cairn::compute
