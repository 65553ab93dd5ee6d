// Where clusters are placed that are fetched together. Entries have 512 bytes, eight to a page.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kv-node/engine/place/co_fetches.h"
#include "tests/unit/engine/engine_fixture.h"

namespace cairn::kv {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kEntryCount = 4;  // of a cluster

class EngineRelatedTest : public EngineTest {
 protected:
  void SetUp() override { StartPlacing({}); }

  void StartPlacing(EngineOptions options) {
    session_.reset();
    options.arena_bytes_max = 0;  // every fetch reads the device
    if (options.place_entries_min == EngineOptions().place_entries_min) {
      options.place_entries_min = kEntryCount;
    }
    Start(options);
    id_ = CreateOne(SegmentId(0), 0);
    token_count_ = checkpointed_ = 0;
    next_cluster_id_ = 1;
    Reopen();
  }

  SessionId CreateOne(SegmentId parent, std::int64_t token_count) {
    CreateSession request;
    request.key = SmallKey();
    request.layout = one_head_;
    request.parent_segment_id = parent;
    request.parent_token_count = token_count;
    const auto id = Await<SessionRef>(
        [&](auto done) { engine_->Create(kDefaultApp, request, std::move(done)); });
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    return id.ok() ? id->id : SessionId(0);
  }

  // What no checkpoint covers is gone, as after a crash.
  void Reopen() {
    session_.reset();
    session_ = Open(id_);
    ASSERT_NE(session_, nullptr);
    token_count_ = checkpointed_;
  }

  // They are fetched together, if they exist or not, until that is counted.
  void Link(std::int64_t a, std::int64_t b) {
    for (std::uint64_t i = 0; i < 16 * kCoFetchSample; ++i) FetchAll({a, b});
  }

  // New clusters in one operation: they are placed when all of them are there.
  void AppendClusters(const Ids& clusters) {
    cairn::Append op;
    for (const std::int64_t cluster : clusters) {
      const Positions positions = Positions::Range(token_count_, kEntryCount);
      token_count_ += kEntryCount;
      next_cluster_id_ = std::max(next_cluster_id_, cluster + 1);
      op.clusters.push_back(
          {{0, ClusterId(cluster)}, positions, EntriesBytes(one_head_, kSalt, 0, 0, positions)});
    }
    session_->Send(std::move(op));
  }

  FetchReply FetchAll(const Ids& clusters) {
    cairn::Fetch fetch{0, {}, true};
    for (const std::int64_t cluster : clusters) fetch.clusters.push_back({0, ClusterId(cluster)});
    const auto reply = session_->Read(fetch);
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return reply.ok() ? std::get<FetchReply>(*reply) : FetchReply();
  }
  void ExpectWhole(const Ids& clusters) {
    for (const FetchedCluster& fetched : FetchAll(clusters).clusters) {
      ASSERT_EQ(fetched.outcome, FetchOutcome::kFound);
      const JoinedCluster joined = Join(one_head_, fetched);
      EXPECT_TRUE(joined.entries == EntriesBytes(one_head_, kSalt, 0, 0, joined.positions));
    }
  }

  // Asks until nothing is pending; one by one, because what is asked for together is counted.
  void WaitUntilPlaced(const Ids& clusters) {
    const auto is_pending = [](const Span& span) { return span.part_id.value() == 0; };
    for (const std::int64_t cluster : clusters) {
      bool pending = true;
      while (pending && !::testing::Test::HasFailure()) {
        const FetchReply reply = FetchAll({cluster});
        if (reply.clusters.empty()) return;
        const auto& spans = reply.clusters[0].spans;
        pending = std::any_of(spans.begin(), spans.end(), is_pending);
      }
    }
  }
  void Place(const Ids& clusters) {
    AppendClusters(clusters);
    WaitUntilPlaced(clusters);
  }

  // Device reads of one fetch.
  std::int64_t ReadsFor(const Ids& clusters) {
    const std::int64_t before = Stats().read_fetch_count;
    FetchAll(clusters);
    return Stats().read_fetch_count - before;
  }

  absl::StatusOr<Checkpointed> Checkpoint(bool seal = false) {
    cairn::Checkpoint op;
    op.token_count = token_count_;
    op.token_ids_start = checkpointed_;
    op.token_ids.assign(static_cast<std::size_t>(token_count_ - checkpointed_), 1);
    op.next_cluster_ids.assign(2, next_cluster_id_);
    op.seal = seal;
    auto done = session_->WaitFor(session_->Send(std::move(op)));
    EXPECT_TRUE(done.ok()) << done.status().ToString();
    checkpointed_ = token_count_;
    return done;
  }

