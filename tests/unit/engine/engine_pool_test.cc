// Two parts in one pool: how they share its room and the page where they meet, and when an end is
// free again. Rules 6 and 15 of docs/kv-node.md. Entries have 512 bytes, eight to a page, and
// are placed as soon as nothing else is to be done, unless a test says otherwise.
#include <algorithm>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kv-node/engine/engine.h"
#include "kv-node/engine/place/co_fetches.h"
#include "tests/unit/engine/engine_harness.h"
#include "tests/unit/engine/gated_device.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kPoolSalt = 11;

class EnginePoolTest : public ::testing::Test {
 protected:
  void SetUp() override { Start({}); }
  void TearDown() override {
    if (device_ != nullptr) device_->Release();
    session_.reset();
    engine_.reset();
  }

  void Start(EngineOptions options) {
    session_.reset();
    engine_.reset();
    options.durable = false;
    options.arena_bytes_max = 0;  // every fetch reads the device
    const bool is_default = options.place_entries_min == EngineOptions().place_entries_min;
    if (is_default) options.place_entries_min = 1;
    MetaOptions meta;
    meta.path = "/engine-pool-test";
    meta.in_memory = true;
    auto store = MetaStore::Open(meta);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    auto device = std::make_unique<GatedDevice>(std::int64_t{16} << 20);
    device_ = device.get();
    auto engine = Engine::Open(options, StoreId{}, std::move(device), *std::move(store));
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = *std::move(engine);
    CreateSession request;
    request.key = SmallKey();
    request.layout = layout_;
    const auto id = Await<SessionRef>(
        [&](auto done) { engine_->Create(kDefaultApp, request, std::move(done)); });
    ASSERT_TRUE(id.ok()) << id.status().ToString();
    id_ = id->id;
    token_count_ = checkpointed_ = 0;
    Reopen();
  }

  // What no checkpoint covers is gone, as after a crash.
  void Reopen() {
    session_.reset();
    auto session = TestSession::Open(*engine_, id_);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    session_ = *std::move(session);
    token_count_ = checkpointed_;
  }

  // The next `count` positions go to a cluster, as pending entries.
  Positions AppendNext(std::int64_t cluster, std::int64_t count) {
    Positions positions = Positions::Range(token_count_, count);
    token_count_ += count;
    next_cluster_id_ = std::max(next_cluster_id_, cluster + 1);
    cairn::Append op;
    op.clusters.push_back(
        {{0, ClusterId(cluster)}, positions, EntriesBytes(layout_, kPoolSalt, 0, 0, positions)});
    session_->Send(std::move(op));
    return positions;
  }

  FetchedCluster Fetch(std::int64_t cluster) {
    const auto reply = session_->Read(cairn::Fetch{0, {{0, ClusterId(cluster)}}, true});
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return reply.ok() ? std::get<FetchReply>(*reply).clusters.at(0) : FetchedCluster();
  }

  // Asks until the cluster has no pending entries.
  FetchedCluster WaitUntilPlaced(std::int64_t cluster) {
    while (true) {
      FetchedCluster fetched = Fetch(cluster);
      const bool placed = std::all_of(fetched.spans.begin(), fetched.spans.end(),
                                      [](const Span& span) { return span.part_id.value() != 0; });
      if (placed || ::testing::Test::HasFailure()) return fetched;
    }
  }

  Positions Place(std::int64_t cluster, std::int64_t count) {
    Positions positions = AppendNext(cluster, count);
    WaitUntilPlaced(cluster);
    return positions;
  }

  void ExpectWhole(const FetchedCluster& fetched, const Positions& positions) {
    ASSERT_EQ(fetched.outcome, FetchOutcome::kFound);
    const JoinedCluster joined = Join(layout_, fetched);
    EXPECT_EQ(joined.positions, positions);
    EXPECT_TRUE(joined.entries == EntriesBytes(layout_, kPoolSalt, 0, 0, positions));
  }
  void ExpectWhole(std::int64_t cluster, const Positions& positions) {
    SCOPED_TRACE("cluster " + std::to_string(cluster));
    ExpectWhole(Fetch(cluster), positions);
  }

