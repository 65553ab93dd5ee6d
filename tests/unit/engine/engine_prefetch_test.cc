// What is read ahead of fetches: that it is read once, that it takes nobody's place, and that
// nothing but speed depends on it. Entries have 512 bytes, eight to a page; clusters of 120 entries
// lie side by side in the log, unless a test places them.
#include <algorithm>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kv-node/cache/slot_cache.h"
#include "kv-node/engine/engine.h"
#include "tests/unit/engine/engine_harness.h"
#include "tests/unit/engine/gated_device.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kPrefetchSalt = 13;
constexpr std::int64_t kClusterEntries = 120;
constexpr std::int64_t kClusterBytes = kClusterEntries * 512;
// In the smallest arena: four in each granule of 256 KiB. They share a slot when they are read
// together.
constexpr std::int64_t kClustersThatFit = 16;

class EnginePrefetchTest : public ::testing::Test {
 protected:
  void SetUp() override { Start({}); }
  void TearDown() override {
    device_->Release();
    session_.reset();
    engine_.reset();
  }

  void Start(EngineOptions options) {
    session_.reset();
    engine_.reset();
    options.durable = false;
    options.arena_bytes_max = kArenaBytesMin;
    options.place_at_idle = options.place_entries_min == 1;
    // Else all stays in memory until the checkpoint.
    if (!options.place_at_idle) options.pending_bytes_max = std::int64_t{64} << 20;
    MetaOptions meta;
    meta.path = "/engine-prefetch-test";
    meta.in_memory = true;
    auto store = MetaStore::Open(meta);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    auto device = std::make_unique<GatedDevice>(std::int64_t{32} << 20);
    device_ = device.get();
    auto engine = Engine::Open(options, StoreId{}, std::move(device), *std::move(store));
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = *std::move(engine);
    CreateSession request;
    request.key = SmallKey();
    request.layout = layout_;
    const auto id =
        Await<SessionRef>([&](auto done) { engine_->Create(request, std::move(done)); });
    ASSERT_TRUE(id.ok()) << id.status().ToString();
    id_ = id->id;
    token_count_ = 0;
    Reopen();
  }

  void Reopen() {
    session_.reset();
    auto session = TestSession::Open(*engine_, id_);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    session_ = *std::move(session);
  }

  // Clusters 1 .. count of all layers, in the log.
  void Store(std::int64_t count) {
    for (std::int64_t cluster = 1; cluster <= count; ++cluster) {
      AppendNext(cluster, kClusterEntries);
    }
    TakeCheckpoint(count);
  }

  void TakeCheckpoint(std::int64_t cluster_count) {
    Checkpoint op;
    op.token_count = token_count_;
    op.token_ids.assign(static_cast<std::size_t>(token_count_), 1);
    op.next_cluster_ids.assign(6, cluster_count + 1);
    const auto done = session_->WaitFor(session_->Send(std::move(op)));
    ASSERT_TRUE(done.ok()) << done.status().ToString();
  }

