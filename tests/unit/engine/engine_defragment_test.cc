// Sealed segments are placed again in packed runs, and nobody sees more of it than fewer reads.
#include <algorithm>
#include <vector>

#include "kv-node/engine/place/co_fetches.h"
#include "tests/unit/engine/engine_fixture.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kSealedClusters = 24;
constexpr std::int64_t kSealedClusterEntries = 8;
constexpr std::int64_t kSealedCount = kSealedClusters * kSealedClusterEntries;
constexpr std::int64_t kLayerHeads = 4;

class EngineDefragmentTest : public EngineTest {
 protected:
  void SetUp() override { StartWith({}); }

  void StartWith(EngineOptions options) {
    options.defragment = true;
    options.defragment_idle = std::chrono::milliseconds(0);
    options.place_entries_min = 2;
    Start(options);
  }

  static Positions PositionsOf(std::int64_t cluster) {
    return Positions::Range((cluster - 1) * kSealedClusterEntries, kSealedClusterEntries);
  }

  // A session whose sealed segment has kSealedClusters clusters in pools.
  std::unique_ptr<TestSession> MakeSealed(SessionId id, SegmentId* sealed = nullptr,
                                          std::int64_t pair_distance = 0) {
    auto session = Open(id);
    const std::int64_t before = Stats().write_pool_bytes;
    for (std::int64_t cluster = 1; cluster <= kSealedClusters; ++cluster) {
      AppendAll(*session, cluster, PositionsOf(cluster));
    }
    EXPECT_TRUE(WaitForStats([&](const KvStats& stats) {
      return stats.write_pool_bytes - before >= kSealedClusters * kLayerHeads * kPageBytes;
    }));
    if (pair_distance > 0) FetchPairs(*session, pair_distance);
    const auto done = TakeCheckpoint(*session, 0, kSealedCount, /*seal=*/true);
    EXPECT_TRUE(done.ok()) << done.status();
    if (sealed != nullptr && done.ok()) *sealed = done->sealed_segment_id;
    return session;
  }

  // Often enough to be counted.
  static void FetchPairs(TestSession& session, std::int64_t distance) {
    for (std::int64_t id = 1; id <= distance; ++id) {
      const Fetch both{0, {{0, ClusterId(id)}, {0, ClusterId(id + distance)}}, false};
      for (std::uint64_t i = 0; i < 16 * kCoFetchSample; ++i) {
        ASSERT_TRUE(session.Read(both).ok());
      }
    }
  }

  std::int64_t PackedBytes() const {
    const std::int64_t layer_bytes = layout_.head_count * kSealedCount * layout_.EntryBytes(0);
    return layout_.layer_count * ((layer_bytes + kPageBytes - 1) / kPageBytes) * kPageBytes;
  }

  void ExpectAll(TestSession& session) {
    for (std::int64_t cluster = 1; cluster <= kSealedClusters; ++cluster) {
      ExpectCluster(session, cluster, PositionsOf(cluster));
    }
  }
};

TEST_F(EngineDefragmentTest, ASealedSegmentIsPackedWhenNobodyReadsIt) {
  const SessionId id = Create();
  SegmentId sealed;
  MakeSealed(id, &sealed).reset();
  ASSERT_TRUE(WaitForStats(
      [&](const KvStats& stats) { return stats.write_defragment_bytes == PackedBytes(); }));
  ASSERT_TRUE(WaitForStats([&](const KvStats& stats) {
    return stats.flash_used_bytes == 2 * kPageBytes + PackedBytes();
  }));
  auto session = Open(id);
  ExpectAll(*session);
  const SessionId fork_id = Create(sealed, kSealedClusterEntries + 3);  // cuts the second cluster
  auto fork = Open(fork_id);
  ExpectCluster(*fork, 1, PositionsOf(1));
  ExpectCluster(*fork, 2, Positions::Range(kSealedClusterEntries, 3));
  ExpectCluster(*fork, 3, {});
  // An old cluster goes on in the open segment.
  AppendAll(*session, 1, Positions::Range(kSealedCount, 4));
  Positions longer = PositionsOf(1);
  longer.AppendAll(Positions::Range(kSealedCount, 4));
  ExpectCluster(*session, 1, longer);

  session.reset();
  fork.reset();
  ASSERT_TRUE(Delete(id).ok());
  ASSERT_TRUE(Delete(fork_id).ok());
  EXPECT_EQ(Stats().flash_used_bytes, 2 * kPageBytes);
}

TEST_F(EngineDefragmentTest, ClustersThatAreFetchedTogetherLieTogether) {
  EngineOptions options;
  options.arena_bytes_max = 0;  // every fetch reads the device
  options.pool_sharing = false;
  StartWith(options);
  const SessionId id = Create();
  constexpr std::int64_t kPairDistance = kSealedClusters / 2;
  MakeSealed(id, nullptr, kPairDistance).reset();
  // Layer 1 has no links: only the pools' room is a reason there.
  ASSERT_TRUE(WaitForStats(
      [&](const KvStats& stats) { return stats.write_defragment_bytes == PackedBytes(); }));
  auto session = Open(id);
  for (std::int64_t cluster = 1; cluster <= kPairDistance; ++cluster) {
    const std::int64_t before = Stats().read_fetch_count;
    const auto reply = session->Read(
        Fetch{0, {{0, ClusterId(cluster)}, {0, ClusterId(cluster + kPairDistance)}}, false});
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(Stats().read_fetch_count - before, 1) << "cluster " << cluster;
  }
  ExpectAll(*session);
}

