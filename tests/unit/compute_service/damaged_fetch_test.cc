// Damage that a turn finds at any of its reads, through InferenceService over a fake KV node.
#include <algorithm>

#include "tests/unit/compute_service/repair_fixture.h"

namespace cairn::compute {
namespace {

// Over a fake that says when a fetch finds damage: it is in all sessions but those that are made
// afterwards.
class DamagedNode : public FakeKvNode {
 public:
  DamagedNode() : FakeKvNode(1) {
    tamper = [this](const Fetch&, FetchReply& reply) {
      ++fetch_count;
      if (!damaged || is_recomputing_) return;
      if (whole_fetches > 0) {
        --whole_fetches;
        return;
      }
      if (at_damage) at_damage();
      for (FetchedCluster& cluster : reply.clusters) {
        cluster.outcome = FetchOutcome::kLost;
        cluster.spans.clear();
      }
    };
  }
  absl::StatusOr<SessionRef> Create(const CreateSession& request) override {
    is_recomputing_ = request.lifetime == SessionLifetime::kEphemeral;
    return FakeKvNode::Create(request);
  }
  absl::Status Delete(const SessionRef& session) override {
    is_recomputing_ = false;
    return FakeKvNode::Delete(session);
  }
  absl::Status Supersede(const Supersession& request) override {
    is_recomputing_ = false;
    CAIRN_RETURN_IF_ERROR(refuse_supersede);
    CAIRN_RETURN_IF_ERROR(FakeKvNode::Supersede(request));
    damaged = false;
    return absl::OkStatus();
  }

  bool damaged = false;
  std::int64_t whole_fetches = 0;  // so many are answered before
  std::int64_t fetch_count = 0;
  absl::Status refuse_supersede;
  std::function<void()> at_damage;

 private:
  bool is_recomputing_ = false;
};

class DamagedFetchTest : public RepairTest {
 protected:
  void Load() {
    auto node = std::make_unique<DamagedNode>();
    node_ = node.get();
    LoadModel("", std::move(node));
  }