  void AppendNext(std::int64_t cluster, std::int64_t count) {
    const Positions positions = Positions::Range(token_count_, count);
    token_count_ += count;
    for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
      cairn::Append op;
      op.layer = layer;
      op.clusters.push_back({{0, ClusterId(cluster)},
                             positions,
                             EntriesBytes(layout_, kPrefetchSalt, layer, 0, positions)});
      session_->Send(std::move(op));
    }
  }

  static std::vector<ClusterRef> Clusters(std::int64_t first, std::int64_t last) {
    std::vector<ClusterRef> out;
    for (std::int64_t cluster = first; cluster <= last; ++cluster) {
      out.push_back({0, ClusterId(cluster)});
    }
    return out;
  }
  RequestId SendPrefetch(std::int64_t first, std::int64_t last) {
    return session_->Hint(Prefetch{0, Clusters(first, last)});
  }
  absl::StatusOr<ReadReply> Read(std::int64_t first, std::int64_t last, std::int32_t layer = 0) {
    return session_->Read(Fetch{layer, Clusters(first, last), /*with_positions=*/true});
  }
  // Fetches cluster `cluster`, which has the positions of Store.
  void ExpectStored(std::int64_t cluster) { ExpectStored(Read(cluster, cluster), cluster); }
  void ExpectStored(const absl::StatusOr<ReadReply>& reply, std::int64_t cluster,
                    std::size_t index = 0) {
    const Positions positions = Positions::Range((cluster - 1) * kClusterEntries, kClusterEntries);
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    const FetchedCluster& fetched = std::get<FetchReply>(*reply).clusters.at(index);
    ASSERT_EQ(fetched.outcome, FetchOutcome::kFound);
    const JoinedCluster joined = Join(layout_, fetched);
    EXPECT_EQ(joined.positions, positions);
    EXPECT_TRUE(joined.entries == EntriesBytes(layout_, kPrefetchSalt, 0, 0, positions));
  }

  // Asks until the cluster has no pending entries; it must have these at any time.
  void FetchWhenPlaced(std::int64_t cluster, const Positions& positions) {
    for (bool placed = false; !placed && !HasFailure();) {
      const auto reply = Read(cluster, cluster);
      ASSERT_TRUE(reply.ok()) << reply.status().ToString();
      const FetchedCluster& fetched = std::get<FetchReply>(*reply).clusters.at(0);
      ASSERT_EQ(fetched.outcome, FetchOutcome::kFound);
      ASSERT_TRUE(Join(layout_, fetched).entries ==
                  EntriesBytes(layout_, kPrefetchSalt, 0, 0, positions));
      placed = std::all_of(fetched.spans.begin(), fetched.spans.end(),
                           [](const Span& span) { return span.part_id.value() != 0; });
    }
  }
  // The session goes on at a checkpoint of all of it, with nothing cached.
  void ForgetSlots() {
    TakeCheckpoint(/*cluster_count=*/3);
    Reopen();
  }

  KvStats Stats() {
    const auto stats = Await<KvStats>([&](auto done) { engine_->GetStats(std::move(done)); });
    EXPECT_TRUE(stats.ok());
    return stats.value_or(KvStats());
  }
  // All that was sent before has been looked at, and what the device does not hold back has ended.
  void LetTheEngineLook() {
    EXPECT_TRUE(session_->Read(GetPolicyState{}).ok());
    KvStats before = Stats();
    while (true) {
      Stats();
      Stats();
      const KvStats after = Stats();
      if (after.prefetch_read_count == before.prefetch_read_count) return;
      before = after;
    }
  }
  // As many clusters as may be under way at once, held back at the device; those up to `last` wait.
  void FillWhatMayBeUnderWay(std::int64_t last) {
    device_->HoldNextReads(2);
    SendPrefetch(1, last);
    LetTheEngineLook();
    ASSERT_EQ(device_->held_count(), 2);
  }

  const EntryLayout layout_{3, 1, 128, KvFormat::kF16};
  GatedDevice* device_ = nullptr;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<TestSession> session_;
  SessionId id_;
  std::int64_t token_count_ = 0;
};

TEST_F(EnginePrefetchTest, WhatWasPrefetchedIsFetchedWithoutARead) {
  Store(2);
  SendPrefetch(1, 1);
  LetTheEngineLook();
  EXPECT_EQ(Stats().prefetch_read_count, 1);
  EXPECT_GE(Stats().prefetched_bytes, kClusterBytes);
  ExpectStored(1);
  const KvStats first = Stats();
  EXPECT_EQ(first.read_fetch_count, 0);
  EXPECT_EQ(first.prefetch_used_bytes, kClusterBytes);
  EXPECT_EQ(first.cache_hit_count, 0) << "what was read ahead is no hit";
  ExpectStored(1);
  EXPECT_EQ(Stats().cache_hit_count, 1);
  EXPECT_EQ(Stats().prefetch_used_bytes, kClusterBytes);
  EXPECT_EQ(Stats().prefetch_wasted_bytes, 0);
  EXPECT_EQ(Stats().staged_bytes, 0);
}

TEST_F(EnginePrefetchTest, WhatIsCachedOrUnknownIsNotReadAhead) {
  Store(1);
  ExpectStored(1);
  SendPrefetch(1, 3);
  session_->Hint(Prefetch{7, Clusters(1, 1)});
  LetTheEngineLook();
  EXPECT_EQ(Stats().prefetch_read_count, 0);
  EXPECT_EQ(Stats().prefetch_dropped_count, 0);
}

