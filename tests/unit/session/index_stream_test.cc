// What a conversation of dynakv does when records of its index are lost, torn or late.
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/kv/arena_layout.h"
#include "compute-node/kv_client/in_process_kv_node.h"
#include "tests/unit/session/conversation_fixture.h"

namespace cairn::compute {
namespace {

constexpr std::int64_t kPromptCount = 700;
// Several times as many as leave the window at once.
constexpr std::int64_t kStepCount = 40;

// What becomes of the answers to FetchIndex.
struct Tampering {
  enum class Kind { kNone, kNoRecords, kUnknown, kLost, kTornMemory, kNoAnswer };
  Kind kind = Kind::kNone;
  int skip_count = 0;            // behind so many answers
  int count = 0;                 // of so many
  StopSignal* stop = nullptr;    // cancelled where there is no answer,
  bool stops_at_append = false;  // or when entries are sent first
  int seen_count = 0;
  std::optional<int> seen_at_append{};  // when entries were sent first
};

class TamperingSession : public KvSession {
 public:
  TamperingSession(std::unique_ptr<KvSession> session, Tampering& tampering)
      : session_(std::move(session)), tampering_(tampering) {}

  std::future<absl::StatusOr<ReadReply>> StartRead(ReadOperation operation) override {
    const bool of_index = std::holds_alternative<FetchIndex>(operation);
    std::future<absl::StatusOr<ReadReply>> answer = session_->StartRead(std::move(operation));
    if (!of_index) return answer;
    ++tampering_.seen_count;
    if (tampering_.kind == Tampering::Kind::kNone || tampering_.skip_count-- > 0 ||
        tampering_.count == 0) {
      return answer;
    }
    --tampering_.count;
    std::promise<absl::StatusOr<ReadReply>> promise;
    if (tampering_.kind == Tampering::Kind::kNoAnswer) {
      unanswered_.push_back(std::move(promise));
      if (!tampering_.stops_at_append) tampering_.stop->Cancel();
      return unanswered_.back().get_future();
    }
    absl::StatusOr<ReadReply> reply = answer.get();
    CAIRN_CHECK(reply.ok());
    Alter(std::get<FetchReply>(*reply));
    promise.set_value(std::move(reply));
    return promise.get_future();
  }

  void SetInterrupt(Interrupt interrupt) override { session_->SetInterrupt(std::move(interrupt)); }
  const Attachment& attachment() const override { return session_->attachment(); }
  absl::Status Send(ChangingOperation operation) override {
    if (std::holds_alternative<Append>(operation) && !tampering_.seen_at_append.has_value()) {
      tampering_.seen_at_append = tampering_.seen_count;
      if (tampering_.stops_at_append) tampering_.stop->Cancel();
    }
    return session_->Send(std::move(operation));
  }
  FetchClock& fetch_clock() override { return session_->fetch_clock(); }
  void ReturnLeases() override { session_->ReturnLeases(); }
  bool checkpoint_in_progress() const override { return session_->checkpoint_in_progress(); }
  absl::StatusOr<Checkpointed> WaitForCheckpoint() override {
    return session_->WaitForCheckpoint();
  }
  void SetReplayMode(ReplayMode mode) override { session_->SetReplayMode(mode); }
  std::int64_t replay_bytes() const override { return session_->replay_bytes(); }
  absl::Status Reattach() override { return session_->Reattach(); }
  std::int32_t reconnect_count() const override { return session_->reconnect_count(); }

 private:
  void Alter(FetchReply& reply) {
    if (tampering_.kind == Tampering::Kind::kNoRecords) reply.clusters.front().spans.clear();
    if (tampering_.kind == Tampering::Kind::kUnknown) {
      reply.clusters.front().outcome = FetchOutcome::kUnknown;
    }
    if (tampering_.kind == Tampering::Kind::kLost) {
      reply.clusters.front().outcome = FetchOutcome::kLost;
      reply.clusters.front().spans.clear();
    }
    if (tampering_.kind != Tampering::Kind::kTornMemory) return;
    // As if the memory were used again: other bytes, of a generation that is over.
    for (Span& span : reply.clusters.front().spans) {
      torn_.push_back(std::make_unique<std::string>(span.bytes.size(), '\x5a'));
      span.bytes = std::as_bytes(std::span(*torn_.back()));
      span.arena = {.granule_id = 0,
                    .offset_bytes = kArenaPageBytes,
                    .generation = 2,
                    .granule = reinterpret_cast<const std::byte*>(granule_.data())};
    }
  }

