// Flash space: given back, used up, in pieces.
#include <algorithm>
#include <vector>

#include "tests/unit/engine/engine_fixture.h"

namespace cairn::kv {
namespace {

TEST_F(EngineTest, DeletedSessionsGiveTheirFlashBack) {
  const std::int64_t empty = Stats().flash_used_bytes;
  const SessionId id = Create();
  auto session = Open(id);
  AppendAll(*session, 1, Positions::Range(0, 500));
  const auto sealed = TakeCheckpoint(*session, 0, 500, /*seal=*/true);
  ASSERT_TRUE(sealed.ok());
  const SessionId fork = Create(sealed->sealed_segment_id, 400);
  session.reset();
  EXPECT_GT(Stats().flash_used_bytes, empty);
  ASSERT_TRUE(Delete(id).ok());
  ExpectCluster(*Open(fork), 1, Positions::Range(0, 400));  // holds the sealed segment
  ASSERT_TRUE(Delete(fork).ok());
  EXPECT_EQ(Stats().flash_used_bytes, empty);
  EXPECT_EQ(Delete(fork).code(), absl::StatusCode::kNotFound);
}

TEST_F(EngineTest, WritesAreCountedByCause) {
  EngineOptions options;
  options.place_at_idle = false;
  options.place_entries_min = 10;
  Start(options);
  auto session = Open(Create());
  AppendAll(*session, 1, Positions::Range(0, 40));
  ASSERT_EQ(TakeCheckpoint(*session, 0, 40).status().ToString(), "OK");
  const KvStats logged = Stats();
  EXPECT_GT(logged.write_log_bytes, 0);
  EXPECT_EQ(logged.write_pool_bytes, 0);
  EXPECT_EQ(logged.index_row_bytes, 0);
  EXPECT_GT(logged.write_meta_log_bytes, 0);

  session->Send(
      Replace{0,
              0,
              {ClusterId(1)},
              {{ClusterId(2), Positions::Range(0, 30)}, {ClusterId(3), Positions::Range(30, 10)}},
              {},
              {},
              {}});
  session->Send(PutIndexRows{0, {{{0, ClusterId(2)}, std::string(100, 'r'), false, 30}}});
  ASSERT_EQ(TakeCheckpoint(*session, 40, 40).status().ToString(), "OK");
  const KvStats split = Stats();
  EXPECT_GT(split.write_split_bytes, 0);
  EXPECT_EQ(split.write_split_bytes, split.write_pool_bytes);
  EXPECT_EQ(split.write_log_bytes, logged.write_log_bytes);
  // The row, its key, and what says how long it is.
  EXPECT_GT(split.index_row_bytes, 100);
  EXPECT_LT(split.index_row_bytes, 150);
  EXPECT_GT(split.write_meta_log_bytes, logged.write_meta_log_bytes + split.index_row_bytes);
}

TEST_F(EngineTest, LogRunsOfASegmentStayBounded) {
  EngineOptions options;
  options.place_at_idle = false;
  Start(options);
  const SessionId id = Create();
  auto session = Open(id);
  for (std::int64_t i = 0; i < 40; ++i) {
    AppendAll(*session, i + 1, Positions::Range(i * 3, 3));
    ASSERT_EQ(TakeCheckpoint(*session, i * 3, i * 3 + 3).status().ToString(), "OK");
  }
  const KvStats stats = Stats();
  EXPECT_GT(stats.write_relog_bytes, 0);
  // 120 tokens of 640 bytes take 19 pages; forty runs of a page would take 40.
  EXPECT_LE(stats.flash_used_bytes, (2 + 19 + 16) * kPageBytes);
  session.reset();
  session = Open(id);
  for (std::int64_t i = 0; i < 40; ++i) ExpectCluster(*session, i + 1, Positions::Range(i * 3, 3));
}

// Clusters that are complete, each in one full run: to write them again gains nothing.
TEST_F(EngineTest, FullLogRunsOfWholeClustersAreNotWrittenAgain) {
  EngineOptions options;
  options.place_at_idle = false;
  Start(options);
  const SessionId id = Create();
  auto session = Open(id);
  constexpr std::int64_t kTokens = 32;  // of 640 bytes: five pages
  for (std::int64_t i = 0; i < 40; ++i) {
    AppendAll(*session, i + 1, Positions::Range(i * kTokens, kTokens));
    ASSERT_EQ(TakeCheckpoint(*session, i * kTokens, (i + 1) * kTokens).status().ToString(), "OK");
  }
  EXPECT_EQ(Stats().write_relog_bytes, 0);
  session.reset();
  session = Open(id);
  for (std::int64_t i = 0; i < 40; ++i) {
    ExpectCluster(*session, i + 1, Positions::Range(i * kTokens, kTokens));
  }
}

TEST_F(EngineTest, FullFlashIsAnErrorThatLosesNothing) {
  Start({}, std::int64_t{2} << 20);
  const SessionId id = Create();
  auto session = Open(id);
  AppendAll(*session, 1, Positions::Range(0, 200));
  ASSERT_EQ(TakeCheckpoint(*session, 0, 200).status().ToString(), "OK");
  for (std::int64_t c = 0; c < 40 && session->failure().ok(); ++c) {
    AppendAll(*session, c + 2, Positions::Range(200 + c * 100, 100));
    ExpectCluster(*session, 1, Positions::Range(0, 200));
  }
  const auto full = TakeCheckpoint(*session, 200, 4200);
  EXPECT_EQ(full.status().code(), absl::StatusCode::kResourceExhausted) << full.status().ToString();
  session.reset();
  session = Open(id);
  EXPECT_EQ(session->attachment().token_count, 200);
  ExpectCluster(*session, 1, Positions::Range(0, 200));
}

// Every second of many small sessions is deleted: no long range is free, but half of the flash is.
TEST_F(EngineTest, CheckpointFitsIntoScatteredFreePages) {
  Start({}, std::int64_t{4} << 20);
  std::vector<SessionId> small;
  for (absl::Status status; status.ok();) {
    small.push_back(Create());
    auto session = Open(small.back());
    AppendAll(*session, 1, Positions::Range(0, 3));
    status = TakeCheckpoint(*session, 0, 3).status();
  }
  for (std::size_t i = 0; i < small.size(); i += 2) ASSERT_TRUE(Delete(small[i]).ok());

  const SessionId id = Create();
  auto session = Open(id);
  const std::int64_t free_bytes = (std::int64_t{4} << 20) - Stats().flash_used_bytes;
  const std::int64_t count = free_bytes / 2 / layout_.TokenBytes();
  for (std::int64_t at = 0; at < count; at += 50) {
    AppendAll(*session, 1 + at, Positions::Range(at, std::min<std::int64_t>(50, count - at)));
  }
  const auto done = TakeCheckpoint(*session, 0, count);
  ASSERT_TRUE(done.ok()) << done.status().ToString();
  session.reset();
  session = Open(id);
  for (std::int64_t at = 0; at < count; at += 50) {
    ExpectCluster(*session, 1 + at, Positions::Range(at, std::min<std::int64_t>(50, count - at)));
  }
  ExpectCluster(*Open(small[1]), 1, Positions::Range(0, 3));
}

}  // namespace
}  // namespace cairn::kv
