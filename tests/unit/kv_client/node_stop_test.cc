// A KV node that is told to stop, and what attached sessions make of the time that it gives them.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "compute-node/kv_client/grpc_kv_node.h"
#include "tests/tools/says.h"
#include "tests/unit/kv_client/client_values.h"
#include "tests/unit/service/fake_node.h"

namespace cairn::compute {
namespace {

using kv::fake::FakeNode;

// A drain that nobody ends takes this long.
constexpr std::chrono::minutes kDrainTimeMax{5};

class NodeStopTest : public testing::Test {
 protected:
  NodeStopTest() {
    options_.reconnect_time_max = std::chrono::milliseconds(20000);
    options_.backoff_min = std::chrono::milliseconds(1);
    options_.backoff_max = std::chrono::milliseconds(20);
    options_.checkpoints_at_stop = true;
    Connect();
  }
  void TearDown() override {
    if (drain_.joinable()) drain_.join();
  }
  void Connect() {
    session_.reset();
    client_ = *GrpcKvNode::Connect(node_.socket_path(), options_);
    session_ = *client_->Open(*client_->Create(values::ValidCreateSession()));
  }
  // As SIGTERM does.
  void StartDrain() {
    drain_ = std::thread([this] {
      node_.server().Drain(kDrainTimeMax);
      drained_.store(true);
    });
  }
  // The daemon's process ends, and the next one starts.
  void EndDrain() {
    drain_.join();
    node_.Stop();
    node_.Start();
  }
  void Append(std::int64_t position) {
    ASSERT_TRUE(session_->Send(values::AppendAt(position)).ok());
  }
  std::string Fetched() { return values::EntriesOf(session_->StartRead(values::FetchAll())); }

  FakeNode node_;
  KvClientOptions options_;
  std::unique_ptr<GrpcKvNode> client_;
  std::unique_ptr<KvSession> session_;
  std::thread drain_;
  std::atomic<bool> drained_ = false;
};

TEST_F(NodeStopTest, ASessionStoresWhatItHasAndLetsGo) {
  EXPECT_FALSE(session_->wants_checkpoint());
  Append(0);
  StartDrain();
  while (!session_->wants_checkpoint()) {
  }
  EXPECT_EQ(Fetched(), values::EntriesUpTo(1));  // it is served until then
  EXPECT_FALSE(drained_.load());
  Append(1);
  ASSERT_TRUE(session_->Send(values::CheckpointAt(2, 0)).ok());
  const auto done = session_->WaitForCheckpoint();
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->token_count, 2);
  EndDrain();
  ASSERT_TRUE(session_->AwaitNode().ok());
  EXPECT_FALSE(session_->wants_checkpoint());
  EXPECT_EQ(session_->attachment().token_count, 2);
  EXPECT_EQ(Fetched(), values::EntriesUpTo(2));
}

TEST_F(NodeStopTest, ASessionWithNothingToStoreLetsGoAtOnce) {
  Append(0);
  ASSERT_TRUE(session_->Send(values::CheckpointAt(1, 0)).ok());
  ASSERT_TRUE(session_->WaitForCheckpoint().ok());
  StartDrain();
  EndDrain();
  EXPECT_EQ(Fetched(), values::EntriesUpTo(1));
}

// In prefill all behind the last checkpoint is computed again.
TEST_F(NodeStopTest, ASessionThatKeepsNothingLetsGoAtOnce) {
  session_->SetReplayMode(ReplayMode::kNothing);
  Append(0);
  EXPECT_EQ(Fetched(), values::EntriesUpTo(1));
  StartDrain();
  EndDrain();
  EXPECT_EQ(session_->AwaitNode().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(session_->Reattach().ok());
}

TEST_F(NodeStopTest, ACheckpointThatIsUnderWayIsWaitedFor) {
  session_->SetReplayMode(ReplayMode::kNothing);
  Append(0);
  node_.engine().HoldOperations();
  ASSERT_TRUE(session_->Send(values::CheckpointAt(1, 0)).ok());
  StartDrain();
  while (!session_->wants_checkpoint()) {
  }
  node_.engine().ReleaseOperations();
  const auto done = session_->WaitForCheckpoint();
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->token_count, 1);
  EndDrain();
  EXPECT_EQ(Fetched(), values::EntriesUpTo(1));
}

TEST_F(NodeStopTest, NothingNewIsBegunMeanwhileAndTheRestIsAnswered) {
  Append(0);
  const SessionId other = client_->Create(values::ValidCreateSession())->id;
  StartDrain();
  while (!session_->wants_checkpoint()) {
  }
  EXPECT_EQ(client_->List(ListDetail::kRows)->size(), 2U);
  EXPECT_TRUE(client_->Delete({other}).ok());
  client_->StopWaiting(std::chrono::milliseconds(0));
  EXPECT_TRUE(absl::IsUnavailable(client_->Create(values::ValidCreateSession()).status()));
  EXPECT_TRUE(absl::IsUnavailable(client_->Open({other}).status()));
  EXPECT_TRUE(absl::IsUnavailable(client_->Seal({other}).status()));
  session_.reset();
  drain_.join();
}

TEST_F(NodeStopTest, WhoDoesNotHearOfAStopIsNotWaitedFor) {
  options_.checkpoints_at_stop = false;
  Connect();
  Append(0);
  EXPECT_EQ(Fetched(), values::EntriesUpTo(1));
  StartDrain();
  EndDrain();
  EXPECT_EQ(Fetched(), values::EntriesUpTo(1));  // sent again
}

// A process that is to end cannot wait as long as one that goes on.
TEST_F(NodeStopTest, WaitsForANodeThatIsAwayEndWithTheProcess) {
  options_.reconnect_time_max = std::chrono::hours(1);
  Connect();
  Append(0);
  node_.Stop();
  client_->StopWaiting(std::chrono::milliseconds(1));
  absl::Status status;
  while (status.ok()) status = session_->AwaitNode();  // until the loss is noticed
  for (const absl::Status& ended :
       {status, session_->Send(values::AppendAt(1)), session_->Reattach(),
        client_->List(ListDetail::kRows).status(), client_->Open({SessionId(1)}).status()}) {
    EXPECT_TRUE(absl::IsUnavailable(ended)) << ended;
    EXPECT_TRUE(test::Says(ended, "this process is stopping")) << ended;
  }
  session_.reset();
}

}  // namespace
}  // namespace cairn::compute
