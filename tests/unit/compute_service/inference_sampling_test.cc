// How tokens are chosen and what is told about them, through InferenceService.
#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include "tests/unit/compute_service/inference_service_fixture.h"

namespace cairn::compute {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using InferenceSamplingTest = InferenceServiceTest;

TEST_F(InferenceSamplingTest, SamplingOutOfRangeIsRefusedWithNameValueAndLimits) {
  LoadModel();
  using Sampling = v1::Sampling;
  const auto bias = [](Sampling& s, std::int32_t id, float value) {
    s.add_logit_bias()->set_id(id);
    s.mutable_logit_bias()->rbegin()->set_bias(value);
  };
  const std::vector<std::pair<std::string, std::function<void(Sampling&)>>> cases = {
      {"sampling: min_p is 1.5, expected 0", [](Sampling& s) { s.set_min_p(1.5F); }},
      {"min_p is nan", [](Sampling& s) { s.set_min_p(kNan); }},
      {"typical_p is -1, expected above 0", [](Sampling& s) { s.set_typical_p(-1); }},
      {"typical_p is nan", [](Sampling& s) { s.set_typical_p(kNan); }},
      {"repetition_penalty is 11, expected 0.1 to 10",
       [](Sampling& s) { s.set_repetition_penalty(11); }},
      {"repetition_penalty is nan", [](Sampling& s) { s.set_repetition_penalty(kNan); }},
      {"presence_penalty is 3, expected -2 to 2", [](Sampling& s) { s.set_presence_penalty(3); }},
      {"frequency_penalty is -3, expected -2 to 2",
       [](Sampling& s) { s.set_frequency_penalty(-3); }},
      {"penalty_last_tokens is -2, expected -1",
       [](Sampling& s) { s.set_penalty_last_tokens(-2); }},
      {"logit_bias has token 512: ids are 0 to 511", [&](Sampling& s) { bias(s, 512, 1); }},
      {"logit_bias has token -1: ids are 0 to 511", [&](Sampling& s) { bias(s, -1, 1); }},
      {"logit_bias of token 5 is 101: it must be at most 100",
       [&](Sampling& s) { bias(s, 5, 101); }},
      {"logit_bias of token 5 is nan", [&](Sampling& s) { bias(s, 5, kNan); }},
      {"logit_bias has token 5 twice",
       [&](Sampling& s) {
         bias(s, 5, 1);
         bias(s, 5, 2);
       }},
      {"logit_bias has 1025 tokens: at most 1024",
       [&](Sampling& s) {
         for (int i = 0; i < 1025; ++i) bias(s, i % 512, 1);
       }},
  };
  for (const auto& [words, change] : cases) {
    v1::GenerateRequest request;
    request.set_text("hello");
    change(*request.mutable_sampling());
    const grpc::Status status = Generate(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << words;
    EXPECT_NE(status.error_message().find(words), std::string::npos) << status.error_message();
  }
  EXPECT_TRUE(node_->sessions.empty());
}

TEST_F(InferenceSamplingTest, EverySamplingFieldReachesTheSampler) {
  LoadModel();
  v1::GenerateRequest plain = RandomRequest();
  ASSERT_TRUE(Generate(plain).ok());
  const std::vector<std::int32_t> ids = Ids();
  ASSERT_TRUE(Generate(plain).ok());
  EXPECT_EQ(Ids(), ids);
  using Sampling = v1::Sampling;
  const std::vector<std::function<void(Sampling&)>> changes = {
      [](Sampling& s) { s.set_min_p(1); },
      [](Sampling& s) { s.set_typical_p(0.01F); },
      [](Sampling& s) { s.set_repetition_penalty(9); },
      [](Sampling& s) { s.set_presence_penalty(2); },
      [](Sampling& s) { s.set_frequency_penalty(2); },
      [&](Sampling& s) {
        s.add_logit_bias()->set_id(ids[0]);
        s.mutable_logit_bias(0)->set_bias(-std::numeric_limits<float>::infinity());
      },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    v1::GenerateRequest changed = plain;
    changes[i](*changed.mutable_sampling());
    ASSERT_TRUE(Generate(changed).ok());
    EXPECT_NE(Ids(), ids) << i;
  }
  // What is written as its default is the default.
  v1::GenerateRequest same = plain;
  same.mutable_sampling()->set_typical_p(1);
  same.mutable_sampling()->set_repetition_penalty(1);
  same.mutable_sampling()->set_penalty_last_tokens(-1);
  ASSERT_TRUE(Generate(same).ok());
  EXPECT_EQ(Ids(), ids);
}

TEST_F(InferenceSamplingTest, BanningEveryTokenIsTheRequestsFault) {
  LoadModel();
  EXPECT_EQ(CodeFor([](v1::GenerateRequest& r) {
              for (int i = 0; i < 512; ++i) {
                v1::LogitBias& bias = *r.mutable_sampling()->add_logit_bias();
                bias.set_id(i);
                bias.set_bias(-100);
              }
            }),
            grpc::StatusCode::INVALID_ARGUMENT);
}

// A conversation in two turns is one in a single turn, to the penalties as well.
TEST_F(InferenceSamplingTest, PenaltiesCountTheConversationsStoredTokens) {
  LoadModel();
  for (const std::int32_t last : {0, 30, -1}) {
    v1::GenerateRequest whole = RandomRequest();
    whole.mutable_sampling()->set_repetition_penalty(8);
    whole.mutable_sampling()->set_penalty_last_tokens(last);
    whole.clear_text();
    for (int i = 0; i < 80; ++i) whole.mutable_tokens()->add_ids(3 + i * 7 % 500);
    ASSERT_TRUE(Generate(whole).ok());
    const std::vector<std::int32_t> expected = Ids();

    v1::GenerateRequest first = whole;
    first.set_tokens_max(-1);
    first.mutable_tokens()->mutable_ids()->Truncate(77);
    ASSERT_TRUE(Generate(first).ok());
    v1::GenerateRequest second = whole;
    second.mutable_tokens()->mutable_ids()->erase(second.tokens().ids().begin(),
                                                  second.tokens().ids().begin() + 77);
    second.set_conversation_id(events_.front().started().conversation_id());
    ASSERT_TRUE(Generate(second).ok());
    EXPECT_EQ(Ids(), expected) << last;
  }
}

TEST_F(InferenceSamplingTest, LogProbabilitiesComeOnlyOnRequest) {
  LoadModel();
  v1::GenerateRequest request = RandomRequest();
  ASSERT_TRUE(Generate(request).ok());
  for (const v1::GenerateEvent& event : events_) EXPECT_FALSE(event.token().has_logprob());
  const std::vector<std::int32_t> ids = Ids();
  request.set_logprobs(true);
  ASSERT_TRUE(Generate(request).ok());
  for (const v1::GenerateEvent& event : events_) {
    EXPECT_EQ(event.token().has_logprob(), event.has_token());
    EXPECT_EQ(event.token().top_logprobs_size(), 0);
  }
  request.set_top_logprob_count(4);
  ASSERT_TRUE(Generate(request).ok());
  EXPECT_EQ(Ids(), ids);
  const std::shared_ptr<Runtime> runtime = state_.runtime().value();
  for (const v1::GenerateEvent& event : events_) {
    if (!event.has_token()) continue;
    const v1::TokenLogprob& chosen = event.token().logprob();
    EXPECT_EQ(chosen.id(), event.token().id());
    EXPECT_EQ(chosen.text(), runtime->tokenizer->DecodePiece(chosen.id(), true));
    EXPECT_LT(chosen.logprob(), 0);
    ASSERT_EQ(event.token().top_logprobs_size(), 4);
    float before = 0;
    for (const v1::TokenLogprob& token : event.token().top_logprobs()) {
      EXPECT_EQ(token.text(), runtime->tokenizer->DecodePiece(token.id(), true));
      EXPECT_LE(token.logprob(), before);
      before = token.logprob();
      if (token.id() == chosen.id()) {
        EXPECT_EQ(token.logprob(), chosen.logprob());
      }
    }
    EXPECT_LE(chosen.logprob(), event.token().top_logprobs(0).logprob());
  }
}

TEST_F(InferenceSamplingTest, LastEventTellsAllThatWasUsed) {
  LoadModel();
  v1::GenerateRequest request = RandomRequest();
  ASSERT_TRUE(Generate(request).ok());
  const v1::Started started = events_.front().started();
  const v1::Finished first = events_.back().finished();
  EXPECT_EQ(first.prompt_token_count(), started.prompt_token_count());
  EXPECT_GT(first.prompt_token_count(), 0);
  EXPECT_EQ(first.reused_token_count(), 0);
  EXPECT_EQ(first.conversation_token_count(),
            first.prompt_token_count() + first.generated_token_count());
  ASSERT_TRUE(first.has_queue_time());
  const auto ns = [](const google::protobuf::Duration& time) {
    return time.seconds() * 1'000'000'000 + time.nanos();
  };
  EXPECT_GT(ns(first.queue_time()), 0);
  EXPECT_GE(ns(first.first_token_time()), ns(first.queue_time()) + ns(first.prefill_time()));
  EXPECT_GT(ns(first.decode_time()), 0);
  request.set_conversation_id(started.conversation_id());
  ASSERT_TRUE(Generate(request).ok());
  EXPECT_EQ(events_.back().finished().reused_token_count(), first.conversation_token_count());
  EXPECT_EQ(events_.back().finished().prompt_token_count(),
            events_.front().started().prompt_token_count());
}

}  // namespace
}  // namespace cairn::compute
