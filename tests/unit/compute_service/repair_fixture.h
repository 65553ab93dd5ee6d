// What tests of conversations that are computed again have in common.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/seed.h"
#include "tests/unit/compute_service/inference_service_fixture.h"

namespace cairn::compute {

using Tokens = std::vector<std::int32_t>;

inline bool Contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// What is common to the tests over a fake and those over an engine.
class RepairTest : public InferenceServiceTest {
 protected:
  Tokens SomeTokens(std::int64_t count) {
    Tokens tokens(static_cast<std::size_t>(count));
    for (std::int32_t& token : tokens) token = 3 + static_cast<std::int32_t>(random_() % 500);
    return tokens;
  }
  static v1::GenerateRequest Request(std::int64_t conversation_id, const Tokens& prompt,
                                     std::int32_t tokens_max) {
    v1::GenerateRequest request;
    request.set_conversation_id(conversation_id);
    request.mutable_tokens()->mutable_ids()->Assign(prompt.begin(), prompt.end());
    request.set_tokens_max(tokens_max);
    request.set_ignore_eos(true);
    request.set_logprobs(true);
    return request;
  }
  grpc::Status Run(std::int64_t conversation_id, const Tokens& prompt, std::int32_t tokens_max) {
    return Generate(Request(conversation_id, prompt, tokens_max));
  }
  // A new conversation of two turns, with random numbers that go on. Returns its id.
  std::int64_t Make(const Tokens& prompt, const std::string& policy = "") {
    v1::GenerateRequest request = Request(0, prompt, 5);
    request.mutable_sampling()->set_temperature(1);
    request.mutable_sampling()->set_seed(7);
    request.mutable_retrieval()->set_policy(policy);
    request.set_label("a label");
    EXPECT_TRUE(Generate(request).ok());
    return Started().conversation_id();
  }
  // Draws with the random numbers of the turn before.
  grpc::Status GoOn(std::int64_t conversation_id, const Tokens& prompt) {
    v1::GenerateRequest request = Request(conversation_id, prompt, 8);
    request.mutable_sampling()->set_temperature(1);
    return Generate(request);
  }
  v1::Started Started() const {
    v1::Started started;
    int count = 0;
    for (const v1::GenerateEvent& event : events_) {
      if (event.has_started()) started = event.started();
      count += event.has_started() ? 1 : 0;
    }
    EXPECT_EQ(count, 1);
    return started;
  }
  std::vector<float> LogProbabilities() const {
    std::vector<float> values;
    for (const v1::GenerateEvent& event : events_) {
      if (event.has_token()) values.push_back(event.token().logprob().logprob());
    }
    return values;
  }
  std::vector<v1::Recomputing> Recomputings() const {
    std::vector<v1::Recomputing> found;
    for (const v1::GenerateEvent& event : events_) {
      if (event.has_recomputing()) found.push_back(event.recomputing());
    }
    return found;
  }
  // The last turn computed `token_count` tokens again, and said so before its first token.
  void ExpectRecomputed(std::int64_t token_count) const {
    const std::vector<v1::Recomputing> told = Recomputings();
    ASSERT_GE(told.size(), 2U);
    EXPECT_FALSE(told.front().reason().empty());
    EXPECT_EQ(told.front().done_token_count(), 0);
    EXPECT_EQ(told.back().done_token_count(), token_count);
    EXPECT_EQ(told.back().token_count(), token_count);
    bool has_token = false;
    for (const v1::GenerateEvent& event : events_) {
      EXPECT_FALSE(has_token && event.has_recomputing());
      has_token = has_token || event.has_token();
    }
    EXPECT_EQ(std::count_if(told.begin(), told.end(),
                            [](const v1::Recomputing& each) { return !each.reason().empty(); }),
              1);
  }
  std::vector<v1::Conversation> List() {
    v1::ListConversationsResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->ListConversations(&context, {}, &response).ok());
    return {response.conversations().begin(), response.conversations().end()};
  }

  std::mt19937_64 random_{test::TestSeed()};
};

}  // namespace cairn::compute