TEST_F(EnginePrefetchTest, AFetchWaitsForAReadThatIsUnderWay) {
  Store(1);
  device_->HoldNextReads(1);
  SendPrefetch(1, 1);
  while (device_->held_count() == 0) {
  }
  auto fetched = std::async(std::launch::async, [&] { return Read(1, 1); });
  while (Stats().leased_slot_count == 0) {
  }
  device_->Release();
  ExpectStored(fetched.get(), 1);
  EXPECT_EQ(Stats().prefetch_read_count, 1);
  EXPECT_EQ(Stats().read_fetch_count, 0);
  EXPECT_EQ(Stats().prefetch_used_bytes, kClusterBytes);
}

TEST_F(EnginePrefetchTest, OnlySoMuchIsUnderWayAndAFetchReadsWhatWaits) {
  Store(12);
  FillWhatMayBeUnderWay(12);
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_LE(Stats().prefetched_bytes, 512 << 10);
  ExpectStored(12);
  EXPECT_EQ(Stats().read_fetch_count, 1);
  EXPECT_EQ(Stats().cache_miss_count, 1);
  const std::int64_t held = Stats().prefetched_bytes;
  device_->Release();
  LetTheEngineLook();
  // Clusters 9 to 11, not the one that was fetched meanwhile.
  EXPECT_GE(Stats().prefetched_bytes, held + 3 * kClusterBytes);
  EXPECT_LT(Stats().prefetched_bytes, held + 4 * kClusterBytes);
  for (std::int64_t cluster = 1; cluster <= 12; ++cluster) ExpectStored(cluster);
  EXPECT_EQ(Stats().read_fetch_count, 1);
}

TEST_F(EnginePrefetchTest, CancelTakesBackWhatHasNotBegun) {
  Store(12);
  FillWhatMayBeUnderWay(8);
  ASSERT_FALSE(HasFatalFailure());
  const std::int64_t held = Stats().prefetched_bytes;
  const RequestId cancelled = SendPrefetch(9, 10);
  SendPrefetch(11, 11);
  session_->Hint(Cancel{cancelled});
  LetTheEngineLook();
  device_->Release();
  LetTheEngineLook();
  EXPECT_GE(Stats().prefetched_bytes, held + kClusterBytes);
  EXPECT_LT(Stats().prefetched_bytes, held + 2 * kClusterBytes);
  EXPECT_EQ(Stats().prefetch_dropped_count, 0);
  ExpectStored(11);
  EXPECT_EQ(Stats().read_fetch_count, 0);
  ExpectStored(10);
  EXPECT_EQ(Stats().read_fetch_count, 1);
}

TEST_F(EnginePrefetchTest, WhatIsLeasedStays) {
  Store(kClustersThatFit + 1);
  std::vector<absl::StatusOr<ReadReply>> held;
  for (std::int64_t cluster = 1; cluster <= kClustersThatFit; ++cluster) {
    held.push_back(Read(cluster, cluster));
  }
  SendPrefetch(kClustersThatFit + 1, kClustersThatFit + 1);
  LetTheEngineLook();
  EXPECT_EQ(Stats().prefetch_read_count, 0);
  EXPECT_EQ(Stats().prefetch_dropped_count, 1);
  EXPECT_EQ(Stats().cache_evicted_count, 0);
  EXPECT_EQ(Stats().cache_no_room_count, 0);
  held.clear();
  // The oldest of them are not recent any more.
  SendPrefetch(kClustersThatFit + 1, kClustersThatFit + 1);
  LetTheEngineLook();
  EXPECT_EQ(Stats().prefetch_read_count, 1);
}

TEST_F(EnginePrefetchTest, WhatWasFetchedLatelyStays) {
  Store(kClustersThatFit + 1);
  ASSERT_TRUE(Read(1, kClustersThatFit).ok());
  for (std::int64_t fetch = 1; fetch < kRecentFetches; ++fetch) {
    ExpectStored(1);
    SendPrefetch(kClustersThatFit + 1, kClustersThatFit + 1);
    LetTheEngineLook();
    EXPECT_EQ(Stats().prefetch_read_count, 0);
    EXPECT_EQ(Stats().prefetch_dropped_count, fetch);
    EXPECT_EQ(Stats().cache_evicted_count, 0);
  }
  ExpectStored(1);
  SendPrefetch(kClustersThatFit + 1, kClustersThatFit + 1);
  LetTheEngineLook();
  EXPECT_EQ(Stats().prefetch_read_count, 1);
  const std::int64_t reads = Stats().read_fetch_count;
  ExpectStored(1);
  EXPECT_EQ(Stats().read_fetch_count, reads) << "the cluster that was fetched last is gone";
}

