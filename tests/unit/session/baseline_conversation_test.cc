// Conversations with the policies that select, over an engine in memory: a model of random weights,
// so that texts mean nothing and logits are compared.
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "compute-node/kv_client/in_process_kv_node.h"
#include "compute-node/retrieval/baselines/local_policy.h"
#include "compute-node/session/conversation.h"
#include "tests/unit/session/conversation_fixture.h"

namespace cairn::compute {
namespace {

class BaselineConversationTest : public ConversationFixture,
                                 public testing::WithParamInterface<const char*> {
 protected:
  BaselineConversationTest() {
    UseFormat(KvFormat::kF32);
    options.policy.name = GetParam();
    options.policy.selection.select_tokens_min = 64;
    options.policy.selection.select_tokens_max = 64;
    options.prefill_chunk_tokens = 300;
    absl::StatusOr<std::unique_ptr<KvNode>> made =
        MakeRamKvNode({.size_bytes = 64 << 20, .engine = {}});
    EXPECT_TRUE(made.ok()) << made.status();
    ram = std::move(made).value();
  }

  SessionId CreateAt(SegmentId parent = SegmentId(0), std::int64_t token_count = 0) {
    CreateSession request;
    request.key = identity.key;
    request.layout = identity.layout;
    request.parent_segment_id = parent;
    request.parent_token_count = token_count;
    absl::StatusOr<SessionRef> created = ram->Create(request);
    EXPECT_TRUE(created.ok()) << created.status();
    return created->id;
  }
  std::unique_ptr<Conversation> OpenRam(SessionId id) {
    absl::StatusOr<std::unique_ptr<Conversation>> opened =
        Conversation::Open({served, *ram, scheduler, options, memory}, {id});
    EXPECT_TRUE(opened.ok()) << Message(opened.status());
    return opened.ok() ? std::move(opened).value() : nullptr;
  }

  // The same tokens whatever the logits are, so that conversations can be compared.
  void StepAll(Conversation& conversation, std::int64_t count, std::vector<float>& logits) {
    for (std::int64_t i = 0; i < count; ++i) {
      const auto token = static_cast<std::int32_t>(3 + conversation.token_count() * 37 % 50);
      const absl::Status status = conversation.Step(token, logits, never);
      ASSERT_TRUE(status.ok()) << Message(status);
    }
  }

  std::unique_ptr<KvNode> ram;
};

TEST_P(BaselineConversationTest, EverythingSelectedGivesTheLogitsOfFullAttention) {
  options.policy.selection.select_tokens_min = 4096;
  options.policy.selection.select_tokens_max = 4096;
  const std::vector<std::int32_t> prompt = Prompt(333);
  std::vector<std::vector<float>> expected;
  const std::vector<std::int32_t> tokens =
      DenseContinue(prompt, 400, [&](const auto& logits) { expected.push_back(logits); });
  const std::unique_ptr<Conversation> conversation = OpenRam(CreateAt());
  std::vector<float> logits = Logits();
  ASSERT_TRUE(conversation->Prefill(prompt, logits, never, nullptr).ok());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    double error = 0;
    double size = 0;
    for (std::size_t j = 0; j < logits.size(); ++j) {
      error = std::max(error, std::abs(double{logits[j]} - expected[i][j]));
      size = std::max(size, std::abs(double{expected[i][j]}));
    }
    ASSERT_LE(error, 1e-4 * size) << "token " << i;
    ASSERT_TRUE(conversation->Step(tokens[i], logits, never).ok());
  }
}

TEST_P(BaselineConversationTest, SelectionChangesTheLogits) {
  const std::vector<std::int32_t> prompt = Prompt(333);
  std::vector<float> expected;
  const std::vector<std::int32_t> tokens =
      DenseContinue(prompt, 3, [&](const auto& logits) { expected = logits; });
  const std::unique_ptr<Conversation> conversation = OpenRam(CreateAt());
  std::vector<float> logits = Logits();
  ASSERT_TRUE(conversation->Prefill(prompt, logits, never, nullptr).ok());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(conversation->Step(tokens[static_cast<std::size_t>(i)], logits, never).ok());
  }
  EXPECT_NE(logits, expected);
}

TEST_P(BaselineConversationTest, ReopenedConversationGoesOnWithTheSameBits) {
  const std::vector<std::int32_t> prompt = Prompt(333);
  const SessionId id = CreateAt();
  std::unique_ptr<Conversation> reopened = OpenRam(id);
  const std::unique_ptr<Conversation> other = OpenRam(CreateAt());
  std::vector<float> logits = Logits();
  std::vector<float> expected = Logits();
  ASSERT_TRUE(reopened->Prefill(prompt, logits, never, nullptr).ok());
  ASSERT_TRUE(other->Prefill(prompt, expected, never, nullptr).ok());
  std::mt19937_64 random(seed);
  while (other->token_count() < 800) {
    const std::int64_t steps = 1 + static_cast<std::int64_t>(random() % 90);
    StepAll(*reopened, steps, logits);
    StepAll(*other, steps, expected);
    ASSERT_EQ(logits, expected) << other->token_count();
    const absl::Status status = reopened->Checkpoint(never);
    ASSERT_TRUE(status.ok()) << Message(status);
    reopened.reset();
    reopened = OpenRam(id);
    ASSERT_NE(reopened, nullptr);
  }
}

