#include "compute-node/session/generation.h"

#include "tests/unit/session/conversation_fixture.h"

namespace cairn::compute {
namespace {

class GenerationTest : public ConversationFixture {
 protected:
  GenerationTest() : tokenizer(Tokenizer::FromGguf(model.file()).value()) {
    observer.token = [this](std::int32_t id, std::string_view piece) {
      ids.push_back(id);
      text += piece;
    };
    request.ignore_end = true;
  }

  absl::StatusOr<TurnResult> Run(Conversation& conversation) {
    ids.clear();
    text.clear();
    return Generate(conversation, *tokenizer, request, observer, stop);
  }

  std::unique_ptr<Tokenizer> tokenizer;
  TurnRequest request;
  TurnObserver observer;
  StopSignal stop;
  std::vector<std::int32_t> ids;
  std::string text;
};

TEST_F(GenerationTest, GreedyTurnHoldsPromptAndAnswer) {
  request.prompt = Prompt(130);
  request.tokens_max = 20;
  const SessionId id = Create();
  const absl::StatusOr<TurnResult> result = Run(*Open(id));
  ASSERT_TRUE(result.ok()) << Message(result.status());
  EXPECT_EQ(ids, DenseContinue(request.prompt, 20));
  EXPECT_EQ(result->reason, FinishReason::kLength);
  EXPECT_EQ(result->generated_count, 20);
  std::vector<std::int32_t> all = request.prompt;
  all.insert(all.end(), ids.begin(), ids.end());
  EXPECT_EQ(node.sessions[id.value()].committed.tokens, all);
}

TEST_F(GenerationTest, EqualSeedsGiveEqualText) {
  request.prompt = Prompt(50);
  request.tokens_max = 30;
  request.sampling = {.temperature = 1.0, .top_k = 50, .top_p = 0.9, .seed = 42};
  ASSERT_TRUE(Run(*Open(Create())).ok());
  const std::vector<std::int32_t> first = ids;
  ASSERT_TRUE(Run(*Open(Create())).ok());
  EXPECT_EQ(ids, first);
  request.sampling.seed = 43;
  ASSERT_TRUE(Run(*Open(Create())).ok());
  EXPECT_NE(ids, first);
}

TEST_F(GenerationTest, RandomStateGoesOnInTheNextTurn) {
  request.prompt = Prompt(50);
  request.tokens_max = 10;
  request.sampling = {.temperature = 1.0, .seed = 42};
  const SessionId id = Create();
  ASSERT_TRUE(Run(*Open(id)).ok());
  const FakeKvRecord saved = node.sessions[id.value()];
  request.keep_random_state = true;
  request.sampling.seed = 1;
  ASSERT_TRUE(Run(*Open(id)).ok());
  const std::vector<std::int32_t> first = ids;
  node.sessions[id.value()] = saved;
  request.sampling.seed = 2;
  ASSERT_TRUE(Run(*Open(id)).ok());
  EXPECT_EQ(ids, first);
}

TEST_F(GenerationTest, StopTextEndsTheTurnAndIsNotShown) {
  request.prompt = Prompt(60);
  request.tokens_max = 40;
  ASSERT_TRUE(Run(*Open(Create())).ok());
  const std::string whole = text;
  ASSERT_GT(whole.size(), 20U);
  const std::string needle = whole.substr(12, 4);
  request.stop = {needle};
  const absl::StatusOr<TurnResult> result = Run(*Open(Create()));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->reason, FinishReason::kStop);
  EXPECT_EQ(text, whole.substr(0, whole.find(needle)));
  EXPECT_LT(result->generated_count, 40);
}

TEST_F(GenerationTest, FullContextEndsTheTurn) {
  options.context_tokens_max = 100;
  request.prompt = Prompt(90);
  request.tokens_max = 1000;
  const SessionId id = Create();
  absl::StatusOr<TurnResult> result = Run(*Open(id));
  ASSERT_TRUE(result.ok()) << Message(result.status());
  EXPECT_EQ(result->reason, FinishReason::kContext);
  EXPECT_EQ(result->generated_count, 10);
  EXPECT_EQ(node.sessions[id.value()].committed.token_count, 100);
  request.prompt = Prompt(1);
  EXPECT_EQ(Run(*Open(id)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(GenerationTest, StoppedTurnKeepsItsAnswerThoughItsLastStepIsNotAnswered) {
  request.prompt = Prompt(300);
  request.tokens_max = 1000;
  observer.token = [this](std::int32_t id, std::string_view) {
    ids.push_back(id);
    if (ids.size() < 10) return;
    node.fetches_to_stall = 1000;
    stop.Cancel();
  };
  const SessionId id = Create();
  EXPECT_EQ(Run(*Open(id)).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(ids.size(), 10U);
  EXPECT_EQ(node.sessions[id.value()].committed.token_count, 309);
}

TEST_F(GenerationTest, PromptCanOnlyBeStored) {
  request.prompt = Prompt(90);
  request.tokens_max = 0;
  const SessionId id = Create();
  const absl::StatusOr<TurnResult> result = Run(*Open(id));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->generated_count, 0);
  EXPECT_EQ(node.sessions[id.value()].committed.token_count, 90);
}

TEST_F(GenerationTest, EmptyPromptIsRefused) {
  EXPECT_EQ(Run(*Open(Create())).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(GenerationTest, CancelledTurnKeepsEveryTokenThatWasShown) {
  request.prompt = Prompt(140);
  request.tokens_max = 100;
  int count = 0;
  observer.token = [&](std::int32_t id, std::string_view) {
    ids.push_back(id);
    if (++count == 17) stop.Cancel();
  };
  const SessionId id = Create();
  EXPECT_EQ(Run(*Open(id)).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(ids.size(), 17U);
  std::vector<std::int32_t> all = request.prompt;
  all.insert(all.end(), ids.begin(), ids.end());
  EXPECT_EQ(node.sessions[id.value()].committed.tokens, all);
}

}  // namespace
}  // namespace cairn::compute
