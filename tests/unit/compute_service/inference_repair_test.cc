// Conversations whose stored keys and values are damaged, through InferenceService: they are
// computed again from their tokens, and go on as if nothing had been.
#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "compute-node/kv_client/in_process_kv_node.h"
#include "tests/tools/faulty_device.h"
#include "tests/tools/seed.h"
#include "tests/unit/compute_service/inference_service_fixture.h"

namespace cairn::compute {
namespace {

using Tokens = std::vector<std::int32_t>;

bool Contains(const std::string& text, std::string_view part) {
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

// Over an engine whose pages go wrong.
class DamagedDiskTest : public RepairTest {
 protected:
  static constexpr std::int64_t kDiskBytes = std::int64_t{64} << 20;

  void Load(std::int64_t size_bytes = kDiskBytes) {
    kv::EngineOptions options;
    options.durable = false;
    options.arena_bytes_max = 0;  // every fetch reads the disk
    auto meta = kv::MetaStore::Open({.path = "/repair-test", .in_memory = true});
    ASSERT_TRUE(meta.ok()) << meta.status();
    auto engine =
        kv::Engine::Open(options, kv::StoreId{}, disk_.Open(size_bytes), *std::move(meta));
    ASSERT_TRUE(engine.ok()) << engine.status();
    LoadModel("", std::make_unique<InProcessKvNode>(*std::move(engine)));
  }
  // All that is stored until now.
  void Damage() {
    for (std::int64_t page = 2; page < kDiskBytes / 4096; ++page) {
      const std::vector<std::byte> bytes = disk_.PageBytes(page);
      const bool used = std::any_of(bytes.begin(), bytes.end(),
                                    [](std::byte byte) { return byte != std::byte{0}; });
      if (used) disk_.CorruptPage(page);
    }
  }
  std::int64_t Fork(std::int64_t conversation_id, std::int64_t token_count) {
    v1::ForkConversationRequest request;
    request.set_conversation_id(conversation_id);
    request.set_token_count(token_count);
    v1::ForkConversationResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->ForkConversation(&context, request, &response).ok());
    return response.conversation_id();
  }
  void Delete(std::int64_t conversation_id) {
    v1::DeleteConversationRequest request;
    request.set_conversation_id(conversation_id);
    v1::DeleteConversationResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->DeleteConversation(&context, request, &response).ok());
  }
  std::int64_t FlashUsed() { return state_.runtime().value()->node->Stats()->flash_used_bytes; }

  kv::FaultyDisk disk_{{.size_bytes = kDiskBytes, .seed = 5}};
};

// Bit for bit, and with the random numbers of the turn before.
TEST_F(DamagedDiskTest, AConversationGoesOnAsOneThatIsWholeDoes) {
  Load();
  const Tokens prompt = SomeTokens(700);
  const Tokens next = SomeTokens(20);
  const std::int64_t damaged = Make(prompt);
  Damage();
  const std::int64_t twin = Make(prompt);
  const std::vector<v1::Conversation> before = List();
  ASSERT_TRUE(GoOn(twin, next).ok());
  const Tokens ids = Ids();
  const std::vector<float> log_probabilities = LogProbabilities();

  const grpc::Status status = GoOn(damaged, next);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(Ids(), ids);
  EXPECT_EQ(LogProbabilities(), log_probabilities);
  ExpectRecomputed(705);
  EXPECT_EQ(Started().conversation_id(), damaged);
  EXPECT_EQ(Started().reused_token_count(), 705);
  EXPECT_EQ(Started().prompt_token_count(), 20);
  EXPECT_EQ(events_.back().finished().conversation_token_count(), 733);
  EXPECT_EQ(events_.back().finished().reused_token_count(), 705);

  const std::vector<v1::Conversation> after = List();
  ASSERT_EQ(after.size(), 2U);
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].conversation_id(), before[i].conversation_id());
    EXPECT_EQ(after[i].conversation_uid(), before[i].conversation_uid());
    EXPECT_EQ(after[i].label(), "a label");
    EXPECT_EQ(after[i].create_time().nanos(), before[i].create_time().nanos());
  }
  // It is whole, and both turn out alike.
  ASSERT_TRUE(GoOn(damaged, next).ok());
  EXPECT_TRUE(Recomputings().empty());
  const Tokens third = Ids();
  ASSERT_TRUE(GoOn(twin, next).ok());
  EXPECT_EQ(Ids(), third);
  Delete(damaged);
  Delete(twin);
  EXPECT_EQ(FlashUsed(), 2 * 4096);
}

