// A node that goes away and comes back: what a session's caller sees.
#include <array>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "compute-node/kv_client/grpc_kv_node.h"
#include "compute-node/kv_client/node_link.h"
#include "tests/unit/kv_client/client_values.h"
#include "tests/unit/service/fake_node.h"

namespace cairn::compute {
namespace {

using kv::fake::FakeNode;

class ReconnectTest : public testing::Test {
 protected:
  ReconnectTest() {
    options_.reconnect_time_max = std::chrono::milliseconds(20000);
    options_.backoff_min = std::chrono::milliseconds(1);
    options_.backoff_max = std::chrono::milliseconds(20);
    Connect();
    session_id_ = client_->Create(values::ValidCreateSession())->id;
    session_ = *client_->Open({session_id_});
  }
  void Connect() {
    auto connected = GrpcKvNode::Connect(node_.socket_path(), options_);
    EXPECT_TRUE(connected.ok()) << connected.status();
    client_ = *std::move(connected);
  }
  void Restart() {
    node_.Stop();
    node_.Start();
  }
  void AppendAndCheckpoint(std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) ASSERT_TRUE(session_->Send(values::AppendAt(i)).ok());
    ASSERT_TRUE(session_->Send(values::CheckpointAt(count, 0)).ok());
    ASSERT_TRUE(session_->WaitForCheckpoint().ok());
  }
  std::string Fetched() { return values::EntriesOf(session_->StartRead(values::FetchAll())); }

  FakeNode node_;
  KvClientOptions options_;
  std::unique_ptr<GrpcKvNode> client_;
  SessionId session_id_;
  std::unique_ptr<KvSession> session_;
};

TEST_F(ReconnectTest, OperationsThatNoCheckpointCoversAreSentAgain) {
  AppendAndCheckpoint(3);
  for (int i = 3; i < 300; ++i) ASSERT_TRUE(session_->Send(values::AppendAt(i)).ok());
  Restart();
  EXPECT_EQ(Fetched(), values::EntriesUpTo(300));
  EXPECT_EQ(session_->reconnect_count(), 1);
}

TEST_F(ReconnectTest, SendingGoesOnThroughManyRestarts) {
  std::thread killer([this] {
    for (int i = 0; i < 10; ++i) Restart();
  });
  std::int64_t sent = 0;
  std::int64_t covered = 0;
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(session_->Send(values::AppendAt(sent++)).ok());
    ASSERT_EQ(Fetched(), values::EntriesUpTo(sent)) << "round " << round;
    if (round % 7 == 0) {
      ASSERT_TRUE(session_->Send(values::CheckpointAt(sent, covered)).ok());
      const auto done = session_->WaitForCheckpoint();
      ASSERT_TRUE(done.ok()) << done.status();
      EXPECT_EQ(done->token_count, sent);
      covered = sent;
    }
  }
  killer.join();
  EXPECT_EQ(Fetched(), values::EntriesUpTo(sent));
}

TEST_F(ReconnectTest, UnansweredReadsAreAskedAgain) {
  AppendAndCheckpoint(2);
  ASSERT_TRUE(session_->Send(values::AppendAt(2)).ok());
  node_.engine().HoldOperations();
  std::vector<std::future<absl::StatusOr<ReadReply>>> answers;
  for (int i = 0; i < kFetchesInFlightMax; ++i) {
    answers.push_back(session_->StartRead(values::FetchAll()));
    ASSERT_TRUE(session_->Send(values::AppendAt(3 + i)).ok());
  }
  Restart();
  // Each sees at least what was sent before it, and what came behind it no earlier than that.
  for (int i = 0; i < kFetchesInFlightMax; ++i) {
    EXPECT_EQ(values::EntriesOf(std::move(answers[static_cast<std::size_t>(i)])),
              values::EntriesUpTo(3 + i));
  }
}

