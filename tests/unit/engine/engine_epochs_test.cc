// Rules of docs/architecture.md about what happens between two moments: a checkpoint's cut and its
// commit (rules 8 and 17), an operation's way to the engine and its turn (rule 12), the end of an
// attachment and the next one (rule 2). Nothing is placed unless a test has it placed, and writes
// can be held back.
#include <future>
#include <memory>
#include <utility>

#include "common/base/check.h"
#include "tests/unit/engine/engine_fixture.h"
#include "tests/unit/engine/gated_device.h"

namespace cairn::kv {
namespace {

// So many entries of SmallLayout() fill a part: they are placed as soon as they are pending.
constexpr std::int64_t kFillsAPart = kPartBytesMax / 160 + 1;

class EngineEpochTest : public EngineTest {
 protected:
  void SetUp() override {
    auto store = MetaStore::Open({.path = "/engine-epochs-test", .in_memory = true});
    ASSERT_TRUE(store.ok()) << store.status();
    auto device = std::make_unique<GatedDevice>(std::int64_t{16} << 20);
    device_ = device.get();
    EngineOptions options;
    options.durable = options.place_at_idle = options.defragment = false;
    options.arena_bytes_max = 0;  // every fetch reads the device
    auto engine = Engine::Open(options, StoreId{}, std::move(device), *std::move(store));
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    id_ = Create();
    session_ = Open(id_);
    ASSERT_NE(session_, nullptr);
  }
  void TearDown() override {
    device_->Release();
    session_.reset();
  }

  OpSeq SendCheckpoint(TestSession& session, std::int64_t start, std::int64_t count) const {
    Checkpoint op;
    op.token_count = count;
    op.token_ids_start = start;
    op.token_ids.assign(static_cast<std::size_t>(count - start), 1);
    op.next_cluster_ids.assign(6, 100);
    return session.Send(std::move(op));
  }
  // Has been cut, and waits for the write of its log run.
  OpSeq HoldCheckpoint(std::int64_t start, std::int64_t count) {
    device_->HoldNextWrites(1);
    const OpSeq op_seq = SendCheckpoint(*session_, start, count);
    EXPECT_TRUE(WaitForStats([this](const KvStats&) { return device_->held_count() == 1; }));
    return op_seq;
  }
  // Enough entries that the cluster's next part is full, in every layer and head; and its rows of
  // the log go there, too.
  void AppendUntilPlaced(std::int64_t cluster, std::int64_t first) {
    const std::int64_t before = Stats().write_pool_bytes;
    AppendAll(*session_, cluster, Positions::Range(first, kFillsAPart));
    EXPECT_TRUE(WaitForStats([&](const KvStats& stats) {
      return stats.write_pool_bytes - before >= 4 * (kPartBytesMax - kPageBytes);
    }));
    ExpectCluster(*session_, cluster, Positions::Range(0, first + kFillsAPart));
  }
  absl::Status Close(Epoch epoch) {
    return Await<std::monostate>(
               [&](auto done) { engine_->CloseSession(id_, epoch, std::move(done)); })
        .status();
  }
  absl::StatusOr<SealedSegment> Seal() {
    return Await<SealedSegment>([&](auto done) { engine_->SealSession(id_, std::move(done)); });
  }
  std::int64_t FlashBytes() {
    const auto sessions = Await<std::vector<SessionInfo>>(
        [&](auto done) { engine_->ListSessions(std::move(done)); });
    CAIRN_CHECK(sessions.ok() && sessions->size() == 1);
    return sessions->front().flash_bytes;
  }
  Append Entries(const Positions& positions) const {
    return {0, {{{0, ClusterId(1)}, positions, EntriesBytes(layout_, kSalt + 1, 0, 0, positions)}}};
  }

