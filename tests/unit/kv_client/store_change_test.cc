// What a KV node client does when replies are lost, and when the KV node comes back with another
// store or with an older copy of its own.
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "compute-node/kv_client/grpc_kv_node.h"
#include "tests/unit/kv_client/client_values.h"
#include "tests/unit/service/fake_node.h"

namespace cairn::compute {
namespace {

using kv::fake::FakeNode;
using kv::fake::FakeStore;

class StoreChangeTest : public testing::Test {
 protected:
  StoreChangeTest() {
    KvClientOptions options;
    options.reconnect_time_max = std::chrono::milliseconds(20000);
    options.backoff_min = std::chrono::milliseconds(1);
    options.backoff_max = std::chrono::milliseconds(20);
    auto connected = GrpcKvNode::Connect(node_.socket_path(), options);
    EXPECT_TRUE(connected.ok()) << connected.status();
    client_ = *std::move(connected);
    ref_ = *client_->Create(values::ValidCreateSession());
    session_ = *client_->Open(ref_);
  }
  void AppendAndCheckpoint(KvSession& session, std::int64_t first, std::int64_t end) {
    for (std::int64_t i = first; i < end; ++i) ASSERT_TRUE(session.Send(values::AppendAt(i)).ok());
    ASSERT_TRUE(session.Send(values::CheckpointAt(end, first)).ok());
    ASSERT_TRUE(session.WaitForCheckpoint().ok());
  }
  std::string Fetched() { return values::EntriesOf(session_->StartRead(values::FetchAll())); }
  // The status that the session's reads come to.
  absl::Status End() {
    absl::Status status;
    while (status.ok()) status = session_->StartRead(values::FetchAll()).get().status();
    return status;
  }
  // A store that has a session of the same number, label, length and epoch.
  std::shared_ptr<FakeStore> LookAlike(std::int64_t token_count) {
    FakeNode other;
    {
      auto client = *GrpcKvNode::Connect(other.socket_path(), {});
      const SessionRef ref = *client->Create(values::ValidCreateSession());
      EXPECT_EQ(ref.id, ref_.id);
      const auto session = *client->Open(ref);
      AppendAndCheckpoint(*session, 0, token_count);
    }
    other.Stop();
    other.store()->id = std::string(kUidBytes, 't');
    return other.store();
  }
  std::int64_t TokensOf(const FakeStore& store) const {
    return store.sessions.at(ref_.id).committed.token_count;
  }