TEST_F(ReconnectTest, CheckpointWhoseReplyWasLostIsDone) {
  node_.engine().DropCheckpointReplies();
  ASSERT_TRUE(session_->Send(values::AppendAt(0)).ok());
  ASSERT_TRUE(session_->Send(values::CheckpointAt(1, 0)).ok());
  // The read behind it shows that it was committed.
  EXPECT_EQ(Fetched(), values::EntriesUpTo(1));
  EXPECT_TRUE(session_->checkpoint_in_progress());
  Restart();
  const auto done = session_->WaitForCheckpoint();
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->token_count, 1);
  EXPECT_EQ(session_->replay_bytes(), 0);
  EXPECT_EQ(session_->attachment().token_count, 1);
}

TEST_F(ReconnectTest, CheckpointThatWasLostIsTakenAgain) {
  ASSERT_TRUE(session_->Send(values::AppendAt(0)).ok());
  node_.engine().HoldOperations();
  ASSERT_TRUE(session_->Send(values::CheckpointAt(1, 0)).ok());
  Restart();
  const auto done = session_->WaitForCheckpoint();
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->token_count, 1);
}

TEST_F(ReconnectTest, InterruptEndsEveryWaitForAKvNodeThatDoesNotAnswer) {
  AppendAndCheckpoint(2);
  ASSERT_TRUE(session_->Send(values::AppendAt(2)).ok());
  session_->SetInterrupt([] { return Cancelled("enough"); });
  node_.engine().HoldOperations();
  ASSERT_TRUE(session_->Send(values::CheckpointAt(3, 2)).ok());
  EXPECT_EQ(session_->WaitForCheckpoint().status().code(), absl::StatusCode::kCancelled);
  std::array<std::future<absl::StatusOr<ReadReply>>, kFetchesInFlightMax> answers;
  for (auto& answer : answers) answer = session_->StartRead(values::FetchAll());
  EXPECT_EQ(session_->StartRead(values::FetchAll()).get().status().code(),
            absl::StatusCode::kCancelled);
  node_.engine().ReleaseOperations();
  session_->SetInterrupt(nullptr);
  EXPECT_EQ(session_->WaitForCheckpoint()->token_count, 3);
  for (auto& answer : answers) {
    EXPECT_EQ(values::EntriesOf(std::move(answer)), values::EntriesUpTo(3));
  }
}

TEST_F(ReconnectTest, InterruptEndsTheWaitForAKvNodeThatIsGone) {
  AppendAndCheckpoint(2);
  session_->SetInterrupt([] { return Cancelled("enough"); });
  node_.Stop();
  std::vector<std::future<absl::StatusOr<ReadReply>>> asked_before;  // the loss was noticed
  while (true) {
    auto answer = session_->StartRead(values::FetchAll());
    if (answer.wait_for(std::chrono::milliseconds(10)) == std::future_status::ready) {
      EXPECT_EQ(answer.get().status().code(), absl::StatusCode::kCancelled);
      break;
    }
    asked_before.push_back(std::move(answer));
  }
  session_->SetInterrupt(nullptr);
  node_.Start();
  EXPECT_EQ(Fetched(), values::EntriesUpTo(2));
  for (auto& answer : asked_before) {
    EXPECT_EQ(values::EntriesOf(std::move(answer)), values::EntriesUpTo(2));
  }
}

