// Fetches with and without an arena: what is served from memory, and what must not be.
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "tests/unit/engine/engine_fixture.h"

namespace cairn::kv {
namespace {

class EngineCacheTest : public EngineTest {
 protected:
  // Everything that is appended goes to a pool as soon as the session is idle.
  static EngineOptions Placing(std::int64_t arena_bytes_max = kArenaBytesMin) {
    EngineOptions options;
    options.place_entries_min = 1;
    options.arena_bytes_max = arena_bytes_max;
    return options;
  }
  // Waits until no entry is in memory only.
  void AwaitPlaced(std::int64_t written_bytes_before) {
    while (Stats().write_pool_bytes == written_bytes_before) {
    }
  }
  // Appends some entries, and waits until their page is written in every layer and head.
  void Place(TestSession& session, const Positions& positions, std::int64_t salt = kSalt) {
    const std::int64_t page_count = std::int64_t{layout_.layer_count} * layout_.head_count;
    const std::int64_t end = Stats().write_pool_bytes + page_count * kPageBytes;
    AppendAll(session, 1, positions, salt);
    EXPECT_TRUE(WaitForStats([&](const KvStats& stats) { return stats.write_pool_bytes == end; }));
  }
  absl::StatusOr<ReadReply> FetchOne(TestSession& session, std::int64_t cluster) {
    return session.Read(Fetch{0, {{0, ClusterId(cluster)}}, true});
  }
  const Span& OnlySpan(const absl::StatusOr<ReadReply>& reply) {
    return std::get<FetchReply>(*reply).clusters.at(0).spans.at(0);
  }
  // Appends a cluster of `count` entries and waits until all of them are in the log.
  void Store(TestSession& session, std::int64_t cluster, std::int64_t first, std::int64_t count,
             std::int64_t salt = kSalt) {
    AppendAll(session, cluster, Positions::Range(first, count), salt);
    ASSERT_TRUE(TakeCheckpoint(session, first, first + count).ok());
  }
};

TEST_F(EngineCacheTest, ASecondFetchReadsNothing) {
  auto session = Open(Create());
  Store(*session, 1, 0, 40);
  ExpectCluster(*session, 1, Positions::Range(0, 40));
  const KvStats first = Stats();
  EXPECT_GT(first.read_fetch_count, 0);
  EXPECT_EQ(first.cache_hit_count, 0);
  ExpectCluster(*session, 1, Positions::Range(0, 40));
  const KvStats second = Stats();
  EXPECT_EQ(second.read_fetch_count, first.read_fetch_count);
  EXPECT_EQ(second.cache_hit_count, first.cache_miss_count);
  EXPECT_EQ(second.cache_hit_bytes, first.cache_miss_bytes);
}

TEST_F(EngineCacheTest, AReplySaysWhatWasReadForIt) {
  auto session = Open(Create());
  auto other = Open(Create());
  Store(*session, 1, 0, 40);
  Store(*other, 1, 0, 40);
  const auto read_bytes = [this](TestSession& of) {
    return std::get<FetchReply>(*FetchOne(of, 1)).read_bytes;
  };
  const std::int64_t bytes = read_bytes(*session);
  EXPECT_GT(bytes, 0);
  EXPECT_EQ(read_bytes(*session), 0);
  EXPECT_EQ(read_bytes(*other), bytes);
  EXPECT_EQ(Stats().read_fetch_bytes, 2 * bytes);
}

TEST_F(EngineCacheTest, WithoutAnArenaEveryFetchReads) {
  EngineOptions options;
  options.arena_bytes_max = 0;
  Start(options);
  auto session = Open(Create());
  Store(*session, 1, 0, 40);
  ExpectCluster(*session, 1, Positions::Range(0, 40));
  const KvStats first = Stats();
  ExpectCluster(*session, 1, Positions::Range(0, 40));
  EXPECT_EQ(Stats().read_fetch_count, 2 * first.read_fetch_count);
  EXPECT_EQ(Stats().arena_bytes, 0);
  EXPECT_FALSE(engine_->has_arena());
}

TEST_F(EngineCacheTest, SpansLieInTheArenaUntilTheReplyIsDropped) {
  auto session = Open(Create());
  Store(*session, 1, 0, 40);
  {
    const auto reply = FetchOne(*session, 1);
    ASSERT_TRUE(reply.ok());
    const Span& span = OnlySpan(reply);
    ASSERT_NE(span.arena.granule_id, 0);
    const auto granules = engine_->ArenaGranules(kDefaultApp);
    ASSERT_EQ(granules.size(), 1U);
    EXPECT_EQ(granules[0]->id(), span.arena.granule_id);
    EXPECT_EQ(granules[0]->data() + span.arena.offset_bytes, span.bytes.data());
    EXPECT_EQ(Stats().leased_slot_count, 1);
  }
  EXPECT_EQ(Stats().leased_slot_count, 0);
}

// Rule 5: behind a rollback the same part holds other bytes.
TEST_F(EngineCacheTest, BehindARollbackNothingIsServedFromOldSlots) {
  Start(Placing());
  const SessionId id = Create();
  PartId part;
  {
    auto session = Open(id);
    Place(*session, Positions::Range(0, 8));
    ASSERT_TRUE(TakeCheckpoint(*session, 0, 8).ok());
    Place(*session, Positions::Range(8, 4), /*salt=*/1000);
    const auto reply = FetchOne(*session, 1);  // the grown part is in a slot now
    ASSERT_TRUE(reply.ok());
    part = OnlySpan(reply).part_id;
  }
  auto session = Open(id);
  EXPECT_EQ(session->attachment().token_count, 8);
  Place(*session, Positions::Range(8, 4));
  EXPECT_EQ(OnlySpan(FetchOne(*session, 1)).part_id, part);
  ExpectCluster(*session, 1, Positions::Range(0, 12));
}

TEST_F(EngineCacheTest, TheEndOfAnAttachmentForgetsItsSlotsOnly) {
  const SessionId id = Create();
  auto other = Open(Create());
  Store(*other, 1, 0, 40);
  {
    auto session = Open(id);
    Store(*session, 1, 0, 40);
    for (TestSession* one : {session.get(), other.get()}) ASSERT_TRUE(FetchOne(*one, 1).ok());
  }
  auto session = Open(id);
  const KvStats before = Stats();
  ASSERT_TRUE(FetchOne(*session, 1).ok());
  EXPECT_EQ(Stats().cache_miss_count, before.cache_miss_count + 1);
  ASSERT_TRUE(FetchOne(*other, 1).ok());
  EXPECT_EQ(Stats().cache_hit_count, before.cache_hit_count + 1);
}

TEST_F(EngineCacheTest, WhatIsPlacedBehindAFetchIsServedToo) {
  Start(Placing());
  auto session = Open(Create());
  std::int64_t count = 0;
  for (int round = 0; round < 30; ++round) {
    const std::int64_t before = Stats().write_pool_bytes;
    AppendAll(*session, 1, Positions::Range(count, 3));
    count += 3;
    AwaitPlaced(before);
    ExpectCluster(*session, 1, Positions::Range(0, count));
  }
  EXPECT_GT(Stats().cache_hit_count, 0);
}

TEST_F(EngineCacheTest, WhatIsHeldStaysWhileOthersComeAndGo) {
  Start(Placing());
  auto session = Open(Create());
  // Clusters of one part of 16 pages each, over all layers and heads far more than the arena.
  const std::int64_t entries = 16 * kPageBytes / layout_.EntryBytes(0);
  const std::int64_t cluster_count = 12;
  for (std::int64_t cluster = 1; cluster <= cluster_count; ++cluster) {
    Store(*session, cluster, (cluster - 1) * entries, entries);
  }
  const auto held = FetchOne(*session, 1);
  ASSERT_TRUE(held.ok());
  const std::string want = EntriesBytes(layout_, kSalt, 0, 0, Positions::Range(0, entries));
  for (int round = 0; round < 2; ++round) {
    for (std::int64_t cluster = 1; cluster <= cluster_count; ++cluster) {
      ExpectCluster(*session, cluster, Positions::Range((cluster - 1) * entries, entries));
    }
  }
  const KvStats stats = Stats();
  EXPECT_GT(stats.cache_evicted_count, 0);
  EXPECT_LE(stats.arena_bytes, kArenaBytesMin);
  EXPECT_TRUE(Join(layout_, std::get<FetchReply>(*held).clusters.at(0)).entries == want);
}

TEST_F(EngineCacheTest, WhenAllIsHeldRepliesComeInBuffers) {
  EngineOptions options = Placing();
  options.io_bytes_max = std::int64_t{64} << 20;
  Start(options);
  auto session = Open(Create());
  const std::int64_t entries = 16 * kPageBytes / layout_.EntryBytes(0);
  std::vector<absl::StatusOr<ReadReply>> held;
  for (std::int64_t cluster = 1; cluster <= 24; ++cluster) {
    Store(*session, cluster, (cluster - 1) * entries, entries);
    held.push_back(FetchOne(*session, cluster));
    ASSERT_TRUE(held.back().ok());
  }
  EXPECT_GT(Stats().cache_no_room_count, 0);
  EXPECT_EQ(OnlySpan(held.back()).arena.granule_id, 0);
  for (std::size_t i = 0; i < held.size(); ++i) {
    const auto first = static_cast<std::int64_t>(i) * entries;
    const JoinedCluster joined = Join(layout_, std::get<FetchReply>(*held[i]).clusters.at(0));
    EXPECT_TRUE(joined.entries ==
                EntriesBytes(layout_, kSalt, 0, 0, Positions::Range(first, entries)));
  }
}

// What a client leaves unread is its own session's.
TEST_F(EngineCacheTest, AClientThatReadsNoMoreStopsNoOther) {
  EngineOptions options = Placing();
  options.arena_bytes_max = 0;  // replies are in buffers
  options.io_bytes_max = 2 * kPartBytesMax;
  Start(options);
  const std::int64_t entries = kPartBytesMax / layout_.EntryBytes(0);
  auto stopped = Open(Create());
  std::vector<absl::StatusOr<ReadReply>> unread;
  // In their places, where one is one read of its size. In the log it may begin within a page.
  const std::int64_t row_count = std::int64_t{layout_.layer_count} * layout_.head_count;
  for (std::int64_t cluster = 1; cluster <= 2; ++cluster) {
    AppendAll(*stopped, cluster, Positions::Range((cluster - 1) * entries, entries));
    EXPECT_TRUE(WaitForStats([&](const KvStats& stats) {
      return stats.write_pool_bytes >= cluster * row_count * kPartBytesMax;
    }));
  }
  for (std::int64_t cluster = 1; cluster <= 2; ++cluster) {
    unread.push_back(FetchOne(*stopped, cluster));
    ASSERT_TRUE(unread.back().ok());
  }
  auto third = std::async(std::launch::async, [&] { return FetchOne(*stopped, 1); });
  auto session = Open(Create());
  for (std::int64_t cluster = 1; cluster <= 4; ++cluster) {
    Store(*session, cluster, (cluster - 1) * entries, entries);
    ExpectCluster(*session, cluster, Positions::Range((cluster - 1) * entries, entries));
  }
  EXPECT_EQ(third.wait_for(std::chrono::seconds(0)), std::future_status::timeout)
      << "beyond its own limit";
  unread.clear();
  EXPECT_TRUE(third.get().ok());
}

// Nobody gives answers back before the last one has come.
TEST_F(EngineCacheTest, AnswersThatAreHeldInThisProcessStopNothing) {
  EngineOptions options = Placing();
  options.arena_bytes_max = 0;
  options.io_bytes_max = 2 * kPartBytesMax;
  options.answers_are_held = true;
  Start(options);
  const std::int64_t entries = kPartBytesMax / layout_.EntryBytes(0);
  auto session = Open(Create());
  Store(*session, 1, 0, entries);
  std::vector<absl::StatusOr<ReadReply>> held;
  for (int i = 0; i < 8; ++i) {
    held.push_back(FetchOne(*session, 1));
    ASSERT_TRUE(held.back().ok()) << held.back().status();
  }
  Store(*session, 2, entries, entries);
  ExpectCluster(*session, 2, Positions::Range(entries, entries));
}

TEST_F(EngineCacheTest, WithoutSessionsTheMemoryGoesBack) {
  const SessionId id = Create();
  {
    auto session = Open(id);
    Store(*session, 1, 0, 40);
    ExpectCluster(*session, 1, Positions::Range(0, 40));
    EXPECT_GT(Stats().arena_bytes, 0);
  }
  ASSERT_TRUE(Delete(id).ok());  // behind the end of the attachment
  EXPECT_EQ(Stats().arena_bytes, 0);
}

// Three clusters side by side; the first and the last are fetched.
TEST_F(EngineCacheTest, CheapHolesAreReadThroughAndNotLeftInTheArena) {
  for (const std::int64_t gap_bytes : {std::int64_t{0}, std::int64_t{64} << 10}) {
    EngineOptions options;
    options.merge_gap_bytes = gap_bytes;
    options.place_at_idle = false;  // the clusters stay side by side in the log
    Start(options);
    auto session = Open(Create());
    const std::int64_t count = 4 * kPageBytes / layout_.EntryBytes(0);
    for (std::int64_t cluster = 1; cluster <= 3; ++cluster) {
      AppendAll(*session, cluster, Positions::Range((cluster - 1) * count, count));
    }
    ASSERT_TRUE(TakeCheckpoint(*session, 0, 3 * count).ok());
    const KvStats before = Stats();
    const auto reply = session->Read(Fetch{0, {{0, ClusterId(1)}, {0, ClusterId(3)}}, false});
    ASSERT_TRUE(reply.ok());
    const KvStats after = Stats();
    EXPECT_EQ(after.read_fetch_count - before.read_fetch_count, gap_bytes == 0 ? 2 : 1);
    EXPECT_EQ(after.read_hole_bytes > before.read_hole_bytes, gap_bytes != 0);
    const auto& clusters = std::get<FetchReply>(*reply).clusters;
    EXPECT_TRUE(Join(layout_, clusters.at(0)).entries ==
                EntriesBytes(layout_, kSalt, 0, 0, Positions::Range(0, count)));
    EXPECT_TRUE(Join(layout_, clusters.at(1)).entries ==
                EntriesBytes(layout_, kSalt, 0, 0, Positions::Range(2 * count, count)));
    if (gap_bytes == 0) continue;
    const Span& first = clusters.at(0).spans.at(0);
    const Span& last = clusters.at(1).spans.at(0);
    ASSERT_EQ(first.arena.granule_id, last.arena.granule_id);
    const auto page_of = [](std::int64_t offset) { return offset / kPageBytes * kPageBytes; };
    const std::int64_t begin =
        page_of(first.arena.offset_bytes + std::ssize(first.bytes) - 1) + kPageBytes;
    const std::int64_t end = page_of(last.arena.offset_bytes);
    ASSERT_GT(end, begin);
    const std::byte* granule = engine_->ArenaGranules(kDefaultApp).at(0)->data();
    EXPECT_TRUE(std::all_of(granule + begin, granule + end,
                            [](std::byte byte) { return byte == std::byte{0}; }));
  }
}

TEST_F(EngineCacheTest, TooSmallAnArenaIsRefused) {
  EngineOptions options;
  options.arena_bytes_max = kArenaBytesMin - 1;
  EXPECT_EQ(options.Validate().code(), absl::StatusCode::kInvalidArgument);
  options.arena_bytes_max = 0;
  EXPECT_TRUE(options.Validate().ok());
}

}  // namespace
}  // namespace cairn::kv