  std::unique_ptr<KvSession> session_;
  Tampering& tampering_;
  std::vector<std::promise<absl::StatusOr<ReadReply>>> unanswered_;
  std::vector<std::unique_ptr<std::string>> torn_;
  // A granule's table of generations, which are all over.
  std::vector<std::int64_t> granule_ = std::vector<std::int64_t>(kArenaPageBytes / 8, 1);
};

class TamperingNode : public KvNode {
 public:
  explicit TamperingNode(Tampering& tampering)
      : node_(MakeRamKvNode({.size_bytes = std::int64_t{1} << 28, .engine = {}}).value()),
        tampering_(tampering) {}

  absl::StatusOr<SessionRef> Create(const CreateSession& request) override {
    return node_->Create(request);
  }
  absl::StatusOr<std::unique_ptr<KvSession>> Open(const SessionRef& session) override {
    CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<KvSession> opened, node_->Open(session));
    return std::make_unique<TamperingSession>(std::move(opened), tampering_);
  }
  absl::Status Delete(const SessionRef& session) override { return node_->Delete(session); }
  absl::StatusOr<SessionInfo> Get(const SessionRef& session, ListDetail detail) override {
    return node_->Get(session, detail);
  }
  absl::StatusOr<std::vector<SessionInfo>> List(ListDetail detail) override {
    return node_->List(detail);
  }
  absl::StatusOr<SealedSegment> Seal(const SessionRef& session) override {
    return node_->Seal(session);
  }
  absl::Status Supersede(const Supersession& request) override { return node_->Supersede(request); }
  absl::StatusOr<KvStats> Stats() override { return node_->Stats(); }
  std::int64_t part_bytes_max() const override { return node_->part_bytes_max(); }

 private:
  std::unique_ptr<KvNode> node_;
  Tampering& tampering_;
};

class IndexStreamTest : public ConversationFixture {
 protected:
  explicit IndexStreamTest(const std::string& preset = "narrow-llama")
      : ConversationFixture(preset),
        tampered(tampering),
        prompt(Prompt(kPromptCount)),
        fed(Prompt(kStepCount)) {
    options.policy.name = "dynakv";
    options.prefill_chunk_tokens = 512;  // enough for clusters from the first chunk on
    options.policy.selection.select_tokens_min = 64;
    options.policy.selection.select_tokens_max = 96;
  }

  SessionId CreateSessionOfPrompt() {
    CreateSession request;
    request.key = identity.key;
    request.layout = identity.layout;
    return tampered.Create(request)->id;
  }
  std::unique_ptr<Conversation> OpenTampered(SessionId id) {
    return Conversation::Open({served, tampered, scheduler, options, memory}, {id}, PolicyRequest())
        .value();
  }
  // A new conversation of the prompt, whose index left memory.
  std::unique_ptr<Conversation> Begun() {
    session = CreateSessionOfPrompt();
    std::unique_ptr<Conversation> conversation = OpenTampered(session);
    std::vector<float> logits = Logits();
    EXPECT_TRUE(conversation->Prefill(prompt, logits, never, nullptr).ok());
    tampering = {};
    return conversation;
  }

  // Logits after each token that is fed.
  std::vector<std::vector<float>> Feed(Conversation& conversation) {
    std::vector<std::vector<float>> all;
    for (const std::int32_t token : fed) {
      all.push_back(Logits());
      const absl::Status status = conversation.Step(token, all.back(), never);
      EXPECT_TRUE(status.ok()) << Message(status);
    }
    return all;
  }
  std::vector<std::vector<float>> Undisturbed() {
    const std::unique_ptr<Conversation> conversation = Begun();
    std::vector<std::vector<float>> all = Feed(*conversation);
    EXPECT_GE(tampering.seen_count, 4 * model.config().layer_count);
    return all;
  }
  // The first status that is not OK of the tokens that are fed, and the tokens before it.
  std::pair<absl::Status, std::size_t> FeedUntilError(Conversation& conversation,
                                                      const StopSignal& stop) {
    std::vector<float> logits = Logits();
    for (std::size_t i = 0; i < fed.size(); ++i) {
      absl::Status status = conversation.Step(fed[i], logits, stop);
      if (!status.ok()) return {std::move(status), i};
    }
    return {absl::OkStatus(), fed.size()};
  }