TEST_F(ReconnectTest, WithNothingKeptALossIsAbortedUntilReattach) {
  AppendAndCheckpoint(2);
  session_->SetReplayMode(ReplayMode::kNothing);
  ASSERT_TRUE(session_->Send(values::AppendAt(2)).ok());
  EXPECT_EQ(session_->replay_bytes(), 0);
  Restart();
  EXPECT_EQ(session_->StartRead(values::FetchAll()).get().status().code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(session_->Send(values::AppendAt(3)).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(session_->Send(values::CheckpointAt(3, 2)).code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(session_->Reattach().ok());
  EXPECT_EQ(session_->attachment().token_count, 2);
  EXPECT_EQ(Fetched(), values::EntriesUpTo(2));
  ASSERT_TRUE(session_->Send(values::AppendAt(2)).ok());
  EXPECT_EQ(Fetched(), values::EntriesUpTo(3));
}

TEST_F(ReconnectTest, WithNothingKeptACheckpointInProgressIsAborted) {
  session_->SetReplayMode(ReplayMode::kNothing);
  ASSERT_TRUE(session_->Send(values::AppendAt(0)).ok());
  node_.engine().HoldOperations();
  ASSERT_TRUE(session_->Send(values::CheckpointAt(1, 0)).ok());
  Restart();
  EXPECT_EQ(session_->WaitForCheckpoint().status().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(session_->Reattach().ok());
  EXPECT_FALSE(session_->checkpoint_in_progress());
}

TEST_F(ReconnectTest, WithNothingKeptAndAllCoveredNobodyNotices) {
  session_->SetReplayMode(ReplayMode::kNothing);
  AppendAndCheckpoint(2);
  Restart();
  EXPECT_EQ(Fetched(), values::EntriesUpTo(2));
}

TEST_F(ReconnectTest, KeepingAgainAfterACheckpointReplaysFromThere) {
  session_->SetReplayMode(ReplayMode::kNothing);
  AppendAndCheckpoint(2);
  session_->SetReplayMode(ReplayMode::kOperations);
  ASSERT_TRUE(session_->Send(values::AppendAt(2)).ok());
  Restart();
  EXPECT_EQ(Fetched(), values::EntriesUpTo(3));
}

TEST_F(ReconnectTest, OwnerInBetweenAbortsTheSession) {
  AppendAndCheckpoint(1);
  ASSERT_TRUE(session_->Send(values::AppendAt(1)).ok());
  node_.Stop();
  // Nobody else can open it while the node is away, so the other owner opens it first thing after.
  node_.Start();
  Connect();
  const auto other = client_->Open({session_id_});
  ASSERT_TRUE(other.ok());
  // Either the resume or the stream that it had already made is refused.
  absl::Status status;
  while (status.ok()) status = session_->StartRead(values::FetchAll()).get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
}

TEST_F(ReconnectTest, NodeThatDoesNotComeBackIsUnavailable) {
  options_.reconnect_time_max = std::chrono::milliseconds(50);
  session_.reset();
  Connect();
  session_ = *client_->Open({session_id_});
  node_.Stop();
  const absl::Status status = session_->StartRead(values::FetchAll()).get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(session_->Send(values::AppendAt(0)).code(), absl::StatusCode::kUnavailable);
  // Not that there is no such session.
  EXPECT_EQ(client_->Delete({session_id_}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client_->Open({session_id_}).status().code(), absl::StatusCode::kUnavailable);
  node_.Start();
  const absl::Status reattached = session_->Reattach();
  ASSERT_TRUE(reattached.ok()) << reattached;
  ASSERT_TRUE(session_->Send(values::AppendAt(0)).ok());
  EXPECT_EQ(Fetched(), values::EntriesUpTo(1));
}

TEST_F(ReconnectTest, WhoeverWaitsForANodeWaitsFromWhenItWentAway) {
  NodeLink link(node_.socket_path(), options_);
  const auto connection = link.Get();
  ASSERT_TRUE(connection.ok()) << connection.status();
  node_.Stop();
  link.Drop(*connection);
  const auto end = link.WaitEnd();
  EXPECT_FALSE(link.Get().ok());
  EXPECT_FALSE(link.Get().ok());
  link.Drop(*connection);  // somebody else's call ended too
  EXPECT_EQ(link.WaitEnd(), end);
  node_.Start();
  ASSERT_TRUE(link.Get().ok());
  EXPECT_GT(link.WaitEnd(), end);
}

TEST_F(ReconnectTest, SessionThatWasDeletedMeanwhileIsNotFound) {
  AppendAndCheckpoint(1);
  node_.Stop();
  node_.Start();
  Connect();
  ASSERT_TRUE(client_->Delete({session_id_}).ok());
  // It may have resumed before the deletion; then the next loss shows it.
  Restart();
  absl::Status status;
  while (status.ok()) status = session_->StartRead(values::FetchAll()).get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
}

TEST_F(ReconnectTest, CallsWithoutAStreamWaitForTheNode) {
  node_.Stop();
  std::thread starter([this] { node_.Start(); });
  const auto created = client_->Create(values::ValidCreateSession());
  EXPECT_TRUE(created.ok()) << created.status();
  starter.join();
}

TEST_F(ReconnectTest, SessionCanBeDestroyedWhileTheNodeIsAway) {
  node_.Stop();
  session_.reset();
}

}  // namespace
}  // namespace cairn::compute
