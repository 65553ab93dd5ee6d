#include <array>

#include "common/kv/arena_layout.h"
#include "compute-node/retrieval/baselines/full_policy.h"
#include "tests/tools/says.h"
#include "tests/unit/session/conversation_fixture.h"

namespace cairn::compute {
namespace {

class ConversationLossTest : public ConversationFixture {
 protected:
  static std::vector<std::int32_t> Behind(std::vector<std::int32_t> tokens, std::int32_t next) {
    tokens.push_back(next);
    return tokens;
  }
};

// A turn is computed for each call that may be lost; under ThreadSanitizer for every fourth.
#ifdef CAIRN_THREAD_SANITIZED
constexpr std::int64_t kCallStep = 4;
#else
constexpr std::int64_t kCallStep = 1;
#endif

// The next call of the session is lost whenever the clusters of a prompt are made anew.
class LosingPolicy : public FullPolicy {
 public:
  LosingPolicy(const PolicyOptions& options, FakeKvNode& node) : FullPolicy(options), node_(node) {}
  std::vector<ClusterGroup> Regroup(std::int32_t /*layer*/) override {
    node_.calls_until_loss = 1;
    return {};
  }

 private:
  FakeKvNode& node_;
};

TEST_F(ConversationLossTest, LossAtAnyCallOfPrefillGivesTheSameText) {
  const std::vector<std::int32_t> prompt = Prompt(330);
  const std::vector<std::int32_t> expected = DenseContinue(prompt, 3);
  for (std::int64_t call = 1;; call += kCallStep) {
    const SessionId id = Create();
    const std::unique_ptr<Conversation> conversation = Open(id);
    node.calls_until_loss = call;
    const std::int64_t losses = node.loss_count;
    const std::int64_t calls = node.call_count;
    EXPECT_EQ(Continue(*conversation, prompt, 3), expected) << "lost at call " << call;
    node.calls_until_loss = 0;
    if (node.loss_count == losses) break;  // the turn has fewer calls
    EXPECT_EQ(conversation->reconnect_count(), 1);
    EXPECT_EQ(node.sessions[id.value()].committed.token_count, 333);
    ASSERT_LT(node.call_count - calls, 500);
  }
}

TEST_F(ConversationLossTest, LossWhileRecoveringIsOneMoreTry) {
  const std::vector<std::int32_t> prompt = Prompt(330);
  const std::unique_ptr<Conversation> conversation = Open(Create());
  node.calls_until_loss = 12;
  node.further_losses = {2, 1, 3};
  EXPECT_EQ(Continue(*conversation, prompt, 3), DenseContinue(prompt, 3));
  EXPECT_EQ(conversation->reconnect_count(), 4);
}

TEST_F(ConversationLossTest, RepeatedLossInDecodeGivesTheSameText) {
  const std::vector<std::int32_t> prompt = Prompt(150);
  const std::vector<std::int32_t> expected = DenseContinue(prompt, 120);
  const std::unique_ptr<Conversation> conversation = Open(Create());
  std::vector<float> logits = Logits();
  ASSERT_TRUE(conversation->Prefill(prompt, logits, never, nullptr).ok());
  node.calls_until_loss = 3;
  node.loss_interval = 11;
  for (const std::int32_t token : expected) {
    ASSERT_EQ(Best(logits), token);
    ASSERT_TRUE(conversation->Step(token, logits, never).ok());
  }
  EXPECT_TRUE(conversation->Checkpoint(StopSignal()).ok());
  EXPECT_GE(conversation->reconnect_count(), 20);
}

TEST_F(ConversationLossTest, CheckpointWhoseAnswerWasLostIsNotComputedAgain) {
  const std::vector<std::int32_t> prompt = Prompt(300);
  const std::vector<std::int32_t> expected = DenseContinue(prompt, 5);
  const SessionId id = Create();
  const std::unique_ptr<Conversation> conversation = Open(id);
  node.lose_checkpoint_answer = true;
  const std::int64_t before = node.checkpoint_count;
  EXPECT_EQ(Continue(*conversation, prompt, 5), expected);
  EXPECT_EQ(node.checkpoint_count - before, 4);  // one a chunk, one for the answer
}

TEST_F(ConversationLossTest, PrefillGivesUpAfterItsTries) {
  const std::unique_ptr<Conversation> conversation = Open(Create());
  node.calls_until_loss = 2;
  node.loss_interval = 2;
  std::vector<float> logits = Logits();
  const absl::Status status = conversation->Prefill(Prompt(300), logits, never, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(test::Says(status, "lost 16 times in a row"));
  EXPECT_EQ(conversation->reconnect_count(), kPrefillTriesMax);
}

TEST_F(ConversationLossTest, LossesWhileClustersAreMadeAnewLeaveThoseOfTheChunks) {
  ConversationDeps losing = deps();
  losing.make_policy = [this](std::string_view, const PolicyOptions& policy) {
    return std::make_unique<LosingPolicy>(policy, node);
  };
  const SessionId id = Create();
  const std::vector<std::int32_t> prompt = Prompt(330);
  std::unique_ptr<Conversation> conversation = *Conversation::Open(losing, {id});
  std::vector<float> logits = Logits();
  const absl::Status status =
      conversation->Prefill(prompt, logits, never, nullptr, CheckpointEnd::kSealed);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(conversation->reconnect_count(), kRegroupTriesMax + 1);  // once more to go without
  EXPECT_EQ(conversation->durable_token_count(), 330);
  EXPECT_TRUE(conversation->seals().Has(330));
  EXPECT_FALSE(conversation->seals().IsFreshAt(330));
  conversation.reset();
  EXPECT_EQ(Continue(*Open(id), {5}, 3), DenseContinue(Behind(prompt, 5), 3));
}

TEST_F(ConversationLossTest, AStepGivesUpAfterItsTriesAndCanBeTakenAgain) {
  const std::vector<std::int32_t> prompt = Prompt(330);
  const std::unique_ptr<Conversation> conversation = Open(Create());
  std::vector<float> logits = Logits();
  ASSERT_TRUE(conversation->Prefill(prompt, logits, never, nullptr).ok());
  alignas(kArenaPageBytes) const std::array<std::byte, kArenaPageBytes> taken_back{};
  int fetch_count = 0;
  node.tamper = [&](const Fetch&, FetchReply& reply) {
    ++fetch_count;
    for (FetchedCluster& cluster : reply.clusters) {
      for (Span& span : cluster.spans) {
        span.arena.granule = taken_back.data();
        span.arena.generation = 1;
      }
    }
  };
  const absl::Status status = conversation->Step(5, logits, never);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(test::Says(status, "lost 3 times in a row"));
  EXPECT_GE(fetch_count, kStepTriesMax);
  node.tamper = nullptr;
  ASSERT_TRUE(conversation->Step(5, logits, never).ok());
  EXPECT_EQ(Best(logits), DenseContinue(Behind(prompt, 5), 1)[0]);
}

TEST_F(ConversationLossTest, AnotherOwnerEndsPrefill) {
  const std::unique_ptr<Conversation> conversation = Open(Create());
  node.calls_until_loss = 2;
  node.opened_by_another = true;
  std::vector<float> logits = Logits();
  EXPECT_EQ(conversation->Prefill(Prompt(300), logits, never, nullptr).code(),
            absl::StatusCode::kAborted);
}

TEST_F(ConversationLossTest, CancelledPrefillKeepsWholeChunks) {
  options.prefill_chunk_tokens = 200;
  const std::vector<std::int32_t> prompt = Prompt(500);
  const SessionId id = Create();
  StopSignal stop;
  std::vector<float> logits = Logits();
  const absl::Status status = Open(id)->Prefill(prompt, logits, stop, [&](std::int64_t done) {
    if (done > 200) stop.Cancel();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  const std::unique_ptr<Conversation> reopened = Open(id);
  EXPECT_EQ(reopened->token_count(), 200);
  const std::vector<std::int32_t> rest(prompt.begin() + 200, prompt.end());
  EXPECT_EQ(Continue(*reopened, rest, 20), DenseContinue(prompt, 20));
}

}  // namespace
}  // namespace cairn::compute
