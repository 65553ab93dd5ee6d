// The table of pending entries is full, and no cluster has enough of them to be placed: they are
// logged ahead of the checkpoint.
#include <map>
#include <vector>

#include "tests/unit/engine/engine_fixture.h"

namespace cairn::kv {
namespace {

class EngineSpillTest : public EngineTest {
 protected:
  std::int64_t entry_count_ = 3;  // of a cluster, for each layer and head

  // A table of 102 tokens.
  void StartSmall(std::int64_t size_bytes = std::int64_t{64} << 20) {
    EngineOptions options;
    options.place_at_idle = false;
    options.pending_bytes_max = kPartBytesMax;
    options.place_entries_min = place_entries_min_;
    Start(options, size_bytes);
    id_ = Create();
    session_ = Open(id_);
  }
  // The n-th cluster has the positions from entry_count_ * (n - 1) on.
  Positions PositionsOf(std::int64_t cluster) const {
    return Positions::Range((cluster - 1) * entry_count_, entry_count_);
  }
  void AppendClusters(std::int64_t first, std::int64_t last) {
    for (std::int64_t cluster = first; cluster <= last; ++cluster) {
      AppendAll(*session_, cluster, PositionsOf(cluster));
    }
  }
  void ExpectClusters(std::int64_t first, std::int64_t last) {
    for (std::int64_t cluster = first; cluster <= last; ++cluster) {
      ExpectCluster(*session_, cluster, PositionsOf(cluster));
    }
  }
  void Evict(std::int64_t cluster) {
    for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
      for (std::int32_t head = 0; head < layout_.head_count; ++head) {
        Replace evict{layer, head, {ClusterId(cluster)}, {}, {}, {}, PositionsOf(cluster)};
        session_->Send(std::move(evict));
      }
    }
  }
  void Reopen() {
    session_.reset();
    session_ = Open(id_);
  }