  GatedDevice* device_ = nullptr;  // the engine's
  SessionId id_;
  std::unique_ptr<TestSession> session_;
};

// Rule 8. What is appended and placed behind the cut changes the rows that the cut has captured.
TEST_F(EngineEpochTest, WhatIsPlacedBehindTheCutIsNotInTheCheckpoint) {
  AppendAll(*session_, 1, Positions::Range(0, 4));
  const OpSeq checkpoint = HoldCheckpoint(0, 4);
  AppendUntilPlaced(1, 4);
  device_->Release();
  const auto done = session_->WaitFor(checkpoint);
  ASSERT_TRUE(done.ok()) << done.status();
  session_ = Open(id_);  // as after a crash
  EXPECT_EQ(session_->attachment().token_count, 4);
  ExpectCluster(*session_, 1, Positions::Range(0, 4));
}

// Rule 17. The run of the first checkpoint is named by nothing in memory, and by committed rows.
TEST_F(EngineEpochTest, ALogRunIsFreeWhenTheCheckpointThatDropsItIsCommitted) {
  AppendAll(*session_, 1, Positions::Range(0, 4));
  const std::int64_t empty = Stats().flash_used_bytes;
  ASSERT_TRUE(TakeCheckpoint(*session_, 0, 4).ok());
  const std::int64_t run_bytes = Stats().flash_used_bytes - empty;
  ASSERT_GT(run_bytes, 0);
  AppendUntilPlaced(1, 4);
  EXPECT_GE(Stats().flash_used_bytes, empty + run_bytes + 4 * kPartBytesMax);
  AppendAll(*session_, 2, Positions::Range(4 + kFillsAPart, 4));
  const OpSeq checkpoint = HoldCheckpoint(4, 8 + kFillsAPart);
  const std::int64_t held = Stats().flash_used_bytes;
  device_->Release();
  const auto done = session_->WaitFor(checkpoint);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(Stats().flash_used_bytes, held - run_bytes);
}

TEST_F(EngineEpochTest, ACheckpointThatIsGivenUpLeavesTheLastOnesLogRun) {
  AppendAll(*session_, 1, Positions::Range(0, 4));
  ASSERT_TRUE(TakeCheckpoint(*session_, 0, 4).ok());
  AppendUntilPlaced(1, 4);
  AppendAll(*session_, 2, Positions::Range(4 + kFillsAPart, 4));
  HoldCheckpoint(4, 8 + kFillsAPart);
  session_.reset();
  Stats();  // the end of the channel has been seen
  device_->Release();
  session_ = Open(id_);
  EXPECT_EQ(session_->attachment().token_count, 4);
  AppendUntilPlaced(1, 4);
  session_ = Open(id_);
  ExpectCluster(*session_, 1, Positions::Range(0, 4));
}

// Rule 12. The numbers of both attachments are the same, so only the epoch tells them apart.
TEST_F(EngineEpochTest, AnOperationOfAnOlderEpochIsNotAppliedToTheNewerOne) {
  const auto newer = Open(id_);
  session_->Send(Entries(Positions::Range(0, 10)));
  ExpectCluster(*newer, 1, {});
  EXPECT_FALSE(session_->failure().ok());
  // Its own operation has this number.
  AppendAll(*newer, 1, Positions::Range(0, 5));
  ExpectCluster(*newer, 1, Positions::Range(0, 5));
  EXPECT_TRUE(newer->failure().ok()) << newer->failure();
}

// Rule 12. They wait for their turn, behind a checkpoint, when the epoch ends.
TEST_F(EngineEpochTest, OperationsThatWaitWhenTheirEpochEndsAreNotApplied) {
  AppendAll(*session_, 1, Positions::Range(0, 4));
  HoldCheckpoint(0, 4);
  SendCheckpoint(*session_, 4, 4);  // waits for the one before
  session_->Send(Entries(Positions::Range(4, 10)));
  const auto older = std::move(session_);
  std::promise<absl::StatusOr<Attachment>> opened;
  engine_->OpenSession(id_, [&](auto attachment) { opened.set_value(std::move(attachment)); });
  Stats();  // the older attachment is ending
  device_->Release();
  const auto attachment = opened.get_future().get();
  ASSERT_TRUE(attachment.ok()) << attachment.status();
  EXPECT_EQ(attachment->token_count, 0);
  EXPECT_FALSE(older->failure().ok());
  session_ = Open(id_);
  ExpectCluster(*session_, 1, {});
}

// Rule 2. The owner of the old epoch has numbers and records of a segment that is sealed now.
TEST_F(EngineEpochTest, ASealByTheNodeEndsTheEpoch) {
  AppendAll(*session_, 1, Positions::Range(0, 4));
  ASSERT_TRUE(TakeCheckpoint(*session_, 0, 4).ok());
  const Epoch epoch = session_->attachment().epoch;
  ASSERT_TRUE(Close(epoch).ok());
  EXPECT_GT(FlashBytes(), 0);
  const auto sealed = Seal();
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  EXPECT_EQ(sealed->token_count, 4);
  EXPECT_EQ(FlashBytes(), 0) << "what the sealed segment holds is not the session's own";
  const auto resumed = TestSession::Resume(*engine_, id_, epoch);
  EXPECT_EQ(resumed.status().code(), absl::StatusCode::kFailedPrecondition) << resumed.status();
  session_ = Open(id_);
  ExpectCluster(*session_, 1, Positions::Range(0, 4));
}

TEST_F(EngineEpochTest, AClosedSessionThatNobodySealedCanBeResumed) {
  const Epoch epoch = session_->attachment().epoch;
  ASSERT_TRUE(Close(epoch).ok());
  const auto resumed = TestSession::Resume(*engine_, id_, epoch);
  EXPECT_TRUE(resumed.ok()) << resumed.status();
}

// Rule 2.
TEST_F(EngineEpochTest, TheNodeDoesNotSealWhatSomebodyIsAttachedTo) {
  AppendAll(*session_, 1, Positions::Range(0, 4));
  ASSERT_TRUE(TakeCheckpoint(*session_, 0, 4).ok());
  EXPECT_EQ(Seal().status().code(), absl::StatusCode::kFailedPrecondition);
  AppendAll(*session_, 1, Positions::Range(4, 4));
  const auto done = TakeCheckpoint(*session_, 4, 8);
  EXPECT_TRUE(done.ok()) << done.status();
}

// Rule 2. An empty segment would be one that nobody can fork from.
TEST_F(EngineEpochTest, ASealWithoutNewPositionsIsAPlainCheckpoint) {
  AppendAll(*session_, 1, Positions::Range(0, 4));
  const auto first = TakeCheckpoint(*session_, 0, 4, /*seal=*/true);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_NE(first->sealed_segment_id.value(), 0);
  EXPECT_EQ(FlashBytes(), 0) << "what the sealed segment holds is not the session's own";
  const auto second = TakeCheckpoint(*session_, 4, 4, /*seal=*/true);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->sealed_segment_id.value(), 0);
  session_ = Open(id_);
  ExpectCluster(*session_, 1, Positions::Range(0, 4));
}

}  // namespace
}  // namespace cairn::kv