TEST_F(EngineDefragmentTest, NothingMovesWhileASessionHasTheSegment) {
  const SessionId first = Create();
  auto reader = MakeSealed(first);
  const std::int64_t used_bytes = Stats().flash_used_bytes;
  const SessionId second = Create();
  MakeSealed(second).reset();
  // One of the two is packed. It is the one that nobody reads: it gives as much back.
  ASSERT_TRUE(WaitForStats([&](const KvStats& stats) {
    return stats.write_defragment_bytes == PackedBytes() &&
           stats.flash_used_bytes == used_bytes + PackedBytes();
  }));
  ASSERT_TRUE(Delete(second).ok());
  EXPECT_EQ(Stats().flash_used_bytes, used_bytes);
  for (int round = 0; round < 100; ++round) Stats();
  EXPECT_EQ(Stats().write_defragment_bytes, PackedBytes());
  ExpectAll(*reader);
  reader.reset();
  ASSERT_TRUE(WaitForStats([&](const KvStats& stats) {
    return stats.flash_used_bytes == 2 * kPageBytes + PackedBytes();
  }));
  ExpectAll(*Open(first));
}

TEST_F(EngineDefragmentTest, RecordsOfLogRunsAreJoinedAndCarriedOnesStay) {
  EngineOptions options;
  options.place_at_idle = false;
  StartWith(options);
  const SessionId id = Create();
  auto session = Open(id);
  constexpr std::int64_t kHalf = 60;
  for (std::int64_t cluster = 1; cluster <= 6; ++cluster) {
    AppendAll(*session, cluster, Positions::Range((cluster - 1) * 10, 10));
  }
  ASSERT_TRUE(TakeCheckpoint(*session, 0, kHalf).ok());
  const std::int64_t first_run = Stats().write_log_bytes;
  for (std::int64_t cluster = 1; cluster <= 6; ++cluster) {
    AppendAll(*session, cluster, Positions::Range(kHalf + (cluster - 1) * 10, 10));
  }
  const Positions carried = Positions::Range(2 * kHalf, 5);
  CarryAll(*session, carried, carried);
  ASSERT_TRUE(TakeCheckpoint(*session, kHalf, 2 * kHalf + 5, /*seal=*/true).ok());
  session.reset();
  // The superblock's pages, what was packed, and the carried entries in a run of their own.
  ASSERT_TRUE(WaitForStats([&](const KvStats& stats) {
    return stats.write_defragment_bytes > first_run &&
           stats.flash_used_bytes == 3 * kPageBytes + stats.write_defragment_bytes;
  }));
  session = Open(id);
  for (std::int64_t cluster = 1; cluster <= 6; ++cluster) {
    Positions both = Positions::Range((cluster - 1) * 10, 10);
    both.AppendAll(Positions::Range(kHalf + (cluster - 1) * 10, 10));
    ExpectCluster(*session, cluster, both);
  }
  const auto window = session->Read(GetCarried{0});
  ASSERT_TRUE(window.ok()) << window.status();
  EXPECT_EQ(std::get<CarriedReply>(*window).carried.at(0).positions, carried);
  session.reset();
  ASSERT_TRUE(Delete(id).ok());
  EXPECT_EQ(Stats().flash_used_bytes, 2 * kPageBytes);
}

// A cluster of more than the largest part comes out as several.
TEST_F(EngineDefragmentTest, LongClustersAreCutIntoParts) {
  const SessionId id = Create();
  auto session = Open(id);
  const std::int64_t count = 2 * kPartBytesMax / layout_.EntryBytes(0);
  for (std::int64_t first = 0; first < count; first += 100) {
    AppendAll(*session, 1, Positions::Range(first, std::min<std::int64_t>(100, count - first)));
  }
  ASSERT_TRUE(TakeCheckpoint(*session, 0, count, /*seal=*/true).ok());
  session.reset();
  ASSERT_TRUE(WaitForStats([&](const KvStats& stats) {
    return stats.write_defragment_bytes >= kLayerHeads * count * layout_.EntryBytes(0);
  }));
  ExpectCluster(*Open(id), 1, Positions::Range(0, count));
}

TEST_F(EngineDefragmentTest, SwitchedOffItDoesNothing) {
  EngineOptions options;
  options.place_entries_min = 2;
  Start(options);
  const SessionId id = Create();
  MakeSealed(id).reset();
  for (int round = 0; round < 200; ++round) Stats();
  EXPECT_EQ(Stats().read_defragment_bytes, 0);
  ExpectAll(*Open(id));
}

}  // namespace
}  // namespace cairn::kv
