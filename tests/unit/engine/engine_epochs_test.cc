// Rules of docs/kv-node.md about what happens between two moments: a checkpoint's cut and its
// commit (rules 2, 8 and 17), a write's start and its end (rule 15), an operation's way to the
// engine and its turn (rule 12), the end of an attachment and the next one (rules 2, 5 and 13).
// Nothing is placed unless a test has it placed, and transfers can be held back.
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
  void SetUp() override { StartGated({.arena_bytes_max = 0}); }  // every fetch reads the device
  void StartGated(EngineOptions options) {
    session_.reset();
    engine_.reset();
    auto store = MetaStore::Open({.path = "/engine-epochs-test", .in_memory = true});
    ASSERT_TRUE(store.ok()) << store.status();
    auto device = std::make_unique<GatedDevice>(std::int64_t{16} << 20);
    device_ = device.get();
    options.durable = options.place_at_idle = options.defragment = false;
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

  OpSeq SendCheckpoint(TestSession& session, std::int64_t start, std::int64_t count,
                       bool seal = false) const {
    Checkpoint op;
    op.seal = seal;
    op.token_count = count;
    op.token_ids_start = start;
    op.token_ids.assign(static_cast<std::size_t>(count - start), 1);
    op.next_cluster_ids.assign(6, 100);
    return session.Send(std::move(op));
  }
  // Has been cut, and waits for the write of its log run.
  OpSeq HoldCheckpoint(std::int64_t start, std::int64_t count, bool seal = false) {
    device_->HoldNextWrites(1);
    const OpSeq op_seq = SendCheckpoint(*session_, start, count, seal);
    EXPECT_TRUE(WaitForHeld());
    return op_seq;
  }
  bool WaitForHeld() {
    return WaitForStats([this](const KvStats&) { return device_->held_count() == 1; });
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
  void Evict(std::int64_t cluster, const Positions& positions) {
    for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
      for (std::int32_t head = 0; head < layout_.head_count; ++head) {
        session_->Send(Replace{layer, head, {ClusterId(cluster)}, {}, {}, {}, positions});
      }
    }
  }
  absl::Status Close(Epoch epoch) {
    return Await<std::monostate>(
               [&](auto done) { engine_->CloseSession(kDefaultApp, id_, epoch, std::move(done)); })
        .status();
  }
  absl::StatusOr<SealedSegment> Seal() {
    return Await<SealedSegment>([&](auto done) {
      engine_->SealSession(kDefaultApp, {id_, ""}, std::move(done));
    });
  }
  std::int64_t FlashBytes() {
    const auto sessions = Await<std::vector<SessionInfo>>(
        [&](auto done) { engine_->ListSessions(kDefaultApp, ListDetail::kRows, std::move(done)); });
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

// Rule 8. Else the first one would be forgotten, with what it has captured.
TEST_F(EngineEpochTest, ASecondCheckpointWaitsForTheFirst) {
  AppendAll(*session_, 1, Positions::Range(0, 4));
  const OpSeq first = HoldCheckpoint(0, 4);
  const std::int64_t written = Stats().write_log_bytes;
  AppendAll(*session_, 2, Positions::Range(4, 4));
  const OpSeq second = SendCheckpoint(*session_, 4, 8);
  Stats();  // the next answer is behind the engine's look at it
  ASSERT_EQ(Stats().write_log_bytes, written);
  device_->Release();
  for (const OpSeq checkpoint : {first, second}) {
    EXPECT_TRUE(session_->WaitFor(checkpoint).ok());
  }
  session_ = Open(id_);
  ExpectCluster(*session_, 1, Positions::Range(0, 4));
  ExpectCluster(*session_, 2, Positions::Range(4, 4));
}

// Rule 2. The seal is cut and not committed while the cluster grows.
TEST_F(EngineEpochTest, WhatComesBehindASealingCutGoesToTheNextSegment) {
  AppendAll(*session_, 1, Positions::Range(0, 4));
  const OpSeq checkpoint = HoldCheckpoint(0, 4, /*seal=*/true);
  AppendUntilPlaced(1, 4);
  device_->Release();
  const auto sealed = session_->WaitFor(checkpoint);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  const auto done = TakeCheckpoint(*session_, 4, 4 + kFillsAPart);
  ASSERT_TRUE(done.ok()) << done.status();
  session_ = Open(id_);
  ExpectCluster(*session_, 1, Positions::Range(0, 4 + kFillsAPart));
  ExpectCluster(*Open(Create(sealed->sealed_segment_id, 4)), 1, Positions::Range(0, 4));
}

// Rule 3. The session goes on, ends and is deleted; the segment that it has sealed has a run.
TEST_F(EngineEpochTest, ALogRunStaysWithItsSealedSegment) {
  const std::int64_t empty = Stats().flash_used_bytes;
  AppendAll(*session_, 1, Positions::Range(0, 4));
  const auto sealed = TakeCheckpoint(*session_, 0, 4, /*seal=*/true);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  const std::int64_t run_bytes = Stats().flash_used_bytes - empty;
  const auto fork = Open(Create(sealed->sealed_segment_id, 4));
  AppendAll(*session_, 2, Positions::Range(4, 4));
  ASSERT_TRUE(TakeCheckpoint(*session_, 4, 8).ok());
  session_ = Open(id_);
  EXPECT_EQ(Stats().flash_used_bytes, empty + 2 * run_bytes);
  session_.reset();
  ASSERT_TRUE(Delete(id_).ok());
  EXPECT_EQ(Stats().flash_used_bytes, empty + run_bytes);
  ExpectCluster(*fork, 1, Positions::Range(0, 4));
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
  const std::int64_t used = Stats().flash_used_bytes;
  AppendUntilPlaced(1, 4);
  AppendAll(*session_, 2, Positions::Range(4 + kFillsAPart, 4));
  HoldCheckpoint(4, 8 + kFillsAPart);
  session_.reset();
  Stats();  // the end of the channel has been seen
  device_->Release();
  session_ = Open(id_);
  EXPECT_EQ(session_->attachment().token_count, 4);
  EXPECT_EQ(Stats().flash_used_bytes, used);
  AppendUntilPlaced(1, 4);
  session_ = Open(id_);
  ExpectCluster(*session_, 1, Positions::Range(0, 4));
}

// Rule 15. Nothing but its write names the first run when the second one is written.
TEST_F(EngineEpochTest, ARunIsInUseUntilItsWriteHasEnded) {
  EngineOptions options;
  options.pending_bytes_max = kPartBytesMax;  // 102 tokens: more than that are written to a run
  options.arena_bytes_max = 0;
  StartGated(options);
  const auto spill = [this](std::int64_t first_cluster) {
    for (std::int64_t cluster = first_cluster; cluster < first_cluster + 35; ++cluster) {
      AppendAll(*session_, cluster, Positions::Range(3 * cluster, 3));
    }
  };
  const std::int64_t empty = Stats().flash_used_bytes;
  device_->HoldNextWrites(1);
  spill(1);
  ASSERT_TRUE(WaitForHeld());
  const std::int64_t run_bytes = Stats().flash_used_bytes - empty;
  ExpectCluster(*session_, 1, Positions::Range(3, 3));  // rule 6: from memory
  for (std::int64_t cluster = 1; cluster <= 35; ++cluster) {
    Evict(cluster, Positions::Range(3 * cluster, 3));
  }
  spill(36);
  ASSERT_TRUE(WaitForStats([](const KvStats& stats) { return stats.spill_count == 2; }));
  EXPECT_EQ(Stats().flash_used_bytes, empty + 2 * run_bytes);
  device_->Release();
  EXPECT_TRUE(WaitForStats(
      [&](const KvStats& stats) { return stats.flash_used_bytes == empty + run_bytes; }));
}

// Rule 16. A client that never gives its leases back keeps the arena's memory only.
TEST_F(EngineEpochTest, ALeaseHoldsNoFlash) {
  StartGated({});
  const std::int64_t empty = Stats().flash_used_bytes;
  AppendAll(*session_, 1, Positions::Range(0, 4));
  ASSERT_TRUE(TakeCheckpoint(*session_, 0, 4).ok());
  const auto held = session_->Read(Fetch{0, {{0, ClusterId(1)}}, true});
  ASSERT_TRUE(held.ok()) << held.status();
  Evict(1, Positions::Range(0, 4));
  ASSERT_TRUE(TakeCheckpoint(*session_, 4, 4).ok());
  EXPECT_EQ(Stats().leased_slot_count, 1);
  EXPECT_EQ(Stats().flash_used_bytes, empty);
  EXPECT_TRUE(Join(layout_, std::get<FetchReply>(*held).clusters.at(0)).entries ==
              EntriesBytes(layout_, kSalt, 0, 0, Positions::Range(0, 4)));
}

// Rule 5. It ends behind its attachment: it counts neither as served nor as lost.
TEST_F(EngineEpochTest, AReadOfAnEndedAttachmentIsDropped) {
  StartGated({});
  AppendAll(*session_, 1, Positions::Range(0, 4));
  ASSERT_TRUE(TakeCheckpoint(*session_, 0, 4).ok());
  device_->HoldNextReads(1);
  auto fetch = std::async(std::launch::async, [&] {
    return session_->Read(Fetch{0, {{0, ClusterId(1)}}, true});
  });
  ASSERT_TRUE(WaitForHeld());
  std::promise<absl::StatusOr<Attachment>> opened;
  engine_->OpenSession(kDefaultApp, {{id_, ""}, {}},
                       [&](auto attachment) { opened.set_value(std::move(attachment)); });
  EXPECT_FALSE(fetch.get().ok());
  device_->Release();
  const auto attachment = opened.get_future().get();
  ASSERT_TRUE(attachment.ok()) << attachment.status();
  EXPECT_EQ(Stats().cache_miss_count, 0);
  EXPECT_EQ(Stats().lost_part_count, 0);
}

// Rule 13. Nobody is attached when the older owner comes back.
TEST_F(EngineEpochTest, ResumeNeedsTheStoredEpoch) {
  const Epoch older = session_->attachment().epoch;
  session_ = Open(id_);
  const Epoch newer = session_->attachment().epoch;
  EXPECT_GT(newer, older);
  ASSERT_TRUE(Close(newer).ok());
  const auto refused = TestSession::Resume(*engine_, id_, older);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition) << refused.status();
  const auto resumed = TestSession::Resume(*engine_, id_, newer);
  EXPECT_TRUE(resumed.ok()) << resumed.status();
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
  engine_->OpenSession(kDefaultApp, {{id_, ""}, {}},
                       [&](auto attachment) { opened.set_value(std::move(attachment)); });
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
  ASSERT_EQ(Seal().status().code(), absl::StatusCode::kFailedPrecondition);
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