  std::vector<Direction> DirectionsOf(std::int64_t cluster) {
    std::vector<Direction> out;
    for (const Span& span : Fetch(cluster).spans) out.push_back(span.direction);
    return out;
  }

  void Evict(std::int64_t cluster, const Positions& positions) {
    Replace op;
    op.parent_ids = {ClusterId(cluster)};
    op.evicted_positions = positions;
    session_->Send(std::move(op));
  }

  OpSeq SendCheckpoint() {
    Checkpoint op;
    op.token_count = token_count_;
    op.token_ids_start = checkpointed_;
    op.token_ids.assign(static_cast<std::size_t>(token_count_ - checkpointed_), 1);
    op.next_cluster_ids.assign(2, next_cluster_id_);
    return session_->Send(std::move(op));
  }
  void TakeCheckpoint() {
    const auto done = session_->WaitFor(SendCheckpoint());
    ASSERT_TRUE(done.ok()) << done.status().ToString();
    checkpointed_ = token_count_;
  }

  KvStats Stats() {
    return *Await<KvStats>([&](auto done) { engine_->GetStats(kDefaultApp, std::move(done)); });
  }
  std::int64_t UsedPages() { return Stats().flash_used_bytes / kPageBytes; }
  // All that was sent before has been looked at: the second call is answered behind the engine's
  // next round.
  void LetTheEngineLook() {
    Stats();
    Stats();
  }

  // Entries are placed when the table is full, the fullest cluster first, until half is left.
  void StartPlacingUnderPressure() {
    EngineOptions options;
    options.place_at_idle = false;
    options.pending_bytes_max = kPartBytesMax;
    Start(options);
  }
  // Fills the table with clusters of 16 entries each, and sends one entry more, which makes room.
  void FillTheTable(std::int64_t first_cluster) {
    for (std::int64_t i = 0; i < 9; ++i) AppendNext(first_cluster + i, 16);
    AppendNext(first_cluster + 9, 1);
  }

  const EntryLayout layout_{1, 1, 128, KvFormat::kF16};
  GatedDevice* device_ = nullptr;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<TestSession> session_;
  SessionId id_;
  std::int64_t token_count_ = 0;
  std::int64_t checkpointed_ = 0;
  std::int64_t next_cluster_id_ = 1;
};

TEST_F(EnginePoolTest, TwoClustersShareAPoolFromItsTwoEnds) {
  const std::int64_t before = UsedPages();
  const Positions a = Place(1, 2);
  EXPECT_EQ(UsedPages(), before + 1);
  const Positions b = Place(2, 2);
  EXPECT_EQ(UsedPages(), before + 1);
  EXPECT_EQ(DirectionsOf(1), std::vector{Direction::kUp});
  EXPECT_EQ(DirectionsOf(2), std::vector{Direction::kDown});
  TakeCheckpoint();
  Reopen();
  ExpectWhole(1, a);
  ExpectWhole(2, b);
  EXPECT_EQ(UsedPages(), before + 1);
}

TEST_F(EnginePoolTest, ThePageWhereTwoPartsMeetKeepsBothWhileEitherGrows) {
  Positions a = Place(1, 2);
  Positions b = Place(2, 2);
  TakeCheckpoint();
  const Positions a_then = a;
  const Positions b_then = b;
  for (int i = 0; i < 2; ++i) {
    a.AppendAll(Place(1, 1));
    ExpectWhole(1, a);
    ExpectWhole(2, b);
    b.AppendAll(Place(2, 1));
    ExpectWhole(1, a);
    ExpectWhole(2, b);
  }
  EXPECT_EQ(DirectionsOf(1), std::vector{Direction::kUp});
  EXPECT_EQ(DirectionsOf(2), std::vector{Direction::kDown});
  Reopen();  // the checkpointed counts still pass their checks
  ExpectWhole(1, a_then);
  ExpectWhole(2, b_then);
  a = a_then;
  a.AppendAll(Place(1, 3));  // over what the dropped entries left
  ExpectWhole(1, a);
  ExpectWhole(2, b_then);
}