TEST_F(EnginePrefetchTest, OnePrefetchDoesNotTakeThePlaceOfAnother) {
  Store(2 * kClustersThatFit);
  SendPrefetch(1, 2 * kClustersThatFit);
  LetTheEngineLook();
  EXPECT_EQ(Stats().cache_evicted_count, 0);
  EXPECT_EQ(Stats().prefetch_dropped_count, kClustersThatFit);
  EXPECT_EQ(Stats().prefetch_wasted_bytes, 0);
}

TEST_F(EnginePrefetchTest, WhatLeavesUnusedIsCounted) {
  Store(kClustersThatFit + 1);
  SendPrefetch(1, 1);
  LetTheEngineLook();
  session_.reset();
  EXPECT_TRUE(Await<std::monostate>([&](auto done) {
                engine_->DeleteSession({id_, ""}, std::move(done));
              }).ok());
  EXPECT_EQ(Stats().prefetch_used_bytes, 0);
  EXPECT_EQ(Stats().prefetch_wasted_bytes, kClusterBytes);
}

// A page that is written while its read is under way: what that read brings is older.
TEST_F(EnginePrefetchTest, WhatIsWrittenMeanwhileIsNotServedOld) {
  EngineOptions options;
  options.place_entries_min = 1;
  options.pending_bytes_max = kPartBytesMax;
  Start(options);
  AppendNext(1, 42);  // the last page is not full
  FetchWhenPlaced(1, Positions::Range(0, 42));
  ForgetSlots();
  device_->HoldNextReads(1);
  SendPrefetch(1, 1);
  LetTheEngineLook();
  ASSERT_EQ(device_->held_count(), 1);
  // More than the table holds: the fullest cluster is placed, and its last page written again.
  AppendNext(1, 60);
  for (std::int64_t cluster = 2; cluster <= 3; ++cluster) AppendNext(cluster, 40);
  FetchWhenPlaced(1, Positions::Range(0, 102));
  device_->Release();
  LetTheEngineLook();
  FetchWhenPlaced(1, Positions::Range(0, 102));
  EXPECT_EQ(Stats().prefetch_used_bytes, 0);
  EXPECT_EQ(Stats().prefetch_wasted_bytes, 42 * 512);
}

TEST_F(EnginePrefetchTest, WhatIsBeingWrittenIsNotReadAhead) {
  EngineOptions options;
  options.place_entries_min = 1;
  Start(options);
  device_->HoldNextWrites(1);
  AppendNext(1, 42);
  while (device_->held_count() == 0) {
  }
  SendPrefetch(1, 1);  // of layer 0, which is placed first
  LetTheEngineLook();
  EXPECT_EQ(Stats().prefetch_read_count, 0);
  EXPECT_EQ(Stats().prefetch_dropped_count, 1);
  device_->Release();
  FetchWhenPlaced(1, Positions::Range(0, 42));
  SendPrefetch(1, 1);
  LetTheEngineLook();
  EXPECT_EQ(Stats().prefetch_dropped_count, 1);
}

// Rule 5: what comes behind a rollback has the same parts with other bytes.
TEST_F(EnginePrefetchTest, BehindTheEndOfAnAttachmentNothingOfItsReadsIsFound) {
  Store(1);
  device_->HoldNextReads(1);
  SendPrefetch(1, 1);
  LetTheEngineLook();
  ASSERT_EQ(device_->held_count(), 1);
  session_.reset();
  Stats();
  device_->Release();
  Reopen();
  ExpectStored(1);
  EXPECT_EQ(Stats().prefetch_used_bytes, 0);
  EXPECT_EQ(Stats().read_fetch_count, 1);
}

TEST_F(EnginePrefetchTest, SwitchedOffOrWithoutAnArenaNothingIsReadAhead) {
  EXPECT_TRUE(engine_->follows_hints());
  EngineOptions options;
  options.staging = false;
  Start(options);
  Store(1);
  SendPrefetch(1, 1);
  session_->Hint(LayerHint{0});
  LetTheEngineLook();
  EXPECT_FALSE(engine_->follows_hints());
  EXPECT_EQ(Stats().prefetch_read_count, 0);
}