  FakeNode node_;
  std::unique_ptr<GrpcKvNode> client_;
  SessionRef ref_;
  std::unique_ptr<KvSession> session_;
};

TEST_F(StoreChangeTest, ResumesWhoseRepliesAreLostAreMadeAgain) {
  AppendAndCheckpoint(*session_, 0, 2);
  ASSERT_TRUE(session_->Send(values::AppendAt(2)).ok());
  node_.Stop();
  node_.Start();
  node_.engine().LoseReplies(3);
  EXPECT_EQ(Fetched(), values::EntriesUpTo(3));
  EXPECT_EQ(session_->reconnect_count(), 1);
}

TEST_F(StoreChangeTest, CallsWhoseRepliesAreLostHaveOneEffect) {
  session_.reset();
  node_.engine().LoseReplies(2);
  const auto created = client_->Create(values::ValidCreateSession());
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(client_->List(ListDetail::kRows)->size(), 2U);
  node_.engine().LoseReplies(2);
  session_ = *client_->Open(*created);
  AppendAndCheckpoint(*session_, 0, 2);
  session_.reset();
  node_.engine().LoseReplies(1);
  const auto sealed = client_->Seal(*created);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  CreateSession fork = values::ValidCreateSession();
  fork.parent = *created;
  fork.parent_segment_id = sealed->segment_id;
  fork.parent_token_count = 1;
  node_.engine().LoseReplies(1);
  EXPECT_TRUE(client_->Create(fork).ok());
  EXPECT_EQ(client_->List(ListDetail::kRows)->size(), 3U);
  node_.engine().LoseReplies(1);
  EXPECT_TRUE(client_->Delete(*created).ok());
  EXPECT_EQ(client_->List(ListDetail::kRows)->size(), 2U);
  node_.engine().LoseReplies(2);
  // The newest is the fork.
  const absl::Status superseded =
      client_->Supersede({ref_, RefTo(client_->List(ListDetail::kRows)->front())});
  EXPECT_TRUE(superseded.ok()) << superseded;
  EXPECT_EQ(client_->List(ListDetail::kRows)->size(), 1U);
}

TEST_F(StoreChangeTest, ASessionDoesNotGoOnInAnotherStore) {
  AppendAndCheckpoint(*session_, 0, 3);
  ASSERT_TRUE(session_->Send(values::AppendAt(3)).ok());
  const std::shared_ptr<FakeStore> other = LookAlike(3);
  const Epoch epoch = other->sessions.at(ref_.id).epoch;
  node_.Stop();
  node_.Start(other);
  const absl::Status status = End();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(Message(status).find("another store"), std::string::npos) << status;
  EXPECT_EQ(session_->Reattach().code(), absl::StatusCode::kFailedPrecondition);
  session_.reset();
  // What is new goes to the store that is there.
  const auto created = client_->Create(values::ValidCreateSession());
  ASSERT_TRUE(created.ok()) << created.status();
  session_ = *client_->Open(*created);
  AppendAndCheckpoint(*session_, 0, 1);
  session_.reset();
  node_.Stop();
  EXPECT_EQ(TokensOf(*other), 3);
  EXPECT_EQ(other->sessions.at(ref_.id).epoch, epoch);
}

TEST_F(StoreChangeTest, CallsThatNameASessionOfAnotherStoreAreRefused) {
  AppendAndCheckpoint(*session_, 0, 3);
  session_.reset();
  const std::shared_ptr<FakeStore> other = LookAlike(3);
  const Epoch epoch = other->sessions.at(ref_.id).epoch;
  node_.Stop();
  node_.Start(other);
  EXPECT_EQ(client_->Open(ref_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(client_->Seal(ref_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(client_->Delete(ref_).code(), absl::StatusCode::kFailedPrecondition);
  CreateSession fork = values::ValidCreateSession();
  fork.parent = ref_;
  fork.parent_segment_id = SegmentId(10);
  fork.parent_token_count = 1;
  EXPECT_EQ(client_->Create(fork).status().code(), absl::StatusCode::kFailedPrecondition);
  node_.Stop();
  ASSERT_EQ(other->sessions.size(), 1U);
  EXPECT_EQ(other->sessions.at(ref_.id).epoch, epoch);
}

// The first try may have taken effect, and there is nothing but a number to know the session by.
TEST_F(StoreChangeTest, ACallIsNotMadeAgainInAnotherStore) {
  session_.reset();
  const std::shared_ptr<FakeStore> other = LookAlike(3);
  node_.engine().LoseReplies(1000);
  absl::Status deleted;
  std::thread caller([&] { deleted = client_->Delete({ref_.id}); });
  while (!node_.engine().replies_were_lost()) {
  }
  node_.Stop();
  node_.Start(other);
  caller.join();
  EXPECT_EQ(deleted.code(), absl::StatusCode::kFailedPrecondition) << deleted;
  EXPECT_EQ(client_->List(ListDetail::kRows)->size(), 1U);
}

TEST_F(StoreChangeTest, ASessionDoesNotGoOnInAnOlderCopyOfItsStore) {
  AppendAndCheckpoint(*session_, 0, 2);
  node_.Stop();
  const auto older = std::make_shared<FakeStore>(*node_.store());
  node_.Start();
  for (std::int64_t i = 2; i < 5; ++i) ASSERT_TRUE(session_->Send(values::AppendAt(i)).ok());
  ASSERT_TRUE(session_->Send(values::CheckpointAt(5, 2)).ok());
  ASSERT_TRUE(session_->WaitForCheckpoint().ok());
  ASSERT_TRUE(session_->Send(values::AppendAt(5)).ok());
  node_.Stop();
  // The compute node's own, as it was a moment ago.
  older->sessions.at(ref_.id).owner = node_.store()->sessions.at(ref_.id).owner;
  const Epoch epoch = older->sessions.at(ref_.id).epoch;
  node_.Start(older);
  const absl::Status status = End();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  session_.reset();
  node_.Stop();
  EXPECT_EQ(older->sessions.at(ref_.id).epoch, epoch);
}

// What was acknowledged before the copy was taken is all there.
TEST_F(StoreChangeTest, ACopyThatHasEverythingIsAsGood) {
  AppendAndCheckpoint(*session_, 0, 2);
  ASSERT_TRUE(session_->Send(values::AppendAt(2)).ok());
  node_.Stop();
  node_.Start(std::make_shared<FakeStore>(*node_.store()));
  EXPECT_EQ(Fetched(), values::EntriesUpTo(3));
}

TEST_F(StoreChangeTest, AChannelThatIsRefusedIsNoOtherOwner) {
  AppendAndCheckpoint(*session_, 0, 2);
  ASSERT_TRUE(session_->Send(values::AppendAt(2)).ok());
  node_.Stop();
  node_.Start();
  node_.engine().RefuseChannels(3);
  EXPECT_EQ(Fetched(), values::EntriesUpTo(3));
}

}  // namespace
}  // namespace cairn::compute