TEST_F(EnginePoolTest, GrowthThatMeetsTheOtherPartBecomesANewPartElsewhere) {
  Positions a = Place(1, 2);
  const Positions b = Place(2, 2);
  a.AppendAll(Place(1, 4));  // the pool is full
  EXPECT_EQ(Fetch(1).spans.size(), 1U);
  const std::int64_t full = UsedPages();
  a.AppendAll(Place(1, 1));
  EXPECT_EQ(Fetch(1).spans.size(), 2U);
  EXPECT_EQ(UsedPages(), full + 1);
  ExpectWhole(1, a);
  ExpectWhole(2, b);
}

TEST_F(EnginePoolTest, ChildrenOfAReplaceShareOneFreshPool) {
  const Positions a = Place(1, 40);
  const std::int64_t before = UsedPages();
  Replace split;
  split.parent_ids = {ClusterId(1)};
  split.children = {{ClusterId(2), a.Slice(0, 13)}, {ClusterId(3), a.Slice(13, 27)}};
  session_->Send(std::move(split));
  ExpectWhole(2, a.Slice(0, 13));
  ExpectWhole(3, a.Slice(13, 27));
  EXPECT_EQ(DirectionsOf(2), std::vector{Direction::kUp});
  EXPECT_EQ(DirectionsOf(3), std::vector{Direction::kDown});
  next_cluster_id_ = 4;
  // 40 entries in 5 pages, twice that for growth: 16 pages.
  EXPECT_EQ(UsedPages(), before + 16);
  TakeCheckpoint();
  EXPECT_EQ(UsedPages(), before) << "the parent's pool had as many";
  Reopen();
  ExpectWhole(2, a.Slice(0, 13));
  ExpectWhole(3, a.Slice(13, 27));
}

TEST_F(EnginePoolTest, ChildrenThatMeetInAPageAreWrittenTogether) {
  const Positions a = Place(1, 128);  // fills the largest pool
  Replace split;
  split.parent_ids = {ClusterId(1)};
  split.children = {{ClusterId(2), a.Slice(0, 61)}, {ClusterId(3), a.Slice(61, 67)}};
  session_->Send(std::move(split));
  EXPECT_EQ(DirectionsOf(3), std::vector{Direction::kDown});
  ExpectWhole(2, a.Slice(0, 61));
  ExpectWhole(3, a.Slice(61, 67));
}

TEST_F(EnginePoolTest, ChildrenThatDoNotFitOnePoolGetTwo) {
  const Positions a = Place(1, 100);
  const Positions b = Place(2, 100);
  Replace merge;
  merge.parent_ids = {ClusterId(1), ClusterId(2)};
  merge.children = {{ClusterId(3), Positions::Range(0, 90)},
                    {ClusterId(4), Positions::Range(90, 110)}};
  session_->Send(std::move(merge));
  ExpectWhole(3, Positions::Range(0, 90));
  ExpectWhole(4, Positions::Range(90, 110));
  EXPECT_EQ(DirectionsOf(3), std::vector{Direction::kUp});
  EXPECT_EQ(DirectionsOf(4), std::vector{Direction::kUp});
}

TEST_F(EnginePoolTest, WithoutSharingEveryPoolHasOnePart) {
  EngineOptions options;
  options.pool_sharing = false;
  Start(options);
  const Positions a = Place(1, 8);
  const std::int64_t before = UsedPages();
  const Positions b = Place(2, 8);
  EXPECT_EQ(UsedPages(), before + 2);
  EXPECT_EQ(DirectionsOf(2), std::vector{Direction::kUp});
  Replace split;
  split.parent_ids = {ClusterId(1)};
  split.children = {{ClusterId(3), a.Slice(0, 4)}, {ClusterId(4), a.Slice(4, 4)}};
  session_->Send(std::move(split));
  EXPECT_EQ(DirectionsOf(3), std::vector{Direction::kUp});
  EXPECT_EQ(DirectionsOf(4), std::vector{Direction::kUp});
}

