// A node that stays: sessions, data, errors, limits.
#include "compute-node/kv_client/grpc_kv_node.h"

#include <array>

#include <gtest/gtest.h>

#include "tests/unit/kv_client/client_values.h"
#include "tests/unit/service/fake_node.h"

namespace cairn::compute {
namespace {

using kv::fake::FakeNode;

KvClientOptions QuickOptions() {
  KvClientOptions options;
  options.reconnect_time_max = std::chrono::milliseconds(20000);
  options.backoff_min = std::chrono::milliseconds(1);
  options.backoff_max = std::chrono::milliseconds(20);
  return options;
}

class GrpcKvNodeTest : public testing::Test {
 protected:
  GrpcKvNodeTest() {
    auto connected = GrpcKvNode::Connect(node_.socket_path(), QuickOptions());
    EXPECT_TRUE(connected.ok()) << connected.status();
    client_ = *std::move(connected);
    session_id_ = client_->Create(values::ValidCreateSession())->id;
  }
  std::unique_ptr<KvSession> Open() {
    auto session = client_->Open({session_id_});
    EXPECT_TRUE(session.ok()) << session.status();
    return *std::move(session);
  }

  FakeNode node_;
  std::unique_ptr<GrpcKvNode> client_;
  SessionId session_id_;
};

TEST_F(GrpcKvNodeTest, ConnectSaysThatNobodyServesTheSocket) {
  const absl::Status status =
      GrpcKvNode::Connect(node_.directory() + "/none.sock", QuickOptions()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(Message(status).find("none.sock"), std::string::npos);
}

TEST_F(GrpcKvNodeTest, ANodeThatIsTooSlowIsSaidToBe) {
  const absl::Status status = client_->Probe(std::chrono::seconds(-1));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Message(status), "no answer came within -1000 ms");
  EXPECT_TRUE(client_->Probe(std::chrono::minutes(1)).ok());
}

TEST_F(GrpcKvNodeTest, ReadSeesAllThatWasSentBefore) {
  const auto session = Open();
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(session->Send(values::AppendAt(i)).ok());
    if (i % 50 == 0) {
      EXPECT_EQ(values::EntriesOf(session->StartRead(values::FetchAll())),
                values::EntriesUpTo(i + 1));
    }
  }
  EXPECT_EQ(values::EntriesOf(session->StartRead(values::FetchAll())), values::EntriesUpTo(200));
}

TEST_F(GrpcKvNodeTest, CheckpointMakesRoomInTheReplayBufferAndOutlivesTheSession) {
  {
    const auto session = Open();
    EXPECT_EQ(session->replay_bytes(), 0);
    ASSERT_TRUE(session->Send(values::AppendAt(0)).ok());
    EXPECT_GT(session->replay_bytes(), 0);
    ASSERT_TRUE(session->Send(values::CheckpointAt(1, 0)).ok());
    const absl::StatusOr<Checkpointed> done = session->WaitForCheckpoint();
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_EQ(done->token_count, 1);
    EXPECT_FALSE(session->checkpoint_in_progress());
    EXPECT_EQ(session->replay_bytes(), 0);
    ASSERT_TRUE(session->Send(values::AppendAt(1)).ok());  // no checkpoint covers it
  }
  const auto session = Open();
  EXPECT_EQ(session->attachment().token_count, 1);
  EXPECT_EQ(values::EntriesOf(session->StartRead(values::FetchAll())), values::EntriesUpTo(1));
  const auto tokens = Wait<TokensReply>(session->StartRead(GetTokens{0, 10}));
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(tokens->token_ids, std::vector<std::int32_t>{0});
}

TEST_F(GrpcKvNodeTest, ManyReadsInFlightAreAllAnswered) {
  const auto session = Open();
  ASSERT_TRUE(session->Send(values::AppendAt(0)).ok());
  std::array<std::future<absl::StatusOr<ReadReply>>, std::size_t{4} * kFetchesInFlightMax> answers;
  for (auto& answer : answers) answer = session->StartRead(values::FetchAll());
  for (auto& answer : answers) EXPECT_EQ(values::EntriesOf(std::move(answer)), values::EntryOf(0));
}

TEST_F(GrpcKvNodeTest, FailedOperationShowsInEveryLaterCallUntilReattach) {
  const auto session = Open();
  ASSERT_TRUE(session->Send(values::AppendAt(0)).ok());
  ASSERT_TRUE(session->Send(values::CheckpointAt(1, 0)).ok());
  ASSERT_TRUE(session->WaitForCheckpoint().ok());
  Append bad = values::AppendAt(1);
  bad.layer = 2;  // the model has layers 0 and 1
  ASSERT_TRUE(session->Send(bad).ok());
  const auto answer = session->StartRead(values::FetchAll()).get();
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument) << answer.status();
  EXPECT_EQ(session->Send(values::AppendAt(1)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(session->Send(values::CheckpointAt(2, 1)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(session->replay_bytes(), 0);

  ASSERT_TRUE(session->Reattach().ok());
  EXPECT_EQ(session->attachment().token_count, 1);
  ASSERT_TRUE(session->Send(values::AppendAt(1)).ok());
  EXPECT_EQ(values::EntriesOf(session->StartRead(values::FetchAll())), values::EntriesUpTo(2));
}

TEST_F(GrpcKvNodeTest, ReplayBufferHasAHardLimitThatACheckpointClears) {
  KvClientOptions options = QuickOptions();
  options.replay_bytes_max = 1000;
  const auto client = GrpcKvNode::Connect(node_.socket_path(), options);
  ASSERT_TRUE(client.ok());
  const auto opened = (*client)->Open({session_id_});
  ASSERT_TRUE(opened.ok());
  KvSession& session = **opened;
  std::int64_t sent = 0;
  absl::Status status;
  while (status.ok()) {
    status = session.Send(values::AppendAt(sent));
    if (status.ok()) ++sent;
    ASSERT_LT(sent, 1000);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LE(session.replay_bytes(), 1000);
  ASSERT_TRUE(session.Send(values::CheckpointAt(sent, 0)).ok());
  ASSERT_TRUE(session.WaitForCheckpoint().ok());
  EXPECT_TRUE(session.Send(values::AppendAt(sent)).ok());
  EXPECT_EQ(values::EntriesOf(session.StartRead(values::FetchAll())),
            values::EntriesUpTo(sent + 1));
}

TEST_F(GrpcKvNodeTest, OperationOverTheMessageLimitIsRefusedAndTheSessionGoesOn) {
  const auto session = Open();
  Append large = values::AppendAt(0);
  large.clusters[0].entries.assign(static_cast<std::size_t>(kMessageBytesMax), 'x');
  const absl::Status status = session->Send(std::move(large));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(status).find("message_bytes_max"), std::string::npos);
  ASSERT_TRUE(session->Send(values::AppendAt(0)).ok());
  EXPECT_EQ(values::EntriesOf(session->StartRead(values::FetchAll())), values::EntryOf(0));
}

TEST_F(GrpcKvNodeTest, UnknownSessionIsNotFound) {
  EXPECT_EQ(client_->Open({SessionId(99)}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client_->Delete({SessionId(99)}).code(), absl::StatusCode::kNotFound);
}

TEST_F(GrpcKvNodeTest, SessionThatAnotherOpenedIsAborted) {
  const auto session = Open();
  ASSERT_TRUE(session->Send(values::AppendAt(0)).ok());
  const auto other = Open();
  const absl::Status status = session->StartRead(values::FetchAll()).get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_EQ(session->Send(values::AppendAt(1)).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(values::EntriesOf(other->StartRead(GetPolicyState{})).substr(0, 8), "INTERNAL");
}

TEST_F(GrpcKvNodeTest, ClosedSessionCanBeSealedAtOnce) {
  {
    const auto session = Open();
    EXPECT_EQ(client_->Seal({session_id_}).status().code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_TRUE(client_->Seal({session_id_}).ok());
}

TEST_F(GrpcKvNodeTest, ListAndStatsComeThrough) {
  const auto session = Open();
  const auto sessions = client_->List(ListDetail::kRows);
  ASSERT_TRUE(sessions.ok()) << sessions.status();
  ASSERT_EQ(sessions->size(), 1U);
  EXPECT_EQ((*sessions)[0].label, "test");
  EXPECT_TRUE((*sessions)[0].attached);
  const auto stats = client_->Stats();
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->io_engine, "memory");
  EXPECT_EQ(client_->part_bytes_max(), 65536);
}

}  // namespace
}  // namespace cairn::compute
