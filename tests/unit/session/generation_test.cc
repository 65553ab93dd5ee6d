#include "compute-node/session/generation.h"

#include <set>

#include "tests/unit/session/conversation_fixture.h"
#include "tests/unit/session/query_policy.h"

namespace cairn::compute {
namespace {

class GenerationTest : public ConversationFixture {
 protected:
  GenerationTest() : tokenizer(Tokenizer::FromGguf(model.file()).value()) {
    observer.token = [this](std::int32_t id, std::string_view piece,
                            const LogProbabilities* of_token) {
      ids.push_back(id);
      text += piece;
      if (of_token != nullptr) likely.push_back(*of_token);
    };
    request.ignore_end = true;
  }

  absl::StatusOr<TurnResult> Run(Conversation& conversation) {
    ids.clear();
    text.clear();
    likely.clear();
    return Generate(conversation, *tokenizer, request, observer, stop);
  }

  std::unique_ptr<Conversation> OpenByQueries(SessionId id, QueryPolicy::Log& log) {
    return Conversation::Open(WithQueryPolicy(deps(), log), {id}, {.name = "query"}).value();
  }

  std::unique_ptr<Tokenizer> tokenizer;
  TurnRequest request;
  TurnObserver observer;
  StopSignal stop;
  std::vector<std::int32_t> ids;
  std::string text;
  std::vector<LogProbabilities> likely;
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

TEST_F(GenerationTest, PenaltiesCountTheAnswer) {
  request.prompt = Prompt(50);
  request.tokens_max = 30;
  ASSERT_TRUE(Run(*Open(Create())).ok());
  const auto different = [this] { return std::set<std::int32_t>(ids.begin(), ids.end()).size(); };
  const std::size_t plain = different();
  ASSERT_LT(plain, 30U);
  request.sampling.penalties = {.repetition_penalty = 10.0, .penalty_last_tokens = -1};
  ASSERT_TRUE(Run(*Open(Create())).ok());
  EXPECT_GT(different(), plain);
}

TEST_F(GenerationTest, ATurnWithHistoryIsThatOfTheWholeConversation) {
  const std::vector<std::int32_t> whole = Prompt(60);
  request.sampling = {.temperature = 1.0, .seed = 5};
  request.sampling.penalties = {.repetition_penalty = 3.0, .penalty_last_tokens = 40};
  request.tokens_max = 20;
  request.prompt = whole;
  ASSERT_TRUE(Run(*Open(Create())).ok());
  const std::vector<std::int32_t> expected = ids;

  const SessionId id = Create();
  request.prompt.assign(whole.begin(), whole.begin() + 55);
  request.tokens_max = 0;
  ASSERT_TRUE(Run(*Open(id)).ok());
  const FakeKvRecord saved = node.sessions[id.value()];
  request.prompt.assign(whole.begin() + 55, whole.end());
  request.history.assign(whole.begin() + 20, whole.begin() + 55);
  request.tokens_max = 20;
  ASSERT_TRUE(Run(*Open(id)).ok());
  EXPECT_EQ(ids, expected);
  node.sessions[id.value()] = saved;
  request.history.clear();
  ASSERT_TRUE(Run(*Open(id)).ok());
  EXPECT_NE(ids, expected);
}

TEST_F(GenerationTest, LogProbabilitiesAreTheModelsOwnAndOnlyOnRequest) {
  request.prompt = Prompt(40);
  request.tokens_max = 5;
  ASSERT_TRUE(Run(*Open(Create())).ok());
  EXPECT_TRUE(likely.empty());
  const std::vector<std::int32_t> greedy = ids;
  request.log_probabilities = true;
  request.top_log_probability_count = 3;
  ASSERT_TRUE(Run(*Open(Create())).ok());
  ASSERT_EQ(likely.size(), 5U);
  const float first = likely[0].chosen.value;
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(likely[i].chosen.id, greedy[i]);
    ASSERT_EQ(likely[i].top.size(), 3U);
    EXPECT_EQ(likely[i].top[0].id, greedy[i]);
    EXPECT_EQ(likely[i].top[0].value, likely[i].chosen.value);
  }
  // Neither temperature nor a bias that makes another token certain changes them.
  request.sampling.temperature = 0.1;
  request.sampling.penalties.logit_bias = {{greedy[0], -100}};
  ASSERT_TRUE(Run(*Open(Create())).ok());
  EXPECT_NE(ids[0], greedy[0]);
  EXPECT_EQ(likely[0].chosen.id, ids[0]);
  EXPECT_EQ(likely[0].top[0].id, greedy[0]);
  EXPECT_EQ(likely[0].top[0].value, first);
  EXPECT_LT(likely[0].chosen.value, first);
}

TEST_F(GenerationTest, StopTextOfTheFirstTokenLeavesNothingToShow) {
  request.prompt = Prompt(60);
  request.tokens_max = 40;
  ASSERT_TRUE(Run(*Open(Create())).ok());
  request.stop = {text.substr(0, 1)};
  const absl::StatusOr<TurnResult> result = Run(*Open(Create()));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->reason, FinishReason::kStop);
  EXPECT_EQ(text, "");
  EXPECT_GE(result->generated_count, 1);
}

TEST_F(GenerationTest, StopTextThatNeverEndsIsShownAtTheEnd) {
  request.prompt = Prompt(60);
  request.tokens_max = 10;
  ASSERT_TRUE(Run(*Open(Create())).ok());
  const std::string whole = text;
  request.stop = {whole + "x", whole.substr(whole.size() / 2) + "y"};  // longer than the output
  const absl::StatusOr<TurnResult> result = Run(*Open(Create()));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->reason, FinishReason::kLength);
  EXPECT_EQ(text, whole);
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

TEST_F(GenerationTest, TheNameOfAControlTokenIsAStopText) {
  request.prompt = Prompt(60);
  request.tokens_max = 20;
  request.sampling.penalties.logit_bias = {{1, 100}};  // <s>, again and again
  for (const std::string stop_text : {"<s>", "<s", "s><"}) {
    request.stop = {stop_text};
    const absl::StatusOr<TurnResult> result = Run(*Open(Create()));
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->reason, FinishReason::kStop) << stop_text;
    EXPECT_EQ(result->generated_count, stop_text == "s><" ? 2 : 1);
    EXPECT_EQ(text, "");
  }
  request.stop = {"<t>"};
  EXPECT_EQ(Run(*Open(Create()))->reason, FinishReason::kLength);
}

