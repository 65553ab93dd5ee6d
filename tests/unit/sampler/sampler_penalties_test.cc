#include "compute-node/model/sampler/sampler_penalties.h"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "compute-node/model/sampler/sampler.h"

namespace cairn::compute {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<float> Applied(const PenaltyOptions& options, const std::vector<std::int32_t>& history,
                           std::vector<float> logits) {
  EXPECT_TRUE(options.Validate().ok());
  SamplerPenalties penalties(options);
  penalties.Add(history);
  penalties.Apply(logits);
  return logits;
}

TEST(SamplerPenaltiesTest, RepetitionMakesBothSignsLessLikely) {
  EXPECT_EQ(Applied({.repetition_penalty = 2.0}, {0, 1, 1}, {4.0F, -3.0F, 5.0F}),
            (std::vector<float>{2.0F, -6.0F, 5.0F}));
}

TEST(SamplerPenaltiesTest, FrequencyCountsAndPresenceDoesNot) {
  const std::vector<float> logits = {1.0F, 1.0F, 1.0F};
  EXPECT_EQ(Applied({.frequency_penalty = 0.5}, {0, 1, 1, 1}, logits),
            (std::vector<float>{0.5F, -0.5F, 1.0F}));
  EXPECT_EQ(Applied({.presence_penalty = 0.5}, {0, 1, 1, 1}, logits),
            (std::vector<float>{0.5F, 0.5F, 1.0F}));
  EXPECT_EQ(Applied({.presence_penalty = -2.0}, {0}, logits),
            (std::vector<float>{3.0F, 1.0F, 1.0F}));
}

TEST(SamplerPenaltiesTest, BiasComesBeforeRepetitionAndThatBeforeTheSums) {
  EXPECT_EQ(Applied({.repetition_penalty = 2.0,
                     .presence_penalty = 1.0,
                     .frequency_penalty = 0.25,
                     .logit_bias = {{0, 3.0}}},
                    {0, 0}, {1.0F, 1.0F}),
            (std::vector<float>{(1.0F + 3.0F) / 2 - 0.5F - 1.0F, 1.0F}));
}

TEST(SamplerPenaltiesTest, OnlyTheNewestTokensCount) {
  const std::vector<float> logits = {0.0F, 0.0F, 0.0F, 0.0F};
  PenaltyOptions options{.presence_penalty = 1.0, .penalty_last_tokens = 2};
  EXPECT_EQ(Applied(options, {0, 1, 2, 3}, logits), (std::vector<float>{0, 0, -1, -1}));
  SamplerPenalties penalties(options);
  for (const std::int32_t id : {0, 0, 1, 2, 0}) penalties.Add({&id, 1});
  std::vector<float> one_by_one = logits;
  penalties.Apply(one_by_one);
  EXPECT_EQ(one_by_one, (std::vector<float>{-1, 0, -1, 0}));
  options.penalty_last_tokens = -1;
  EXPECT_EQ(Applied(options, {0, 1, 2, 3}, logits), (std::vector<float>{-1, -1, -1, -1}));
  options.penalty_last_tokens = 0;
  EXPECT_EQ(Applied(options, {0, 1, 2, 3}, logits), logits);
}

TEST(SamplerPenaltiesTest, TellsHowMuchOfTheHistoryItNeeds) {
  EXPECT_EQ(PenaltyOptions{}.HistoryTokens(), 0);
  EXPECT_EQ((PenaltyOptions{.logit_bias = {{1, 1.0}}}.HistoryTokens()), 0);
  EXPECT_EQ((PenaltyOptions{.repetition_penalty = 1.1}.HistoryTokens()), 64);
  EXPECT_EQ((PenaltyOptions{.presence_penalty = 1, .penalty_last_tokens = 9}.HistoryTokens()), 9);
  EXPECT_GT((PenaltyOptions{.frequency_penalty = 1, .penalty_last_tokens = -1}.HistoryTokens()),
            std::int64_t{1} << 40);
}

TEST(SamplerPenaltiesTest, BansWhatHasABiasOfMinus100) {
  const std::vector<float> logits = {500.0F, 1.0F, 2.0F};
  for (const double bias : {-100.0, -1000.0, -std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(Applied({.logit_bias = {{0, bias}}}, {}, logits),
              (std::vector<float>{-kInfinity, 1.0F, 2.0F}));
  }
  EXPECT_EQ(Applied({.logit_bias = {{0, -99.5}, {2, 100}}}, {}, logits),
            (std::vector<float>{400.5F, 1.0F, 102.0F}));
}

TEST(SamplerPenaltiesTest, GreedyDecodingHasThemToo) {
  const std::vector<float> logits = {1.0F, 3.0F, 2.9F, 2.8F};
  Sampler sampler =
      Sampler::Create({.penalties = {.presence_penalty = 1.0, .logit_bias = {{2, -100}}}}).value();
  std::vector<std::int32_t> ids(4);
  for (std::int32_t& id : ids) id = sampler.Sample(logits).value();
  EXPECT_EQ(ids, (std::vector<std::int32_t>{1, 3, 1, 1}));
}

TEST(SamplerPenaltiesTest, BanningEveryTokenIsTheRequestsFault) {
  for (const double temperature : {0.0, 1.0}) {
    Sampler sampler = Sampler::Create({.temperature = temperature,
                                       .penalties = {.logit_bias = {{0, -100}, {1, -100}}}})
                          .value();
    const auto id = sampler.Sample(std::vector<float>{1.0F, 2.0F});
    EXPECT_EQ(id.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(id.status().message().find("logit_bias leaves none of 2 tokens"), std::string::npos);
    EXPECT_EQ(sampler.Sample(std::vector<float>{1.0F, kInfinity}).status().code(),
              absl::StatusCode::kInternal);
  }
}

TEST(SamplerPenaltiesTest, OptionsOutOfRangeAreRefusedWithTheirName) {
  std::vector<LogitBias> many(1025);
  for (std::size_t i = 0; i < many.size(); ++i) many[i].id = static_cast<std::int32_t>(i);
  const std::vector<std::pair<std::string_view, PenaltyOptions>> cases = {
      {"repetition_penalty is 0,", {.repetition_penalty = 0}},
      {"repetition_penalty is 10.5,", {.repetition_penalty = 10.5}},
      {"repetition_penalty is nan,", {.repetition_penalty = kNan}},
      {"presence_penalty is 2.5,", {.presence_penalty = 2.5}},
      {"presence_penalty is nan,", {.presence_penalty = kNan}},
      {"frequency_penalty is -2.5,", {.frequency_penalty = -2.5}},
      {"frequency_penalty is nan,", {.frequency_penalty = kNan}},
      {"penalty_last_tokens is -2,", {.penalty_last_tokens = -2}},
      {"penalty_last_tokens is 16777217,", {.penalty_last_tokens = (1 << 24) + 1}},
      {"token -1:", {.logit_bias = {{-1, 0.0}}}},
      {"token 4194304:", {.logit_bias = {{1 << 22, 0.0}}}},
      {"of token 3 is 100.5", {.logit_bias = {{3, 100.5}}}},
      {"of token 3 is nan", {.logit_bias = {{3, kNan}}}},
      {"token 3 twice", {.logit_bias = {{3, 1.0}, {3, 1.0}}}},
      {"1025 tokens", {.logit_bias = many}},
  };
  for (const auto& [words, options] : cases) {
    const absl::Status status = options.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << words;
    EXPECT_NE(status.message().find({words.data(), words.size()}), std::string::npos)
        << status.message();
    EXPECT_FALSE(Sampler::Create({.penalties = options}).ok());
  }
  many.pop_back();
  EXPECT_TRUE(PenaltyOptions{.logit_bias = many}.Validate().ok());
}

}  // namespace
}  // namespace cairn::compute