  const EntryLayout one_head_{1, 1, 128, KvFormat::kF16};
  SessionId id_;
  std::unique_ptr<TestSession> session_;
  std::int64_t token_count_ = 0;
  std::int64_t checkpointed_ = 0;
};

// Pairs that the order of appends keeps apart: with their links each takes one read, without two.
TEST_F(EngineRelatedTest, ClustersThatAreFetchedTogetherAreReadAtOnce) {
  constexpr std::int64_t kPairCount = 24;
  Ids all;
  for (std::int64_t id = 1; id <= 2 * kPairCount; ++id) all.push_back(id);
  struct Run {
    const char* name;
    bool sharing;
    bool related;
    std::int64_t reads;
  };
  for (const Run& run : {Run{"single, in order", false, true, 2 * kPairCount},
                         Run{"two to a pool", true, false, 2 * kPairCount},
                         Run{"related", true, true, kPairCount}}) {
    EngineOptions options;
    options.pool_sharing = run.sharing;
    StartPlacing(options);
    for (std::int64_t id = 1; run.related && id <= kPairCount; ++id) Link(id, id + kPairCount);
    Place(all);
    std::int64_t reads = 0;
    for (std::int64_t id = 1; id <= kPairCount; ++id) reads += ReadsFor({id, id + kPairCount});
    EXPECT_EQ(reads, run.reads) << run.name;
    std::cout << run.name << ": " << reads << " device reads for " << kPairCount << " fetches, "
              << 2 * kPairCount * kEntryCount / static_cast<double>(reads)
              << " entries a read, flash_used_bytes=" << Stats().flash_used_bytes << "\n";
    ExpectWhole(all);
    ASSERT_TRUE(Checkpoint().ok());
    Reopen();
    ExpectWhole(all);
  }
}

// The same when they come as log parts, after a restart that placed nothing before.
TEST_F(EngineRelatedTest, LoggedClustersArePlacedByTheirStoredNeighbours) {
  EngineOptions options;
  options.place_entries_min = 2 * kEntryCount;
  StartPlacing(options);
  Link(1, 5);
  Link(2, 6);
  AppendClusters({1, 2, 3, 4, 5, 6});
  ASSERT_TRUE(Checkpoint().ok());
  Reopen();
  AppendClusters({1, 2, 3, 4, 5, 6});  // the second half: now they are worth a place
  WaitUntilPlaced({1, 2, 3, 4, 5, 6});
  EXPECT_EQ(ReadsFor({1, 5}), 1);
  EXPECT_EQ(ReadsFor({2, 6}), 1);
  ExpectWhole({1, 2, 3, 4, 5, 6});
}

// A log run costs nothing more for being in an order.
TEST_F(EngineRelatedTest, ALogRunFollowsTheLinks) {
  for (const auto& [related, used] : {std::pair(false, true), {true, false}, {true, true}}) {
    EngineOptions options;
    options.place_at_idle = false;
    options.merge_gap_bytes = 0;
    options.co_retrieval = used;
    StartPlacing(options);
    Ids all;
    for (std::int64_t id = 1; id <= 24; ++id) all.push_back(id);
    for (std::int64_t id = 1; related && id <= 12; ++id) Link(id, 25 - id);
    AppendClusters(all);
    ASSERT_TRUE(Checkpoint().ok());
    std::int64_t reads = 0;
    for (std::int64_t id = 1; id <= 10; ++id) reads += ReadsFor({id, 25 - id});
    EXPECT_EQ(reads, related && used ? 10 : 20);
    ExpectWhole(all);
  }
}

TEST_F(EngineRelatedTest, ASingleNewClusterGoesAcrossTheSeam) {
  Link(1, 2);
  Link(6, 2);
  Place({1, 2});  // [  1] [2  ]
  Place({4});
  Place({5});  // [5 1] [2 4]
  for (const std::int64_t i : {0, 2}) {
    Replace evict;
    evict.parent_ids = {ClusterId(i == 0 ? 1 : 4)};
    evict.evicted_positions = Positions::Range(i * kEntryCount, kEntryCount);
    session_->Send(std::move(evict));
  }
  ASSERT_TRUE(Checkpoint().ok());
  EXPECT_EQ(ReadsFor({2, 5}), 2) << "in two pools";
  Place({6});
  EXPECT_EQ(ReadsFor({2, 6}), 1);
  EXPECT_EQ(ReadsFor({5, 6}), 1) << "in the pool that was left free across the seam";
  ExpectWhole({2, 5, 6});
}

// Places that were kept and not used go back to the free pages with the next checkpoint.
TEST_F(EngineRelatedTest, KeptPlacesAreGivenBack) {
  EngineOptions options;
  options.place_at_idle = false;
  options.pending_bytes_max = kPartBytesMax;
  StartPlacing(options);
  Ids many;
  for (std::int64_t id = 1; id <= 40; ++id) many.push_back(id);
  for (std::int64_t id = 1; id <= 20; ++id) Link(id, id + 20);
  AppendClusters(many);  // 80 KiB: above the limit
  AppendClusters({41});  // makes room: half of them are placed
  ExpectWhole(many);
  const std::int64_t with_kept = Stats().flash_used_bytes;
  ASSERT_TRUE(Checkpoint().ok());  // in their stead a log run of fewer pages
  EXPECT_LT(Stats().flash_used_bytes, with_kept);
  Reopen();
  const std::int64_t after = Stats().flash_used_bytes;
  EXPECT_LT(after, with_kept);
  ExpectWhole(many);
  session_.reset();
  ASSERT_TRUE(Delete(id_).ok());
  EXPECT_EQ(Stats().flash_used_bytes, 2 * kPageBytes);
}

TEST_F(EngineRelatedTest, LinkedChildrenOfAReplaceShareAPool) {
  EngineOptions options;
  options.place_entries_min = 2;
  StartPlacing(options);
  Place({1, 2});
  Link(3, 5);
  Link(4, 6);
  Replace split;
  split.parent_ids = {ClusterId(1), ClusterId(2)};
  for (std::int64_t i = 0; i < 4; ++i) {
    split.children.push_back({ClusterId(3 + i), Positions::Range(2 * i, 2)});
  }
  next_cluster_id_ = std::max<std::int64_t>(next_cluster_id_, 7);
  session_->Send(std::move(split));
  std::vector<Direction> directions;
  for (const FetchedCluster& fetched : FetchAll({3, 4, 5, 6}).clusters) {
    directions.push_back(fetched.spans.at(0).direction);
  }
  EXPECT_EQ(directions,
            (std::vector{Direction::kUp, Direction::kUp, Direction::kDown, Direction::kDown}));
  ExpectWhole({3, 4, 5, 6});
}

}  // namespace
}  // namespace cairn::kv