// Another policy than the daemon's, whose clusters depend on how the tokens came.
TEST_F(DamagedDiskTest, ThePolicyAndItsOptionsStay) {
  Load();
  const Tokens prompt = SomeTokens(900);
  const Tokens next = SomeTokens(3);
  const auto make = [&] {
    v1::GenerateRequest request = Request(0, prompt, -1);
    request.mutable_retrieval()->set_policy("dynakv");
    request.mutable_retrieval()->set_select_tokens_min(200);
    request.mutable_retrieval()->set_cluster_target_entries(5);
    EXPECT_TRUE(Generate(request).ok());
    return Started().conversation_id();
  };
  const std::int64_t damaged = make();
  Damage();
  const std::int64_t twin = make();
  ASSERT_TRUE(Run(twin, next, 12).ok());
  const std::vector<float> log_probabilities = LogProbabilities();
  const grpc::Status status = Run(damaged, next, 12);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ExpectRecomputed(900);
  EXPECT_EQ(Started().policy(), "dynakv");
  EXPECT_EQ(LogProbabilities(), log_probabilities);
  v1::GenerateRequest other = Request(damaged, next, 1);
  other.mutable_retrieval()->set_cluster_target_entries(6);
  EXPECT_EQ(Generate(other).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

// They share what is damaged; each is computed again when it is gone on with.
TEST_F(DamagedDiskTest, ForksAreComputedAgainEachByItself) {
  Load();
  const Tokens prompt = SomeTokens(600);
  const Tokens next = SomeTokens(10);
  const std::int64_t parent = Make(prompt);
  const std::int64_t fork = Fork(parent, 400);
  const std::int64_t whole_fork = Fork(parent, 605);
  Damage();
  ASSERT_TRUE(Run(0, {prompt.begin(), prompt.begin() + 400}, -1).ok());
  ASSERT_TRUE(Run(Started().conversation_id(), next, 6).ok());
  const std::vector<float> of_fork = LogProbabilities();
  ASSERT_TRUE(Run(Make(prompt), next, 6).ok());
  const std::vector<float> of_parent = LogProbabilities();

  ASSERT_TRUE(Run(fork, next, 6).ok());
  ExpectRecomputed(400);
  EXPECT_EQ(LogProbabilities(), of_fork);
  ASSERT_TRUE(Run(parent, next, 6).ok());
  ExpectRecomputed(605);
  EXPECT_EQ(LogProbabilities(), of_parent);
  ASSERT_TRUE(Run(whole_fork, next, 6).ok());
  ExpectRecomputed(605);
  EXPECT_EQ(LogProbabilities(), of_parent);
  for (const std::int64_t id : {fork, parent, whole_fork}) {
    ASSERT_TRUE(Run(id, next, 3).ok());
    EXPECT_TRUE(Recomputings().empty());
  }
  for (const v1::Conversation& conversation : List()) Delete(conversation.conversation_id());
  EXPECT_EQ(FlashUsed(), 2 * 4096);
}

TEST_F(DamagedDiskTest, WithoutRoomForASecondCopyItStaysAndIsComputedWhenThereIsRoom) {
  Load(std::int64_t{1400} << 10);
  const Tokens prompt = SomeTokens(700);
  const std::int64_t damaged = Make(prompt);
  Damage();
  const std::int64_t other = Make(prompt);
  while (Run(other, SomeTokens(200), -1).ok()) {
  }
  const std::int64_t used = FlashUsed();
  const grpc::Status status = Run(damaged, SomeTokens(5), 3);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  for (const std::string_view part :
       {"fails its check", "computing the conversation again from its tokens failed",
        "what is stored of it is as it was", "flash is full", "room for a second copy"}) {
    EXPECT_TRUE(Contains(status.error_message(), part)) << status.error_message();
  }
  EXPECT_EQ(FlashUsed(), used);
  EXPECT_EQ(List().size(), 2U);
  Delete(other);
  EXPECT_TRUE(Run(damaged, SomeTokens(5), 3).ok());
  ExpectRecomputed(705);
}

// As any prompt; nothing is left of it.
TEST_F(DamagedDiskTest, ACancelledCallLeavesTheConversationAsItWas) {
  Load();
  const std::int64_t damaged = Make(SomeTokens(2000));
  Damage();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request(damaged, SomeTokens(5), 3));
  v1::GenerateEvent event;
  while (reader->Read(&event) && !event.has_recomputing()) {
  }
  context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (status.ok()) GTEST_SKIP() << "the turn ended before it could be cancelled";
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  // Waits for the turn before.
  EXPECT_TRUE(Run(damaged, SomeTokens(5), -1).ok());
  EXPECT_EQ(List().size(), 1U);
  Delete(damaged);
  EXPECT_EQ(FlashUsed(), 2 * 4096);
}

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