  SessionId id_;
  std::unique_ptr<TestSession> session_;
  std::int32_t place_entries_min_ = EngineOptions().place_entries_min;
  std::int64_t pending_bytes_max_ = kPartBytesMax;
};

TEST_F(EngineSpillTest, EntriesTooFewToPlaceAreLoggedOnce) {
  StartSmall();
  AppendClusters(1, 150);  // 450 tokens
  ExpectClusters(1, 150);
  EXPECT_GE(Stats().spill_count, 3);
  EXPECT_GT(Stats().write_log_bytes, 0);
  ASSERT_EQ(TakeCheckpoint(*session_, 0, 450).status().ToString(), "OK");
  const KvStats stats = Stats();
  EXPECT_EQ(stats.write_pool_bytes, 0);
  EXPECT_EQ(stats.write_relog_bytes, 0);
  // Every entry once, and less than a page for each run.
  EXPECT_LT(stats.write_log_bytes, 450 * layout_.TokenBytes() + 6 * kPageBytes);
  Reopen();
  ExpectClusters(1, 150);
}

TEST_F(EngineSpillTest, ClustersWithEnoughEntriesArePlacedInstead) {
  place_entries_min_ = 64;
  StartSmall();
  for (std::int64_t at = 0; at < 128; at += 16) {
    AppendAll(*session_, 1, Positions::Range(at, 16));
  }
  ExpectCluster(*session_, 1, Positions::Range(0, 128));
  EXPECT_GT(Stats().write_pool_bytes, 0);
  EXPECT_EQ(Stats().write_log_bytes, 0);
}

TEST_F(EngineSpillTest, SoAreClustersThatFillPages) {
  StartSmall();
  const std::int64_t count = kPageBytes / layout_.EntryBytes(0);
  ASSERT_LT(count, EngineOptions().place_entries_min);
  for (std::int64_t id = 1; Stats().write_pool_bytes == 0; ++id) {
    ASSERT_LT(id, 1000) << "nothing was placed";
    AppendAll(*session_, id, Positions::Range((id - 1) * count, count));
  }
  EXPECT_EQ(Stats().write_log_bytes, 0);
  // They are full already: no room is left beside them.
  EXPECT_EQ(Stats().flash_used_bytes - 2 * kPageBytes, Stats().write_pool_bytes);
}

TEST_F(EngineSpillTest, WithoutACheckpointNothingOfItStays) {
  StartSmall();
  AppendClusters(1, 20);
  ASSERT_EQ(TakeCheckpoint(*session_, 0, 60).status().ToString(), "OK");
  const std::int64_t used = Stats().flash_used_bytes;
  AppendClusters(21, 150);
  ExpectClusters(1, 150);
  EXPECT_GT(Stats().flash_used_bytes, used);
  Reopen();
  EXPECT_EQ(session_->attachment().token_count, 60);
  EXPECT_EQ(Stats().flash_used_bytes, used);
  ExpectClusters(1, 20);
  ExpectCluster(*session_, 21, {});
}

TEST_F(EngineSpillTest, RunsStayBoundedBetweenCheckpoints) {
  StartSmall();
  // Forty runs of 16 pages; of each one cluster stays.
  const std::int64_t count = std::int64_t{40} * 34;
  for (std::int64_t last = 34; last <= count; last += 34) {
    AppendClusters(last - 33, last);
    if (last == 34) continue;
    for (std::int64_t cluster = last - 67; cluster < last - 34; ++cluster) Evict(cluster);
  }
  ExpectClusters(count, count);
  EXPECT_LT(Stats().flash_used_bytes, 320 * kPageBytes);
  ASSERT_EQ(TakeCheckpoint(*session_, 0, count * entry_count_).status().ToString(), "OK");
  EXPECT_GT(Stats().write_relog_bytes, 0);
  EXPECT_LT(Stats().flash_used_bytes, 320 * kPageBytes);
  Reopen();
  for (std::int64_t cluster = 34; cluster <= count; cluster += 34) ExpectClusters(cluster, cluster);
  ExpectCluster(*session_, 1, {});
}

// Merging them would take their bytes twice in memory.
TEST_F(EngineSpillTest, LongRunsAreWrittenAgainWhenHalfOfThemIsFree) {
  EngineOptions options;
  options.place_at_idle = false;
  options.pending_bytes_max = std::int64_t{1} << 20;  // 1638 tokens: 68 clusters
  options.arena_bytes_max = 0;
  Start(options);
  entry_count_ = 24;
  id_ = Create();
  session_ = Open(id_);
  AppendClusters(1, 830);
  ExpectClusters(830, 830);
  EXPECT_GE(Stats().spill_count, 12);
  EXPECT_EQ(Stats().write_relog_bytes, 0);
  for (std::int64_t cluster = 1; cluster <= 750; ++cluster) {
    if (cluster % 5 != 0) Evict(cluster);
  }
  ExpectClusters(750, 750);
  const std::int64_t before = Stats().flash_used_bytes;
  AppendClusters(831, 1050);
  ASSERT_EQ(TakeCheckpoint(*session_, 0, 1050 * entry_count_).status().ToString(), "OK");
  EXPECT_LT(Stats().flash_used_bytes, before * 3 / 4);
  EXPECT_LT(Stats().dram_peak_bytes, std::int64_t{12} << 20);
  Reopen();
  for (std::int64_t cluster = 5; cluster <= 750; cluster += 15) ExpectClusters(cluster, cluster);
  ExpectClusters(1040, 1050);
}

TEST_F(EngineSpillTest, CarriedEntriesKeepTheirRecords) {
  StartSmall();
  const Positions window = Positions::Range(0, 9);
  CarryAll(*session_, window, window);
  ASSERT_EQ(TakeCheckpoint(*session_, 0, 9).status().ToString(), "OK");
  AppendClusters(1, 1);  // had records as carried ones
  // Many spills of clusters that lie in several of them, so that runs are written again.
  std::map<std::int64_t, Positions> grown;
  for (std::int64_t i = 4; i <= 400; ++i) {
    const std::int64_t cluster = 4 + (i - 4) % 100;
    AppendAll(*session_, cluster, PositionsOf(i));
    grown[cluster].AppendAll(PositionsOf(i));
  }
  EXPECT_GT(Stats().write_relog_bytes, 0);
  CarryAll(*session_, Positions::Range(3, 6), {});
  ASSERT_EQ(TakeCheckpoint(*session_, 9, 1200).status().ToString(), "OK");
  Reopen();
  ExpectClusters(1, 1);
  for (const auto& [cluster, positions] : grown) ExpectCluster(*session_, cluster, positions);
  const auto reply = session_->Read(GetCarried{1});
  ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  for (const CarriedEntries& entries : std::get<CarriedReply>(*reply).carried) {
    EXPECT_EQ(entries.positions, Positions::Range(3, 6));
    EXPECT_TRUE(entries.entries ==
                EntriesBytes(layout_, kSalt, 1, entries.head, Positions::Range(3, 6)));
  }
}

TEST_F(EngineSpillTest, FullFlashRefusesTheAppendAndLosesNothing) {
  StartSmall(std::int64_t{1} << 20);
  AppendClusters(1, 100);
  ASSERT_EQ(TakeCheckpoint(*session_, 0, 300).status().ToString(), "OK");
  std::int64_t last = 100;
  while (last < 1000 && session_->failure().ok()) {
    ++last;
    AppendClusters(last, last);
    ExpectClusters(1, 1);  // behind the append
  }
  EXPECT_EQ(session_->failure().code(), absl::StatusCode::kResourceExhausted)
      << session_->failure().ToString();
  ExpectClusters(1, last - 1);
  // What no checkpoint has is gone with its pages.
  Reopen();
  EXPECT_EQ(session_->attachment().token_count, 300);
  AppendClusters(101, 110);
  ASSERT_EQ(TakeCheckpoint(*session_, 300, 330).status().ToString(), "OK");
  Reopen();
  ExpectClusters(1, 110);
}

// Clusters grow from the log, until flash has no pool for one of them.
TEST_F(EngineSpillTest, AClusterThatCannotBePlacedDoesNotHoldUpTheOthers) {
  for (std::int64_t page_count = 200; page_count < 300; page_count += 20) {
    EngineOptions options;
    options.place_at_idle = false;
    options.pending_bytes_max = kPartBytesMax;
    options.place_entries_min = 8;
    session_.reset();
    Start(options, page_count * kPageBytes);
    id_ = Create();
    session_ = Open(id_);
    std::int64_t at = 0;
    for (std::int64_t step = 0; session_->failure().ok() && step < 20000; ++step) {
      const std::int64_t cluster = 1 + step / 160 * 40 + step % 40;  // each four times
      AppendAll(*session_, cluster, Positions::Range(at, entry_count_));
      at += entry_count_;
      if (step % 20 == 0) {
        ASSERT_TRUE(session_->Read(GetCarried{0}).ok());  // behind the appends
      }
    }
    EXPECT_EQ(session_->failure().code(), absl::StatusCode::kResourceExhausted);
  }
}

TEST_F(EngineSpillTest, RunsThatNothingNamesNeedNoCheckpointToBeGivenBack) {
  StartSmall(std::int64_t{1} << 20);
  const std::int64_t count = std::int64_t{40} * 34;  // 640 pages of 256, if all stayed
  for (std::int64_t last = 34; last <= count; last += 34) {
    AppendClusters(last - 33, last);
    if (last == 34) continue;
    for (std::int64_t cluster = last - 67; cluster <= last - 34; ++cluster) Evict(cluster);
    ExpectClusters(last, last);
    ASSERT_EQ(session_->failure().ToString(), "OK") << last;
  }
  ASSERT_EQ(TakeCheckpoint(*session_, 0, count * entry_count_).status().ToString(), "OK");
  EXPECT_LT(Stats().flash_used_bytes, 64 * kPageBytes);
  Reopen();
  ExpectClusters(count - 33, count);
}

// Pages for single operations would wear the flash out.
TEST_F(EngineSpillTest, WhoHasLittleOfTheTableDoesNotSpill) {
  StartSmall();
  const SessionId other_id = Create();
  auto other = Open(other_id);
  AppendAll(*other, 1, Positions::Range(0, 1));
  AppendClusters(1, 34);  // full
  for (std::int64_t at = 1; at < 5; ++at) AppendAll(*other, 1, Positions::Range(at, 1));
  ExpectCluster(*other, 1, Positions::Range(0, 5));
  EXPECT_EQ(Stats().write_log_bytes, 0);
  AppendClusters(35, 35);
  ExpectClusters(1, 35);
  EXPECT_GT(Stats().write_log_bytes, 0);
}

// Every third position from cluster - 101 on: children of clusters 1 to 100.
Positions ChildPositions(std::int64_t cluster) {
  return Positions::FromUnsorted({cluster - 101, cluster - 1, cluster + 99});
}

class EngineManyChildrenTest : public EngineSpillTest {
 protected:
  // Clusters 1 to 100 on flash.
  void StartStored(std::int64_t size_bytes, std::int32_t pooled_children_max) {
    EngineOptions options;
    options.place_at_idle = false;
    options.pending_bytes_max = pending_bytes_max_;
    options.arena_bytes_max = 0;
    options.pooled_children_max = pooled_children_max;
    options.place_entries_min = place_entries_min_;
    Start(options, size_bytes);
    id_ = Create();
    session_ = Open(id_);
    AppendClusters(1, 100);
    ASSERT_EQ(TakeCheckpoint(*session_, 0, 300).status().ToString(), "OK");
  }
  // By clusters 101 to 200.
  void ReplaceAll() {
    next_cluster_id_ = 201;
    for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
      for (std::int32_t head = 0; head < layout_.head_count; ++head) {
        Replace replace;
        replace.layer = layer;
        replace.head = head;
        for (std::int64_t id = 1; id <= 100; ++id) {
          replace.parent_ids.emplace_back(id);
          replace.children.push_back({ClusterId(100 + id), ChildPositions(100 + id)});
        }
        session_->Send(std::move(replace));
      }
    }
  }
  void ExpectChildren() {
    for (std::int64_t id = 101; id <= 200; ++id) ExpectCluster(*session_, id, ChildPositions(id));
  }
  std::int64_t ReadsOfFirstChildren(std::int64_t count) {
    const std::int64_t before = Stats().read_fetch_count;
    Fetch fetch;
    for (std::int64_t id = 101; id < 101 + count; ++id)
      fetch.clusters.push_back({0, ClusterId(id)});
    EXPECT_TRUE(session_->Read(std::move(fetch)).ok());
    return Stats().read_fetch_count - before;
  }
};