TEST_F(GenerationTest, AStopTokenEndsTheTurnAndIsNotShown) {
  request.prompt = Prompt(60);
  request.tokens_max = 40;
  ASSERT_TRUE(Run(*Open(Create())).ok());
  const std::string whole = text;
  const std::vector<std::int32_t> all = ids;
  const auto place = std::find(all.begin(), all.end(), all[10]) - all.begin();
  request.stop_tokens = {1, all[10]};
  const SessionId id = Create();
  const absl::StatusOr<TurnResult> result = Run(*Open(id));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->reason, FinishReason::kStop);
  EXPECT_EQ(ids, std::vector<std::int32_t>(all.begin(), all.begin() + place + 1));
  EXPECT_EQ(text, whole.substr(0, text.size()));
  StreamingDecoder decoder(*tokenizer);
  std::string before;
  for (auto token = ids.begin(); token + 1 != ids.end(); ++token) before += decoder.Append(*token);
  EXPECT_EQ(text, before + decoder.Finish());
  // It was generated, and the conversation holds it as it holds the tokens of a stop text.
  EXPECT_EQ(node.sessions[id.value()].committed.tokens.back(), all[10]);
}

TEST_F(GenerationTest, AnEndTokenIsNotShownWhereItDoesNotEndTheTurn) {
  request.prompt = Prompt(60);
  request.tokens_max = 5;
  request.sampling.penalties.logit_bias = {{tokenizer->eos_id(), 100}};
  EXPECT_EQ(Run(*Open(Create()))->generated_count, 5);
  EXPECT_EQ(text, "");
  request.ignore_end = false;
  const absl::StatusOr<TurnResult> result = Run(*Open(Create()));
  EXPECT_EQ(result->generated_count, 1);
  EXPECT_EQ(result->reason, FinishReason::kEnd);
}

TEST_F(GenerationTest, ATextMayEndTheAnswerAsATokenDoes) {
  request.prompt = Prompt(60);
  request.tokens_max = 40;
  ASSERT_TRUE(Run(*Open(Create())).ok());
  const std::string whole = text;
  request.end_text = whole.substr(12, 4);
  const absl::StatusOr<TurnResult> result = Run(*Open(Create()));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->reason, FinishReason::kEnd);
  EXPECT_EQ(text, whole.substr(0, whole.find(request.end_text)));
}

