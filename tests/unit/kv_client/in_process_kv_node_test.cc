#include "compute-node/kv_client/in_process_kv_node.h"

#include <chrono>
#include <future>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/kv_client/client_values.h"
#include "tests/unit/service/fake_engine.h"

namespace cairn::compute {
namespace {

class InProcessKvNodeTest : public testing::Test {
 protected:
  InProcessKvNodeTest() {
    auto engine = std::make_unique<kv::fake::FakeEngine>(std::make_shared<kv::fake::FakeStore>());
    engine_ = engine.get();
    node_ = std::make_unique<InProcessKvNode>(std::move(engine));
    session_id_ = node_->Create(values::ValidCreateSession())->id;
    session_ = *node_->Open({session_id_});
  }

  kv::fake::FakeEngine* engine_ = nullptr;
  std::unique_ptr<InProcessKvNode> node_;
  SessionId session_id_;
  std::unique_ptr<KvSession> session_;
};

TEST_F(InProcessKvNodeTest, ReadSeesAllThatWasSentBefore) {
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(session_->Send(values::AppendAt(i)).ok());
  EXPECT_EQ(values::EntriesOf(session_->StartRead(values::FetchAll())), values::EntriesUpTo(200));
}

TEST_F(InProcessKvNodeTest, SendWaitsWhileTheChannelIsFull) {
  engine_->HoldOperations();
  std::thread sender([this] {
    for (int i = 0; i < std::int64_t{3} * kv::kChannelQueueMax; ++i) {
      ASSERT_TRUE(session_->Send(values::AppendAt(i)).ok());
    }
  });
  engine_->WaitForQueuedCount(kv::kChannelQueueMax);
  engine_->ReleaseOperations();
  sender.join();
  EXPECT_EQ(values::EntriesOf(session_->StartRead(values::FetchAll())),
            values::EntriesUpTo(std::int64_t{3} * kv::kChannelQueueMax));
  EXPECT_LE(engine_->queued_count_max(), kv::kChannelQueueMax);
}

TEST_F(InProcessKvNodeTest, CheckpointOutlivesTheSession) {
  ASSERT_TRUE(session_->Send(values::AppendAt(0)).ok());
  ASSERT_TRUE(session_->Send(values::CheckpointAt(1, 0)).ok());
  ASSERT_TRUE(session_->WaitForCheckpoint().ok());
  session_.reset();
  session_ = *node_->Open({session_id_});
  EXPECT_EQ(session_->attachment().token_count, 1);
  EXPECT_EQ(values::EntriesOf(session_->StartRead(values::FetchAll())), values::EntriesUpTo(1));
}

TEST_F(InProcessKvNodeTest, WhatNoCheckpointCoversIsCountedWhereItCouldBeLost) {
  ASSERT_TRUE(session_->Send(values::AppendAt(0)).ok());
  EXPECT_EQ(session_->uncovered_bytes(), 0);  // in memory
  auto engine = std::make_unique<kv::fake::FakeEngine>(std::make_shared<kv::fake::FakeStore>());
  InProcessKvNode durable(std::move(engine), /*durable=*/true);
  const auto session = durable.Open({durable.Create(values::ValidCreateSession())->id});
  ASSERT_TRUE(session.ok());
  KvSession& kv = **session;
  EXPECT_EQ(kv.uncovered_bytes(), 0);
  ASSERT_TRUE(kv.Send(values::AppendAt(0)).ok());
  const std::int64_t of_one = kv.uncovered_bytes();
  EXPECT_GT(of_one, 0);
  ASSERT_TRUE(kv.Send(values::AppendAt(1)).ok());
  EXPECT_EQ(kv.uncovered_bytes(), 2 * of_one);
  ASSERT_TRUE(kv.Send(values::CheckpointAt(2, 0)).ok());
  ASSERT_TRUE(kv.WaitForCheckpoint().ok());
  EXPECT_EQ(kv.uncovered_bytes(), 0);
  kv.SetReplayMode(ReplayMode::kNothing);
  ASSERT_TRUE(kv.Send(values::AppendAt(2)).ok());
  EXPECT_EQ(kv.uncovered_bytes(), 0);
  EXPECT_EQ(kv.replay_bytes(), 0);
}

TEST_F(InProcessKvNodeTest, FailedOperationStaysUntilReattach) {
  Append bad = values::AppendAt(0);
  bad.layer = 9;
  ASSERT_TRUE(session_->Send(bad).ok());
  EXPECT_EQ(session_->StartRead(values::FetchAll()).get().status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(session_->Send(values::AppendAt(0)).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(session_->Reattach().ok());
  ASSERT_TRUE(session_->Send(values::AppendAt(0)).ok());
  EXPECT_EQ(values::EntriesOf(session_->StartRead(values::FetchAll())), values::EntriesUpTo(1));
}

TEST_F(InProcessKvNodeTest, UnknownSessionIsNotFound) {
  EXPECT_EQ(node_->Open({SessionId(99)}).status().code(), absl::StatusCode::kNotFound);
}

TEST(RamKvNodeTest, EngineInMemoryKeepsASession) {
  const auto node = MakeRamKvNode({});
  ASSERT_TRUE(node.ok()) << node.status();
  const auto id = (*node)->Create(values::ValidCreateSession());
  ASSERT_TRUE(id.ok()) << id.status();
  const auto session = (*node)->Open(*id);
  ASSERT_TRUE(session.ok()) << session.status();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE((*session)->Send(values::AppendAt(i)).ok());
  EXPECT_EQ(values::EntriesOf((*session)->StartRead(values::FetchAll())), values::EntriesUpTo(20));
  const auto stats = (*node)->Stats();
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->io_engine, "memory");
}

// A step holds the answers of a layer until it has the last of them.
TEST(RamKvNodeTest, AnswersThatAreHeldDoNotHoldUpOthers) {
  const auto node = MakeRamKvNode({});
  ASSERT_TRUE(node.ok()) << node.status();
  CreateSession create = values::ValidCreateSession();
  create.layout = {.layer_count = 1, .head_count = 1, .head_dim = 64, .kv_format = KvFormat::kF16};
  const auto id = (*node)->Create(create);
  ASSERT_TRUE(id.ok()) << id.status();
  const auto session = (*node)->Open(*id);
  ASSERT_TRUE(session.ok()) << session.status();
  constexpr std::int64_t kPartEntries = 256;  // a whole pool
  constexpr std::int64_t kClusters = 32;      // 2 MiB
  for (std::int64_t cluster = 0; cluster < kClusters; ++cluster) {
    Append append;
    append.clusters.push_back({{0, ClusterId(cluster + 1)},
                               Positions::Range(cluster * kPartEntries, kPartEntries),
                               std::string(std::size_t{kPartEntries} * 256, 'x')});
    ASSERT_TRUE((*session)->Send(std::move(append)).ok());
  }
  Fetch all;
  for (std::int64_t cluster = 0; cluster < kClusters; ++cluster) {
    all.clusters.push_back({0, ClusterId(cluster + 1)});
  }
  std::vector<std::future<absl::StatusOr<ReadReply>>> answers(8);
  for (std::future<absl::StatusOr<ReadReply>>& answer : answers) {
    answer = (*session)->StartRead(all);
  }
  for (std::future<absl::StatusOr<ReadReply>>& answer : answers) {
    EXPECT_EQ(answer.wait_for(std::chrono::minutes(1)), std::future_status::ready);
  }
}

}  // namespace
}  // namespace cairn::compute