  // Behind a step that failed.
  void GoOn(Conversation& conversation, std::size_t fed_count,
            const std::vector<std::vector<float>>& expected) {
    ASSERT_LT(fed_count, fed.size());
    EXPECT_EQ(conversation.token_count(), kPromptCount + static_cast<std::int64_t>(fed_count));
    std::vector<float> logits = Logits();
    for (std::size_t i = fed_count; i < fed.size(); ++i) {
      const absl::Status status = conversation.Step(fed[i], logits, never);
      ASSERT_TRUE(status.ok()) << Message(status);
      EXPECT_EQ(logits, expected[i]) << i;
    }
  }

  Tampering tampering;
  TamperingNode tampered;
  const std::vector<std::int32_t> prompt;
  const std::vector<std::int32_t> fed;
  SessionId session;
};

TEST_F(IndexStreamTest, RecordsThatWereTornAreFetchedAgain) {
  const std::vector<std::vector<float>> expected = Undisturbed();
  const std::unique_ptr<Conversation> conversation = Begun();
  tampering = {.kind = Tampering::Kind::kTornMemory, .count = 2};
  EXPECT_EQ(Feed(*conversation), expected);
  EXPECT_EQ(tampering.count, 0);
}

TEST_F(IndexStreamTest, RecordsThatAreTornAgainAndAgainFailTheStepAndNothingElse) {
  const std::vector<std::vector<float>> expected = Undisturbed();
  const std::unique_ptr<Conversation> conversation = Begun();
  tampering = {.kind = Tampering::Kind::kTornMemory, .count = 1 << 20};
  const auto [status, fed_count] = FeedUntilError(*conversation, never);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << Message(status);
  tampering.count = 0;
  GoOn(*conversation, fed_count, expected);
}

TEST_F(IndexStreamTest, AStopEndsAWaitForRecordsAndTheStepCanBeDoneAgain) {
  const std::vector<std::vector<float>> expected = Undisturbed();
  const std::unique_ptr<Conversation> conversation = Begun();
  tampering = {.kind = Tampering::Kind::kNoAnswer, .count = 1};
  StopSignal stop;
  tampering.stop = &stop;
  const auto [status, fed_count] = FeedUntilError(*conversation, stop);
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << Message(status);
  GoOn(*conversation, fed_count, expected);
}

TEST_F(IndexStreamTest, AnAnswerThatIsNoIndexIsAnError) {
  const std::unique_ptr<Conversation> conversation = Begun();
  tampering = {.kind = Tampering::Kind::kUnknown, .count = 1 << 20};
  const auto [status, fed_count] = FeedUntilError(*conversation, never);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << Message(status);
}

// Their clusters are read at the next step, whatever matches the query, and described anew.
TEST_F(IndexStreamTest, ClustersWhoseRecordsAreLostAreReadAndStoredAgain) {
  const std::vector<std::vector<float>> expected = Undisturbed();
  std::unique_ptr<Conversation> conversation = Begun();
  const std::int64_t clusters_before = conversation->fetch_counts().selected_count;
  const std::vector<std::vector<float>> whole = Feed(*conversation);
  const std::int64_t clusters_usual = conversation->fetch_counts().selected_count - clusters_before;
  ASSERT_EQ(whole, expected);

  conversation = Begun();
  tampering = {.kind = Tampering::Kind::kNoRecords,
               .count = static_cast<int>(model.config().layer_count)};
  const std::int64_t before = conversation->fetch_counts().selected_count;
  const std::vector<std::vector<float>> lost = Feed(*conversation);
  EXPECT_EQ(tampering.count, 0);
  EXPECT_GT(conversation->fetch_counts().selected_count - before, clusters_usual);
  EXPECT_NE(lost, expected);
  // And the rows are there again: nothing is missing when it is opened once more.
  ASSERT_TRUE(conversation->Checkpoint(never).ok());
  const std::vector<std::vector<float>> going_on = Feed(*conversation);
  conversation.reset();
  conversation = OpenTampered(session);
  EXPECT_EQ(conversation->token_count(), kPromptCount + kStepCount);
  EXPECT_EQ(Feed(*conversation), going_on);
}

// Of more layers than are worked on together.
class DeepIndexStreamTest : public IndexStreamTest {
 protected:
  DeepIndexStreamTest() : IndexStreamTest("tiny-deep") {}
};

// Else the second two layers would wait for their index when the first two are done.
TEST_F(DeepIndexStreamTest, WhileTwoLayersFindTheirClustersTheNextTwoAreAskedFor) {
  ASSERT_EQ(model.config().layer_count, 4);
  const std::unique_ptr<Conversation> conversation = Begun();
  Feed(*conversation);
  EXPECT_EQ(tampering.seen_at_append, 4);
}

// In the later layers the earlier ones' entries have left the window, and others were asked for.
TEST_F(DeepIndexStreamTest, AStopInAnyLayerLeavesAStepThatCanBeDoneAgain) {
  const std::vector<std::vector<float>> expected = Undisturbed();
  for (int layer = 0; layer < static_cast<int>(model.config().layer_count); ++layer) {
    SCOPED_TRACE(layer);
    const std::unique_ptr<Conversation> conversation = Begun();
    StopSignal stop;
    tampering = {.kind = Tampering::Kind::kNoAnswer, .skip_count = layer, .count = 1};
    tampering.stop = &stop;
    tampering.stops_at_append = layer >= 2;
    const auto [status, fed_count] = FeedUntilError(*conversation, stop);
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << Message(status);
    EXPECT_EQ(tampering.seen_at_append.has_value(), layer >= 2);
    GoOn(*conversation, fed_count, expected);
  }
}

// What opening a conversation makes of the answers.
class OpenIndexTest : public IndexStreamTest {
 protected:
  // Stored, and closed.
  void SetUp() override {
    std::unique_ptr<Conversation> conversation = Begun();
    ASSERT_TRUE(conversation->Checkpoint(never).ok());
    expected = Feed(*conversation);  // not stored
  }