TEST_F(GenerationTest, APromptThatLeavesNoRoomForAnAnswerIsRefused) {
  options.context_tokens_max = 100;
  request.prompt = Prompt(100);
  const SessionId id = Create();
  const absl::Status status = Run(*Open(id)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(status).find("context is 100 tokens, and an answer needs one"),
            std::string::npos)
      << status;
  request.tokens_max = 0;
  EXPECT_TRUE(Run(*Open(id)).ok());
  request.tokens_max = 5;
  request.prompt = Prompt(99);
  const absl::StatusOr<TurnResult> result = Run(*Open(Create()));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->generated_count, 1);
  EXPECT_EQ(result->reason, FinishReason::kContext);
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
  observer.token = [this](std::int32_t id, std::string_view, const LogProbabilities*) {
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

TEST_F(GenerationTest, OnlyTheFirstTokensOfAPromptArePrefilled) {
  request.prompt = Prompt(260);
  request.tokens_max = 20;
  request.prefill_tokens_max = 150;
  std::vector<std::int64_t> done;
  observer.prefill = [&](std::int64_t count) { done.push_back(count); };
  QueryPolicy::Log log;
  const SessionId id = Create();
  const auto result = Run(*OpenByQueries(id, log));
  ASSERT_TRUE(result.ok()) << Message(result.status());
  EXPECT_EQ(ids, DenseContinue(request.prompt, 20));
  EXPECT_EQ(node.sessions[id.value()].committed.token_count, 280);
  // Chunks of 100 tokens, then 110 tokens of the prompt and 20 of the answer.
  std::vector<std::int64_t> passes = {100, 50};
  passes.insert(passes.end(), 130, 1);
  EXPECT_EQ(log.passes, passes);
  std::vector<std::int64_t> expected_done = {100};
  for (std::int64_t count = 150; count <= 260; ++count) expected_done.push_back(count);
  EXPECT_EQ(done, expected_done);
}

TEST_F(GenerationTest, CancelledStepsOfAPromptAreKept) {
  request.prompt = Prompt(160);
  request.prefill_tokens_max = 100;
  observer.prefill = [&](std::int64_t count) {
    if (count == 120) stop.Cancel();
  };
  const SessionId id = Create();
  EXPECT_EQ(Run(*Open(id)).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(node.sessions[id.value()].committed.token_count, 120);
  EXPECT_TRUE(ids.empty());
}

TEST_F(GenerationTest, AShortPromptBehindALongTextIsComputedInSteps) {
  QueryPolicy::Log log;
  const SessionId id = Create();
  const ConversationDeps own = WithQueryPolicy(deps(), log);
  const std::unique_ptr<Conversation> conversation =
      Conversation::Open(own, {id}, {.name = "query", .select_tokens_min = 64}).value();
  const auto prefilled = [&](std::int64_t prompt_count) {
    request.prompt = Prompt(prompt_count);
    return PrefilledTokens(*conversation, request);
  };
  EXPECT_EQ(prefilled(1), 1);
  Continue(*conversation, Prompt(193), 0);
  // 64 are selected: three steps read 192 tokens, a pass 193.
  EXPECT_EQ(prefilled(3), 0);
  EXPECT_EQ(prefilled(4), 4);
  request.prefill_tokens_max = 2;
  EXPECT_EQ(prefilled(3), 2);
  EXPECT_EQ(prefilled(1), 1);
  request.prefill_tokens_max = 0;
  request.prompt = Prompt(3);
  request.tokens_max = 2;
  log.passes.clear();
  ASSERT_TRUE(Run(*conversation).ok());
  EXPECT_EQ(log.passes, std::vector<std::int64_t>(5, 1));
  // One that reads everything in every step gains nothing.
  const std::unique_ptr<Conversation> full = Open(Create());
  Continue(*full, Prompt(193), 0);
  EXPECT_EQ(PrefilledTokens(*full, request), 3);
}

TEST_F(GenerationTest, EmptyPromptIsRefused) {
  EXPECT_EQ(Run(*Open(Create())).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(GenerationTest, CancelledTurnKeepsEveryTokenThatWasShown) {
  request.prompt = Prompt(140);
  request.tokens_max = 100;
  int count = 0;
  observer.token = [&](std::int32_t id, std::string_view, const LogProbabilities*) {
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
