// Conversations that begin with the tokens of another one, through InferenceService and an engine
// in memory.
#include <gtest/gtest.h>

#include "compute-node/kv_client/in_process_kv_node.h"
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
};

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