// The third cluster's part goes to the first one's pool, though the second one's is newer: so the
// first cannot grow there to its full length.
TEST_F(EnginePoolTest, ANewPartGoesBesideTheClusterThatItIsFetchedWith) {
  for (const bool related : {true, false}) {
    EngineOptions options;
    options.place_entries_min = 3;
    Start(options);
    Positions a = Place(1, 3);         // two pages: 16 entries
    const Positions b = Place(2, 14);  // does not fit beside it
    Positions c = AppendNext(3, 2);
    for (std::uint64_t i = 0; related && i < 10 * kCoFetchSample; ++i) {
      EXPECT_TRUE(
          session_->Read(cairn::Fetch{0, {{0, ClusterId(1)}, {0, ClusterId(3)}}, true}).ok());
    }
    c.AppendAll(Place(3, 1));
    a.AppendAll(Place(1, 11));
    EXPECT_EQ(Fetch(1).spans.size(), related ? 2U : 1U);
    ExpectWhole(1, a);
    ExpectWhole(2, b);
    ExpectWhole(3, c);
  }
}

TEST_F(EnginePoolTest, AnEndThatACheckpointFreedIsUsedAgain) {
  const Positions a = Place(1, 2);
  const Positions b = Place(2, 2);
  TakeCheckpoint();
  Evict(2, b);
  TakeCheckpoint();
  const std::int64_t before = UsedPages();
  const Positions c = Place(3, 6);  // all that the first cluster leaves
  EXPECT_EQ(UsedPages(), before);
  EXPECT_EQ(DirectionsOf(3), std::vector{Direction::kDown});
  ExpectWhole(1, a);
  ExpectWhole(3, c);
}

TEST_F(EnginePoolTest, FreeEndsAreKnownFromTheRowsAfterARestart) {
  const Positions a = Place(1, 2);
  const Positions b = Place(2, 2);
  Evict(1, a);  // the low end
  TakeCheckpoint();
  Reopen();
  const std::int64_t before = UsedPages();
  const Positions c = Place(3, 6);
  EXPECT_EQ(UsedPages(), before);
  EXPECT_EQ(DirectionsOf(3), std::vector{Direction::kUp});
  TakeCheckpoint();
  Reopen();
  ExpectWhole(2, b);
  ExpectWhole(3, c);
}

TEST_F(EnginePoolTest, APoolIsFreeWhenBothEndsAre) {
  const std::int64_t before = UsedPages();
  const Positions a = Place(1, 2);
  const Positions b = Place(2, 2);
  TakeCheckpoint();
  Evict(1, a);
  TakeCheckpoint();
  EXPECT_EQ(UsedPages(), before + 1);
  Evict(2, b);
  EXPECT_EQ(UsedPages(), before + 1);  // the committed row names it
  TakeCheckpoint();
  EXPECT_EQ(UsedPages(), before);
  Reopen();
  EXPECT_EQ(UsedPages(), before);
}

// Rule 15: what memory has dropped is in use while the committed row names it.
TEST_F(EnginePoolTest, AnEndThatACommittedRowNamesIsNotGivenAway) {
  const Positions a = Place(1, 2);
  const Positions b = Place(2, 2);
  TakeCheckpoint();
  Evict(2, b);
  const std::int64_t before = UsedPages();
  const Positions c = Place(3, 2);
  EXPECT_EQ(UsedPages(), before + 1);
  ExpectWhole(3, c);
  Reopen();
  ExpectWhole(1, a);
  ExpectWhole(2, b);
}

TEST_F(EnginePoolTest, GrowthStopsAtWhatACommittedRowNames) {
  Positions a = Place(1, 2);
  const Positions b = Place(2, 2);
  TakeCheckpoint();
  Evict(2, b);
  a.AppendAll(Place(1, 5));  // would fit if the second cluster's bytes were free
  EXPECT_EQ(Fetch(1).spans.size(), 2U);
  ExpectWhole(1, a);
  Reopen();
  ExpectWhole(2, b);
}

// Rule 6: a page is written again with all that anything names there, also what memory has dropped.
TEST_F(EnginePoolTest, APageIsWrittenAgainWithAPartThatMemoryHasDropped) {
  Positions a = Place(1, 2);
  const Positions b = Place(2, 2);
  TakeCheckpoint();
  Evict(2, b);
  a.AppendAll(Place(1, 1));
  EXPECT_EQ(Fetch(1).spans.size(), 1U);
  ExpectWhole(1, a);
  Reopen();
  ExpectWhole(2, b);
}

