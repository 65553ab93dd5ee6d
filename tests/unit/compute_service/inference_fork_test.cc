// Conversations that begin with the tokens of another one, through InferenceService and an engine
// in memory.
#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "compute-node/kv_client/in_process_kv_node.h"
#include "tests/tools/seed.h"
#include "tests/unit/compute_service/inference_service_fixture.h"

namespace cairn::compute {
namespace {

using Tokens = std::vector<std::int32_t>;

class InferenceForkTest : public InferenceServiceTest {
 protected:
  // What a turn gives: tokens with their log probabilities, and whose conversation it was.
  struct Turn {
    std::int64_t conversation_id = 0;
    Tokens ids;
    std::vector<float> log_probabilities;
  };

  void Load() { LoadModel("", MakeRamKvNode({.size_bytes = 64 << 20, .engine = {}}).value()); }

  Turn Run(std::int64_t conversation_id, const Tokens& prompt, std::int32_t tokens_max) {
    v1::GenerateRequest request;
    request.set_conversation_id(conversation_id);
    request.mutable_tokens()->mutable_ids()->Assign(prompt.begin(), prompt.end());
    request.set_tokens_max(tokens_max);
    request.set_ignore_eos(true);
    request.set_logprobs(true);
    const grpc::Status status = Generate(request);
    EXPECT_TRUE(status.ok()) << status.error_message();
    Turn turn;
    for (const v1::GenerateEvent& event : events_) {
      if (event.has_started()) turn.conversation_id = event.started().conversation_id();
      if (!event.has_token()) continue;
      turn.ids.push_back(event.token().id());
      turn.log_probabilities.push_back(event.token().logprob().logprob());
    }
    return turn;
  }

  std::int64_t Fork(std::int64_t conversation_id, std::int64_t token_count) {
    v1::ForkConversationRequest request;
    request.set_conversation_id(conversation_id);
    request.set_token_count(token_count);
    v1::ForkConversationResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub_->ForkConversation(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.token_count(), token_count);
    return response.conversation_id();
  }
};

// Bit for bit: the log probabilities have no tolerance.
TEST_F(InferenceForkTest, AForkGoesOnAsAConversationWithTheseTokensDoes) {
  Load();
  std::mt19937_64 random(test::TestSeed());
  const auto some_tokens = [&](std::int64_t count) {
    Tokens tokens(static_cast<std::size_t>(count));
    for (std::int32_t& token : tokens) token = 3 + static_cast<std::int32_t>(random() % 500);
    return tokens;
  };
  const Tokens whole = some_tokens(420);
  const std::int64_t root = Run(0, whole, -1).conversation_id;
  // At block borders and beside them, before, at and behind the window's start, at both ends.
  std::vector<std::int64_t> cuts = {1, 31, 32, 33, 127, 128, 129, 255, 257, 300, 330, 419, 420};
  for (int i = 0; i < 6; ++i) cuts.push_back(1 + static_cast<std::int64_t>(random() % 420));
  for (const std::int64_t cut : cuts) {
    SCOPED_TRACE(cut);
    // A fork, and a fork of it at a token of its own.
    Tokens tokens(whole.begin(), whole.begin() + cut);
    const Tokens first = some_tokens(2);
    const Tokens second = some_tokens(140);
    const std::int64_t fork = Fork(root, cut);
    tokens.insert(tokens.end(), first.begin(), first.end());
    const Turn expected = Run(0, tokens, 4);
    const Turn turn = Run(fork, first, 4);
    EXPECT_EQ(turn.ids, expected.ids);
    EXPECT_EQ(turn.log_probabilities, expected.log_probabilities);
    tokens.insert(tokens.end(), turn.ids.begin(), turn.ids.begin() + 2);
    const std::int64_t fork_of_fork = Fork(fork, std::ssize(tokens));
    tokens.insert(tokens.end(), second.begin(), second.end());
    EXPECT_EQ(Run(fork_of_fork, second, 4).log_probabilities, Run(0, tokens, 4).log_probabilities);
  }
}

TEST_F(InferenceForkTest, TextOfAConversationIsUtf8WhateverItsTokensAre) {
  Load();
  const std::shared_ptr<Runtime> runtime = state_.runtime().value();
  Tokens tokens;
  for (std::int32_t id = 3; id < runtime->model->config().vocab_size; ++id) {
    if (runtime->tokenizer->DecodePiece(id) == "\xc3" ||
        runtime->tokenizer->DecodePiece(id) == "a") {
      tokens.push_back(id);
    }
  }
  ASSERT_EQ(tokens.size(), 3U);  // "a" is a byte token and a piece
  v1::GetConversationRequest request;
  request.set_conversation_id(Run(0, tokens, -1).conversation_id);
  v1::GetConversationResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->GetConversation(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.text(),
            "a\xef\xbf\xbd"
            "a");
}

}  // namespace
}  // namespace cairn::compute