  DamagedNode* node_ = nullptr;
};

// At each fetch that a turn makes, of a prompt in two chunks and an answer.
TEST_F(DamagedFetchTest, WhereverATurnFindsDamageTheConversationEndsUpWhole) {
  Load();
  const Tokens prompt = SomeTokens(400);
  const Tokens next = SomeTokens(300);  // two chunks
  const std::int64_t twin = Make(prompt);
  std::int64_t fetches = node_->fetch_count;
  ASSERT_TRUE(GoOn(twin, next).ok());
  fetches = node_->fetch_count - fetches;
  const Tokens ids = Ids();
  ASSERT_EQ(ids.size(), 8U);
  int repaired_count = 0;
  int late_count = 0;
  for (std::int64_t whole = 0; whole < fetches; ++whole) {
    SCOPED_TRACE(whole);
    const std::int64_t id = Make(prompt);
    node_->damaged = true;
    node_->whole_fetches = whole;
    const grpc::Status status = GoOn(id, next);
    const Tokens got = Ids();
    ASSERT_TRUE(std::equal(got.begin(), got.end(), ids.begin()));
    if (status.ok()) {
      ++repaired_count;
      EXPECT_EQ(got, ids);
      // What the first chunk has stored is part of it.
      const std::int64_t count = Recomputings().back().token_count();
      EXPECT_TRUE(count == 405 || count == 405 + 256) << count;
      EXPECT_EQ(Started().prompt_token_count(), 300);
      const v1::Finished& finished = events_.back().finished();
      EXPECT_EQ(finished.prompt_token_count(), 300);
      EXPECT_EQ(finished.reused_token_count(), 405);
      EXPECT_EQ(finished.conversation_token_count(), 405 + 300 + 8);
      continue;
    }
    ++late_count;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
    EXPECT_TRUE(Contains(status.error_message(), "its next turn computes it again from its tokens"))
        << status.error_message();
    EXPECT_FALSE(got.empty());
    EXPECT_TRUE(Recomputings().empty());
    // All but the token whose step failed.
    const std::int64_t kept = 405 + 300 + std::ssize(got) - 1;
    EXPECT_TRUE(Contains(status.error_message(), fmt::format("keeps {} tokens", kept)))
        << status.error_message();
    // Also if that would not come to what is damaged.
    node_->whole_fetches = std::int64_t{1} << 40;
    const grpc::Status again = GoOn(id, {got.back()});
    ASSERT_TRUE(again.ok()) << again.error_message();
    ExpectRecomputed(kept);
    ASSERT_TRUE(GoOn(id, {3}).ok());
    EXPECT_TRUE(Recomputings().empty());
  }
  EXPECT_GT(repaired_count, 0);
  EXPECT_GT(late_count, 0);
}

TEST_F(DamagedFetchTest, APromptThatIsComputedTokenByTokenIsRepairedToo) {
  Load();
  const Tokens prompt = SomeTokens(400);
  const Tokens next = SomeTokens(6);
  const std::int64_t twin = Make(prompt);
  const auto step_through = [&](std::int64_t id) {
    v1::GenerateRequest request = Request(id, next, 4);
    request.set_prefill_tokens_max(1);
    request.mutable_sampling()->set_frequency_penalty(1);
    return Generate(request);
  };
  std::int64_t fetches = node_->fetch_count;
  ASSERT_TRUE(step_through(twin).ok());
  fetches = node_->fetch_count - fetches;
  const Tokens ids = Ids();
  const std::int64_t id = Make(prompt);
  node_->damaged = true;
  node_->whole_fetches = fetches / 3;
  const grpc::Status status = step_through(id);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_GE(Recomputings().back().token_count(), 405);
  EXPECT_EQ(Ids(), ids);
}

TEST_F(DamagedFetchTest, TokensThatCannotBeReadAreSaid) {
  Load();
  const std::int64_t id = Make(SomeTokens(400));
  node_->damaged = true;
  Tokens& tokens = node_->sessions.at(id).committed.tokens;
  node_->at_damage = [&] { tokens.resize(100); };
  const grpc::Status status = Run(id, SomeTokens(5), 3);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_TRUE(
      Contains(status.error_message(), "computing the conversation again from its tokens failed"))
      << status.error_message();
  EXPECT_TRUE(Contains(status.error_message(), "has 405 tokens, but the store answers"))
      << status.error_message();
  EXPECT_EQ(node_->sessions.size(), 1U);
}

TEST_F(DamagedFetchTest, WhatIsComputedIsGoneIfItCannotTakeThePlace) {
  Load();
  const std::int64_t id = Make(SomeTokens(400));
  node_->damaged = true;
  node_->refuse_supersede = Unavailable("away");
  grpc::Status status = Run(id, SomeTokens(5), 3);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(node_->sessions.size(), 1U);
  node_->refuse_supersede = absl::OkStatus();
  status = Run(id, SomeTokens(5), 3);
  EXPECT_TRUE(status.ok()) << status.error_message();
  ExpectRecomputed(405);
}

// An older copy of the store came back under a turn. That is not what can be computed again.
TEST_F(DamagedFetchTest, FewerTokensThanWereDurableAreNotComputedAgain) {
  Load();
  const Tokens prompt = SomeTokens(400);
  const Tokens next = SomeTokens(300);
  const std::int64_t twin = Make(prompt);
  std::int64_t fetches = node_->fetch_count;
  ASSERT_TRUE(Run(twin, SomeTokens(256), -1).ok());  // the first chunk
  fetches = node_->fetch_count - fetches;
  const std::int64_t id = Make(prompt);
  const FakeKvState older = node_->sessions.at(id).committed;
  node_->damaged = true;
  node_->whole_fetches = fetches;
  node_->at_damage = [&] { node_->sessions.at(id).committed = older; };
  const grpc::Status status = Run(id, next, 3);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_FALSE(Contains(status.error_message(), "again")) << status.error_message();
  EXPECT_TRUE(Recomputings().empty());
}

// Its whole text comes again with the next request.
TEST_F(DamagedFetchTest, AnEphemeralConversationIsNot) {
  Load();
  node_->damaged = true;
  v1::GenerateRequest request = Request(0, SomeTokens(400), 3);
  request.set_ephemeral(true);
  ASSERT_TRUE(Generate(request).ok());  // ephemeral ones are whole here
  EXPECT_TRUE(Recomputings().empty());
}

}  // namespace
}  // namespace cairn::compute