// Far more than is staged here, in any time that passes.
constexpr std::int64_t kHighBandwidth = std::int64_t{1} << 50;

class EngineLayerHintTest : public EnginePrefetchTest {
 protected:
  static EngineOptions Options(std::int64_t bytes_per_second) {
    EngineOptions options;
    options.device_bytes_per_second = bytes_per_second;
    options.layer_time_max = std::chrono::hours(1);  // however busy the machine is
    return options;
  }
  // Clusters 1 to 8 of all three layers were fetched once. Two layers fill the cache: those of
  // layer 0 have left it.
  void FetchAllLayers(std::int64_t bytes_per_second) {
    Start(Options(bytes_per_second));
    Store(8);
    for (std::int32_t layer = 0; layer < 3; ++layer) ASSERT_TRUE(Read(1, 8, layer).ok());
    ASSERT_EQ(Stats().cache_hit_count, 0);
  }
  void Hint(std::int32_t layer) {
    session_->Hint(LayerHint{layer});
    LetTheEngineLook();
  }
  std::int64_t ReadsOf(std::int32_t layer) {
    const std::int64_t before = Stats().read_fetch_count;
    EXPECT_TRUE(Read(1, 8, layer).ok());
    return Stats().read_fetch_count - before;
  }
};

TEST_F(EngineLayerHintTest, AHintStagesItsLayerInPlaceOfTheOneThatIsDone) {
  FetchAllLayers(kHighBandwidth);
  Hint(2);
  EXPECT_EQ(Stats().staged_bytes, 0) << "no time was measured";
  Hint(0);  // layer 2 is being computed, layer 1 is done
  EXPECT_GE(Stats().staged_bytes, 8 * kClusterBytes);
  EXPECT_EQ(Stats().prefetched_bytes, 0);
  EXPECT_EQ(ReadsOf(0), 0);
  EXPECT_EQ(Stats().prefetch_used_bytes, 8 * kClusterBytes);
  EXPECT_EQ(Stats().cache_hit_count, 0) << "staged bytes are no hits";
  EXPECT_EQ(ReadsOf(2), 0);
  EXPECT_GT(ReadsOf(1), 0);
}

TEST_F(EngineLayerHintTest, WithoutAKnownBandwidthNothingIsStaged) {
  FetchAllLayers(0);
  for (const std::int32_t layer : {2, 0, 1, 2, 0}) Hint(layer);
  EXPECT_EQ(Stats().staged_bytes, 0);
  EXPECT_EQ(ReadsOf(2), 0) << "a hint that stages nothing releases nothing";
  EXPECT_EQ(ReadsOf(1), 0);
}

TEST_F(EngineLayerHintTest, SwitchedOffOrForNoLayerAHintDoesNothing) {
  FetchAllLayers(kHighBandwidth);
  EXPECT_FALSE(Read(1, 1, /*layer=*/3).ok());
  for (const std::int32_t layer : {3, -1, 3}) Hint(layer);
  EXPECT_EQ(Stats().staged_bytes, 0);
  EngineOptions options;
  options.staging = false;
  options.device_bytes_per_second = kHighBandwidth;
  Start(options);
  Store(8);
  for (std::int32_t layer = 0; layer < 3; ++layer) ASSERT_TRUE(Read(1, 8, layer).ok());
  for (const std::int32_t layer : {2, 0, 1, 2, 0}) Hint(layer);
  EXPECT_EQ(Stats().staged_bytes, 0);
}

TEST_F(EngineLayerHintTest, WhatIsLeasedStaysAlsoWhenItsLayerIsDone) {
  Start(Options(kHighBandwidth));
  Store(8);
  ASSERT_TRUE(Read(1, 8, 0).ok());
  std::vector<absl::StatusOr<ReadReply>> held;
  for (const std::int32_t layer : {1, 2}) held.push_back(Read(1, 8, layer));
  Hint(2);
  Hint(0);
  EXPECT_EQ(Stats().staged_bytes, 0);
  EXPECT_EQ(Stats().prefetch_dropped_count, 8);
  held.clear();
  Hint(2);
  Hint(0);
  EXPECT_GE(Stats().staged_bytes, 8 * kClusterBytes);
}

}  // namespace
}  // namespace cairn::kv