TEST_P(BaselineConversationTest, ForksGoOnFromAnyToken) {
  std::mt19937_64 random(seed);
  const SessionId id = CreateAt();
  std::unique_ptr<Conversation> conversation = OpenRam(id);
  std::vector<float> expected = Logits();
  ASSERT_TRUE(conversation->Prefill(Prompt(333), expected, never, nullptr).ok());
  StepAll(*conversation, 380, expected);
  ASSERT_TRUE(conversation->Checkpoint(never).ok());
  const std::int64_t end = conversation->token_count();
  conversation.reset();
  const absl::StatusOr<SealedSegment> sealed = ram->Seal({id});
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  std::vector<std::int64_t> at = {1, 3, 17, 333, end - 1, end};
  for (int i = 0; i < 4; ++i) {
    at.push_back(1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end)));
  }
  std::vector<float> last = Logits();
  for (const std::int64_t token_count : at) {
    const SessionId fork_id = CreateAt(sealed->segment_id, token_count);
    std::unique_ptr<Conversation> fork = OpenRam(fork_id);
    ASSERT_NE(fork, nullptr) << token_count;
    std::vector<float> logits = Logits();
    StepAll(*fork, 30, logits);
    ASSERT_TRUE(fork->Prefill(Prompt(200), logits, never, nullptr).ok());
    StepAll(*fork, 30, logits);
    const absl::Status status = fork->Checkpoint(never);
    ASSERT_TRUE(status.ok()) << token_count << ": " << Message(status);
    fork.reset();
    fork = OpenRam(fork_id);
    ASSERT_NE(fork, nullptr) << token_count;
    StepAll(*fork, 3, logits);
    EXPECT_TRUE(std::isfinite(logits[0]));
  }
}

// Says of held entries what a test says.
class HeldSelectionPolicy : public LocalPolicy {
 public:
  HeldSelectionPolicy(const PolicyOptions& options, std::optional<Positions> attended)
      : LocalPolicy("local-cluster", 40, options),
        attended_(std::move(attended)),
        head_count_(options.layout.head_count) {}

  std::optional<std::vector<Positions>> SelectHeld(const SelectionInput& input) const override {
    if (input.token_count > 1 || !attended_.has_value()) return std::nullopt;
    return std::vector<Positions>(static_cast<std::size_t>(head_count_), *attended_);
  }

 private:
  const std::optional<Positions> attended_;
  const std::int32_t head_count_;
};

TEST_F(ConversationFixture, OnlySelectedHeldEntriesAreAttended) {
  options.policy.name = "local-cluster";
  const auto ram = MakeRamKvNode({.size_bytes = 64 << 20, .engine = {}}).value();
  const std::vector<std::int32_t> prompt = Prompt(100);
  const auto logits_with = [&](const std::optional<Positions>& attended) {
    ConversationDeps deps{served, *ram, scheduler, options, memory};
    deps.make_policy = [&](std::string_view, const PolicyOptions& policy_options)
        -> absl::StatusOr<std::unique_ptr<RetrievalPolicy>> {
      return std::make_unique<HeldSelectionPolicy>(policy_options, attended);
    };
    CreateSession request;
    request.key = identity.key;
    request.layout = identity.layout;
    const auto conversation = Conversation::Open(deps, ram->Create(request).value()).value();
    std::vector<float> logits = Logits();
    EXPECT_TRUE(conversation->Prefill(prompt, logits, never, nullptr).ok());
    for (int i = 0; i < 60; ++i) EXPECT_TRUE(conversation->Step(5 + i, logits, never).ok());
    return logits;
  };
  const std::vector<float> all = logits_with(std::nullopt);
  EXPECT_EQ(logits_with(Positions::Range(0, 1000)), all);
  EXPECT_NE(logits_with(Positions()), all);
  EXPECT_NE(logits_with(Positions::Range(0, 70)), all);
}

// The fake node keeps entries and answers that there are no clusters.
TEST_F(ConversationFixture, ClustersThatDoNotComeBackAreLostData) {
  options.policy.name = "oracle";
  const SessionId id = Create();
  Continue(*Open(id), Prompt(200), 1);
  const absl::Status status = Conversation::Open(deps(), {id}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(Message(status).find("0 entries in clusters"), std::string::npos) << Message(status);
}

INSTANTIATE_TEST_SUITE_P(All, BaselineConversationTest,
                         testing::Values("oracle", "no-cluster", "static-cluster", "local-cluster",
                                         "local-cluster-40", "streaming", "random", "kvswap",
                                         "morph", "morph-recall", "morph-sum", "morph-max", "h2o",
                                         "snapkv", "infinigen", "loki", "shadowkv"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace cairn::compute
