#include "compute-node/session/conversation.h"

#include "common/base/error_reason.h"
#include "tests/unit/session/conversation_fixture.h"

namespace cairn::compute {
namespace {

using ConversationTest = ConversationFixture;

TEST_F(ConversationTest, GivesTheBitsOfDenseAttention) {
  for (const KvFormat format : kKvFormats) {
    UseFormat(format);
    const std::vector<std::int32_t> prompt = Prompt(333);
    std::vector<std::vector<float>> expected;
    const std::vector<std::int32_t> tokens =
        DenseContinue(prompt, 70, [&](const auto& logits) { expected.push_back(logits); });
    const std::unique_ptr<Conversation> conversation = Open(Create());
    std::vector<float> logits = Logits();
    ASSERT_TRUE(conversation->Prefill(prompt, logits, never, nullptr).ok());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      ASSERT_EQ(logits, expected[i]) << "token " << i << " " << KvFormatName(format);
      ASSERT_TRUE(conversation->Step(tokens[i], logits, never).ok());
    }
  }
}

TEST_F(ConversationTest, TextDoesNotDependOnHowEntriesAreStoredAndFetched) {
  const std::vector<std::int32_t> prompt = Prompt(700);
  const std::vector<std::int32_t> expected = DenseContinue(prompt, 40);
  for (const std::int64_t part_bytes : {65536, 4096}) {
    for (const std::int64_t chunk : {37, 512}) {
      for (const bool cut : {false, true}) {
        node.part_bytes = part_bytes;
        node.cut_spans = cut;
        options.prefill_chunk_tokens = chunk;
        options.fetch_slice_bytes = chunk == 37 ? 65536 : std::int64_t{2} << 20;
        options.window_tokens_max = cut ? 128 : 70;
        EXPECT_EQ(Continue(*Open(Create()), prompt, 40), expected)
            << part_bytes << " " << chunk << " " << cut;
      }
    }
  }
}

TEST_F(ConversationTest, ClustersShorterThanABlockStillGiveTheSameTextEveryTime) {
  node.part_bytes = 2048;  // 16 entries
  const std::vector<std::int32_t> prompt = Prompt(300);
  const std::vector<std::int32_t> first = Continue(*Open(Create()), prompt, 30);
  options.prefill_chunk_tokens = 51;
  EXPECT_EQ(Continue(*Open(Create()), prompt, 30), first);
}

TEST_F(ConversationTest, ReopenedConversationGoesOnWithTheSameBits) {
  const std::vector<std::int32_t> first = Prompt(250);
  const std::vector<std::int32_t> second = Prompt(90);
  std::vector<std::int32_t> all = first;
  const std::vector<std::int32_t> answer = DenseContinue(first, 20);
  all.insert(all.end(), answer.begin(), answer.end());
  all.insert(all.end(), second.begin(), second.end());
  const std::vector<std::int32_t> expected = DenseContinue(all, 50);

  const SessionId id = Create();
  EXPECT_EQ(Continue(*Open(id), first, 20), answer);
  const std::unique_ptr<Conversation> reopened = Open(id);
  EXPECT_EQ(reopened->token_count(), 270);
  EXPECT_EQ(Continue(*reopened, second, 50), expected);
  EXPECT_EQ(reopened->token_count(), 410);
  all.insert(all.end(), expected.begin(), expected.end());
  EXPECT_EQ(node.sessions[id.value()].committed.tokens, all);
}

TEST_F(ConversationTest, WhatNoCheckpointCoversIsGoneAfterReopening) {
  const SessionId id = Create();
  std::vector<float> logits = Logits();
  {
    const std::unique_ptr<Conversation> conversation = Open(id);
    ASSERT_TRUE(conversation->Prefill(Prompt(200), logits, never, nullptr).ok());
    ASSERT_TRUE(conversation->Step(5, logits, never).ok());
  }
  EXPECT_EQ(Open(id)->token_count(), 200);
}

TEST_F(ConversationTest, LongDecodeTakesCheckpointsByItself) {
  UseFormat(KvFormat::kF32);
  options.dram_budget_bytes = 1 << 20;  // a checkpoint every 64 KiB: 64 tokens of 1 KiB
  const std::vector<std::int32_t> prompt = Prompt(120);
  const SessionId id = Create();
  const std::unique_ptr<Conversation> conversation = Open(id);
  const std::int64_t before = node.checkpoint_count;
  EXPECT_EQ(Continue(*conversation, prompt, 600), DenseContinue(prompt, 600));
  // The prompt takes one, and what waits in the window comes later.
  EXPECT_GE(node.checkpoint_count - before, 7);
  EXPECT_LE(node.checkpoint_count - before, 12);
  EXPECT_EQ(node.sessions[id.value()].committed.token_count, 720);
}

TEST_F(ConversationTest, ProgressCountsLayersOfChunks) {
  options.prefill_chunk_tokens = 200;
  std::vector<std::int64_t> done;
  std::vector<float> logits = Logits();
  // The last one is as short as a step, which reports its end only.
  ASSERT_TRUE(Open(Create())
                  ->Prefill(Prompt(450), logits, never,
                            [&](std::int64_t tokens) { done.push_back(tokens); })
                  .ok());
  EXPECT_EQ(done, (std::vector<std::int64_t>{100, 200, 300, 400, 450}));
}

TEST(CheckContextTest, TokensFarBeyondTheContextAreNotCounted) {
  const std::int64_t counted = CountedTokensMax(100);
  EXPECT_NE(Message(CheckContext(counted, 0, true, 100)).find("the prompt has 800 tokens"),
            std::string::npos);
  EXPECT_NE(Message(CheckContext(counted + 7, 0, true, 100)).find("has more than 800 tokens"),
            std::string::npos);
  EXPECT_NE(Message(CheckContext(counted + 7, 50, true, 100)).find("together more than 850"),
            std::string::npos);
}

TEST_F(ConversationTest, PromptLongerThanTheContextIsRefusedWithTheNumbers) {
  options.context_tokens_max = 300;
  const SessionId id = Create();
  const std::unique_ptr<Conversation> conversation = Open(id);
  Continue(*conversation, Prompt(200), 10);
  std::vector<float> logits = Logits();
  const absl::Status status = conversation->Prefill(Prompt(91), logits, never, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(status).find("91"), std::string::npos);
  EXPECT_NE(Message(status).find("context is 300"), std::string::npos);
  EXPECT_EQ(node.sessions[id.value()].committed.token_count, 210);
  EXPECT_TRUE(conversation->Prefill(Prompt(90), logits, never, nullptr).ok());
  EXPECT_EQ(conversation->Step(5, logits, never).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ConversationTest, WhatAPolicyHasNoMemoryForIsRefusedWithWhatItNeeds) {
  options.policy.name = "kvswap";
  const std::int64_t token_bytes = Open(Create())->policy().keeper().token_memory_bytes();
  ASSERT_GT(token_bytes, 0);
  options.dram_budget_bytes = 209 * token_bytes;
  const SessionId id = Create();
  const std::unique_ptr<Conversation> conversation = Open(id);
  EXPECT_EQ(conversation->context_tokens_max(), 209);
  std::vector<float> logits = Logits();
  const absl::Status status = conversation->Prefill(Prompt(210), logits, never, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), ErrorReason::kContextTooShort);
  const std::string needed =
      fmt::format("a conversation of 210 tokens needs a dram_budget_bytes of {} with policy kvswap",
                  210 * token_bytes);
  EXPECT_NE(Message(status).find(needed), std::string::npos) << Message(status);
  EXPECT_EQ(conversation->token_count(), 0);
  EXPECT_TRUE(conversation->CheckRoom(209).ok());
  EXPECT_FALSE(conversation->CheckRoom(209, /*answered=*/true).ok());
  // What the model has no context for is that, whatever the memory is.
  options.context_tokens_max = 100;
  EXPECT_NE(Message(Open(Create())->CheckRoom(210)).find("the context is 100"), std::string::npos);
  options.policy.name = "full";
  EXPECT_EQ(Open(Create())->context_tokens_max(), 100);
}

TEST_F(ConversationTest, ConversationsOfOtherModelsOrFormatsAreRefused) {
  const SessionId id = Create();
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kQ8, KvFormat::kQ4}) {
    UseFormat(format);
    EXPECT_EQ(Conversation::Open(deps(), {id}).status().code(),
              absl::StatusCode::kFailedPrecondition);
    const SessionId own = Create();
    EXPECT_TRUE(Conversation::Open(deps(), {own}).ok());
    UseFormat(KvFormat::kF16);
    EXPECT_EQ(Conversation::Open(deps(), {own}).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
  identity.key.model_digest = std::string(32, 'x');
  const absl::Status status = Conversation::Open(deps(), {id}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(status).find("another model"), std::string::npos);
  EXPECT_EQ(Conversation::Open(deps(), {SessionId(99)}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(ConversationTest, EachConversationHasItsOwnIdentity) {
  const SessionId bare = Create();
  identity.key.adapter_digest = std::string(kDigestBytes, 'a');
  identity.key.adapter_scale = 0.5F;
  const SessionId adapted = Create();
  const ModelIdentity of_adapted = identity;
  identity.key.adapter_digest.clear();
  // A scale of nothing.
  const SessionId odd = Create();
  identity.key.adapter_scale = 0;
  EXPECT_EQ(Open(bare)->identity(), served.base);
  const absl::Status refused = Conversation::Open(deps(), {adapted}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(refused).find("LoRA adapter 6161616161"), std::string::npos) << refused;
  served.adapter_digests = {of_adapted.key.adapter_digest};
  EXPECT_EQ(Open(adapted)->identity(), of_adapted);
  EXPECT_EQ(Open(bare)->identity(), served.base);
  EXPECT_EQ(Conversation::Open(deps(), {odd}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ConversationTest, CancelledStepLeavesTheConversationAsItWas) {
  const std::vector<std::int32_t> prompt = Prompt(200);
  const std::vector<std::int32_t> expected = DenseContinue(prompt, 60);
  const SessionId id = Create();
  const std::unique_ptr<Conversation> conversation = Open(id);
  std::vector<float> logits = Logits();
  ASSERT_TRUE(conversation->Prefill(prompt, logits, never, nullptr).ok());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(Best(logits), expected[i]);
    // Cancelled while layer 1 is fetched: layer 0 has moved on already.
    StopSignal stop;
    node.tamper = [&](const Fetch& fetch, FetchReply&) {
      if (fetch.layer == 0) stop.Cancel();
    };
    std::vector<float> ignored = Logits();
    EXPECT_EQ(conversation->Step(expected[i], ignored, stop).code(), absl::StatusCode::kCancelled);
    node.tamper = nullptr;
    if (i % 7 == 0) {
      ASSERT_TRUE(conversation->Checkpoint(StopSignal()).ok());
    }
    ASSERT_TRUE(conversation->Step(expected[i], logits, never).ok());
  }
  EXPECT_TRUE(conversation->Checkpoint(StopSignal()).ok());
}

TEST_F(ConversationTest, DeadlineEndsAWaitForTheKvNode) {
  const SessionId id = Create();
  const std::unique_ptr<Conversation> conversation = Open(id);
  Continue(*conversation, Prompt(200), 1);
  node.fetches_to_stall = 1;
  const StopSignal stop(StopSignal::Clock::now() + std::chrono::milliseconds(30));
  std::vector<float> logits = Logits();
  EXPECT_EQ(conversation->Step(5, logits, stop).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(conversation->Step(5, logits, never).ok());
  EXPECT_TRUE(conversation->Checkpoint(StopSignal()).ok());
  EXPECT_EQ(node.sessions[id.value()].committed.token_count, 202);
}

TEST_F(ConversationTest, StopEndsAWaitForACheckpointThatCanBeAskedForAgain) {
  const SessionId id = Create();
  const std::unique_ptr<Conversation> conversation = Open(id);
  Continue(*conversation, Prompt(200), 1);
  std::vector<float> logits = Logits();
  ASSERT_TRUE(conversation->Step(5, logits, never).ok());
  StopSignal stop;
  node.stall_checkpoints = [&] { stop.Cancel(); };
  EXPECT_EQ(conversation->Checkpoint(stop).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(conversation->durable_token_count(), 201);
  node.stall_checkpoints = nullptr;
  EXPECT_TRUE(conversation->Checkpoint(never).ok());
  EXPECT_EQ(conversation->durable_token_count(), 202);
  EXPECT_EQ(node.sessions[id.value()].committed.token_count, 202);
}

TEST_F(ConversationTest, StepIsDoneThoughItsWaitForACheckpointWasStopped) {
  options.dram_budget_bytes = 0;  // a checkpoint at every step, waited for in the next
  const SessionId id = Create();
  const std::unique_ptr<Conversation> conversation = Open(id);
  Continue(*conversation, Prompt(200), 1);
  std::vector<float> logits = Logits();
  ASSERT_TRUE(conversation->Step(5, logits, never).ok());
  StopSignal stop;
  node.stall_checkpoints = [&] { stop.Cancel(); };
  EXPECT_TRUE(conversation->Step(6, logits, stop).ok());
  EXPECT_TRUE(stop.cancelled());
  EXPECT_EQ(conversation->token_count(), 203);
  node.stall_checkpoints = nullptr;
  EXPECT_TRUE(conversation->Checkpoint(never).ok());
  EXPECT_EQ(node.sessions[id.value()].committed.token_count, 203);
}

TEST_F(ConversationTest, LostClusterIsAnErrorThatNamesIt) {
  const std::unique_ptr<Conversation> conversation = Open(Create());
  Continue(*conversation, Prompt(400), 1);
  node.tamper = [](const Fetch& fetch, FetchReply& reply) {
    if (fetch.layer != 1) return;
    reply.clusters[3].outcome = FetchOutcome::kLost;
    reply.clusters[3].spans.clear();
  };
  std::vector<float> logits = Logits();
  const absl::Status status = conversation->Step(5, logits, never);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(Message(status).find("layer 1 head 1 cluster 2"), std::string::npos) << Message(status);
}

TEST_F(ConversationTest, KvMemoryIsBoundedAndGivenBack) {
  node.part_bytes = 8192;
  options.fetch_slice_bytes = 65536;
  options.prefill_chunk_tokens = 256;
  {
    const std::unique_ptr<Conversation> conversation = Open(Create());
    Continue(*conversation, Prompt(1800), 10);
    const std::int64_t token_bytes = identity.layout.TokenBytes();
    const std::int64_t layer_bytes = identity.layout.EntryBytes(kAllHeads);
    // Window, one layer of a chunk, three slices, what is being sent.
    constexpr std::int64_t kSlicesBytes = std::int64_t{3} * 65536;
    EXPECT_LE(memory.peak_bytes(),
              128 * token_bytes + 256 * layer_bytes + kSlicesBytes + 256 * layer_bytes);
    EXPECT_GE(memory.peak_bytes(), 128 * token_bytes + 256 * layer_bytes);
  }
  EXPECT_EQ(memory.used_bytes(), 0);
}

class GroupedHeadsTest : public ConversationFixture {
 protected:
  GroupedHeadsTest() : ConversationFixture("tiny-mistral") {}
};

TEST_F(GroupedHeadsTest, LargeMessagesAreSplit) {
  UseFormat(KvFormat::kF32);
  options.prefill_chunk_tokens = 512;
  const std::vector<std::int32_t> prompt = Prompt(1024);
  EXPECT_EQ(Continue(*Open(Create()), prompt, 5), DenseContinue(prompt, 5));
  EXPECT_LE(node.append_bytes_max, kAppendBytesMax);
}

}  // namespace
}  // namespace cairn::compute