TEST_F(EngineManyChildrenTest, TheyLieSideBySideInALogRun) {
  StartStored(std::int64_t{64} << 20, 64);
  const std::int64_t written_bytes = Stats().write_log_bytes;
  ReplaceAll();
  ExpectChildren();
  EXPECT_EQ(ReadsOfFirstChildren(50), 1);
  EXPECT_EQ(Stats().write_pool_bytes, 0);
  // Every entry once, and less than a page for each layer and head.
  const std::int64_t owner_count = std::int64_t{layout_.layer_count} * layout_.head_count;
  EXPECT_LT(Stats().write_log_bytes - written_bytes,
            300 * layout_.TokenBytes() + owner_count * kPageBytes);
  ASSERT_EQ(TakeCheckpoint(*session_, 300, 300).status().ToString(), "OK");
  Reopen();
  ExpectChildren();
  EXPECT_EQ(ReadsOfFirstChildren(50), 1);
}

TEST_F(EngineManyChildrenTest, FewOfManyEntriesGoToPoolsWhereTheyMayGrow) {
  place_entries_min_ = 1;
  StartStored(std::int64_t{64} << 20, 100);
  ReplaceAll();
  ExpectChildren();
  EXPECT_GT(Stats().write_split_bytes, 0);
}

TEST_F(EngineManyChildrenTest, FewOfFewEntriesArePendingUntilTheCheckpoint) {
  pending_bytes_max_ = std::int64_t{1} << 20;
  StartStored(std::int64_t{64} << 20, 100);
  const KvStats before = Stats();
  ReplaceAll();
  ExpectChildren();
  EXPECT_EQ(Stats().write_pool_bytes, 0);
  EXPECT_EQ(ReadsOfFirstChildren(50), 0);
  ASSERT_EQ(TakeCheckpoint(*session_, 300, 300).status().ToString(), "OK");
  // Every entry once: the parents' runs are free.
  EXPECT_LE(Stats().flash_used_bytes, before.flash_used_bytes + kPageBytes);
  Reopen();
  ExpectChildren();
}

TEST_F(EngineManyChildrenTest, WithoutRoomForThemNothingHasChanged) {
  StartStored(80 * kPageBytes, 64);
  const std::int64_t used_bytes = Stats().flash_used_bytes;
  ReplaceAll();
  EXPECT_TRUE(session_->Read(GetCarried{0}).ok() || !session_->failure().ok());
  EXPECT_EQ(session_->failure().code(), absl::StatusCode::kResourceExhausted);
  Reopen();
  ExpectClusters(1, 100);
  EXPECT_EQ(Stats().flash_used_bytes, used_bytes);
}

TEST_F(EngineManyChildrenTest, BehindARollbackTheParentsAreThere) {
  StartStored(std::int64_t{64} << 20, 64);
  const std::int64_t used_bytes = Stats().flash_used_bytes;
  ReplaceAll();
  ExpectChildren();
  Reopen();
  ExpectClusters(1, 100);
  EXPECT_EQ(Stats().flash_used_bytes, used_bytes);
}

}  // namespace
}  // namespace cairn::kv