  absl::Status OpenStatus() {
    return Conversation::Open({served, tampered, scheduler, options, memory}, {session},
                              PolicyRequest())
        .status();
  }

  std::vector<std::vector<float>> expected;
};

TEST_F(OpenIndexTest, RecordsThatWereTornAreFetchedAgain) {
  tampering = {.kind = Tampering::Kind::kTornMemory, .count = 2};
  const std::unique_ptr<Conversation> conversation = OpenTampered(session);
  EXPECT_EQ(tampering.count, 0);
  EXPECT_EQ(Feed(*conversation), expected);
}

TEST_F(OpenIndexTest, RecordsThatAreTornAgainAndAgainFailTheOpeningAndNothingElse) {
  tampering = {.kind = Tampering::Kind::kTornMemory, .count = 1 << 20};
  const absl::Status status = OpenStatus();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << Message(status);
  tampering.count = 0;
  EXPECT_EQ(Feed(*OpenTampered(session)), expected);
}

TEST_F(OpenIndexTest, WhereADamagedRecordMightShowAnOlderOneRowsAreAskedFor) {
  tampering = {.kind = Tampering::Kind::kLost,
               .count = static_cast<int>(model.config().layer_count)};
  const std::unique_ptr<Conversation> conversation = OpenTampered(session);
  EXPECT_EQ(tampering.count, 0);
  EXPECT_EQ(Feed(*conversation), expected);
}

TEST_F(OpenIndexTest, AnAnswerThatIsNoIndexIsAnError) {
  tampering = {.kind = Tampering::Kind::kUnknown, .count = 1 << 20};
  const absl::Status status = OpenStatus();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << Message(status);
}

}  // namespace
}  // namespace cairn::compute