// Rule 15: a read in flight names its parts. The read of the second cluster is answered behind all
// that could have overwritten it.
TEST_F(EnginePoolTest, AnEndThatAReadInFlightNamesIsNotGivenAway) {
  StartPlacingUnderPressure();
  const Positions a = AppendNext(1, 32);
  const Positions b = AppendNext(2, 32);
  FillTheTable(100);
  WaitUntilPlaced(1);
  WaitUntilPlaced(2);
  ASSERT_EQ(DirectionsOf(2), std::vector{Direction::kDown});
  TakeCheckpoint();

  device_->HoldNextReads(1);
  auto fetch = std::async(std::launch::async, [&] { return Fetch(2); });
  while (device_->held_count() == 0) LetTheEngineLook();
  Evict(2, b);
  TakeCheckpoint();
  const Positions c = AppendNext(500, 80);
  FillTheTable(501);
  WaitUntilPlaced(500);
  device_->Release();
  ExpectWhole(fetch.get(), b);
  ExpectWhole(WaitUntilPlaced(500), c);
  ExpectWhole(1, a);
}

TEST_F(EnginePoolTest, GrowthStopsAtWhatAReadInFlightNames) {
  StartPlacingUnderPressure();
  Positions a = AppendNext(1, 32);
  const Positions b = AppendNext(2, 32);
  FillTheTable(100);
  WaitUntilPlaced(1);
  WaitUntilPlaced(2);
  TakeCheckpoint();

  device_->HoldNextReads(1);
  auto fetch = std::async(std::launch::async, [&] { return Fetch(2); });
  while (device_->held_count() == 0) LetTheEngineLook();
  Evict(2, b);
  TakeCheckpoint();
  a.AppendAll(AppendNext(1, 80));  // 112 of 128 entries: over the second cluster's
  FillTheTable(501);
  WaitUntilPlaced(1);
  device_->Release();
  ExpectWhole(fetch.get(), b);
  ExpectWhole(WaitUntilPlaced(1), a);
}

// Rule 6: one writer of a page. The first cluster's write is in flight while the second one would
// be placed into the same page.
TEST_F(EnginePoolTest, APageThatIsBeingWrittenMakesTheOtherPartWait) {
  StartPlacingUnderPressure();
  Positions a = AppendNext(1, 40);
  Positions b = AppendNext(2, 40);
  FillTheTable(100);
  WaitUntilPlaced(1);
  WaitUntilPlaced(2);
  ASSERT_EQ(DirectionsOf(2), std::vector{Direction::kDown});
  TakeCheckpoint();

  device_->HoldNextWrites(1);
  a.AppendAll(AppendNext(1, 25));  // ends in the pool's ninth page
  b.AppendAll(AppendNext(2, 23));  // and so does this
  FillTheTable(501);
  LetTheEngineLook();
  EXPECT_EQ(device_->held_count(), 1);
  device_->Release();
  ExpectWhole(WaitUntilPlaced(1), a);
  FillTheTable(601);
  ExpectWhole(WaitUntilPlaced(2), b);
  EXPECT_EQ(Fetch(1).spans.size(), 1U);
  EXPECT_EQ(Fetch(2).spans.size(), 1U);
}

// Rule 15: an end whose part memory has dropped is in use until the commit. The checkpoint waits
// for its log run, which is held, while the third cluster is placed.
TEST_F(EnginePoolTest, AnEndThatACheckpointReleasesIsNotGivenAwayBeforeItsCommit) {
  StartPlacingUnderPressure();
  const Positions a = AppendNext(1, 32);
  const Positions b = AppendNext(2, 32);
  FillTheTable(100);
  WaitUntilPlaced(2);
  ASSERT_EQ(DirectionsOf(2), std::vector{Direction::kDown});
  TakeCheckpoint();

  Evict(2, b);
  AppendNext(200, 1);
  device_->HoldNextWrites(1);
  const OpSeq checkpoint = SendCheckpoint();
  const Positions c = AppendNext(500, 80);
  FillTheTable(501);
  ExpectWhole(WaitUntilPlaced(500), c);
  EXPECT_EQ(device_->held_count(), 1);
  EXPECT_EQ(DirectionsOf(500), std::vector{Direction::kUp});  // of a fresh pool
  device_->Release();
  EXPECT_TRUE(session_->WaitFor(checkpoint).ok());
}

}  // namespace
}  // namespace cairn::kv
