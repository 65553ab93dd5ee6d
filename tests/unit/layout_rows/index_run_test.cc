#include "kv-node/layout/index_run.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/tools/rng.h"
#include "tests/tools/seed.h"

namespace cairn::kv {
namespace {

std::string HexOf(const std::vector<std::byte>& bytes) {
  std::string out;
  for (const std::byte byte : bytes) out += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return out;
}

IndexRun TwoParts() {
  const auto extent =
      std::make_shared<Extent>(nullptr, ExtentKind::kIndexRun, PageIndex(7), 2, true);
  IndexRun run;
  run.record_bytes = 80;
  for (const std::int64_t first : {0, 60}) {
    Part part;
    part.id = PartId(100 + first);
    part.SetExtent(extent);
    part.offset_bytes = first * run.record_bytes;
    part.positions = Positions::Range(first, first == 0 ? 60 : 10);
    part.crcs = {1, 2};
    run.parts.push_back(std::move(part));
  }
  return run;
}

TEST(IndexRunTest, RecordsAreOnFlashAsTheFormatSays) {
  std::vector<std::byte> bytes(24);
  EncodeIndexRecord({{1, ClusterId(57)}, "abc", true, 300}, bytes);
  EXPECT_EQ(HexOf(bytes),
            "3900000000000000"
            "2c010000"
            "0100"
            "0700"
            "6162630000000000");
}

TEST(IndexRunTest, RecordsRoundTrip) {
  test::Rng rng(test::TestSeed());
  for (int i = 0; i < 1000; ++i) {
    IndexRow row;
    row.cluster = {static_cast<std::int32_t>(rng.Below(1025)) - 1,
                   ClusterId(1 + static_cast<std::int64_t>(rng.Below(INT64_MAX)))};
    row.row.assign(rng.Below(kIndexRowBytesMax + 1), static_cast<char>(rng.Below(256)));
    row.stale = rng.Below(2) == 0;
    row.entry_count = static_cast<std::int64_t>(rng.Below(kPositionMax));
    std::vector<std::byte> bytes(static_cast<std::size_t>(IndexRecordBytes(row)) + rng.Below(9));
    EncodeIndexRecord(row, bytes);
    const absl::StatusOr<IndexRow> back = DecodeIndexRecord(bytes);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->cluster, row.cluster);
    EXPECT_EQ(back->row, row.row);
    EXPECT_EQ(back->stale, row.stale);
    EXPECT_EQ(back->entry_count, row.entry_count);
  }
}

TEST(IndexRunTest, ARowThatEndsBehindItsRecordIsDataLoss) {
  std::vector<std::byte> bytes(kIndexRecordHeaderBytes + 3);
  EncodeIndexRecord({{0, ClusterId(1)}, "abc", false, 1}, bytes);
  bytes.pop_back();
  EXPECT_EQ(DecodeIndexRecord(bytes).status().code(), absl::StatusCode::kDataLoss);
}

TEST(IndexRunTest, ARunThatOnlyHidesRoundTrips) {
  IndexRun run;
  run.hides_older = true;
  const absl::StatusOr<StoredIndexRun> back = DecodeIndexRun(EncodeIndexRun(run));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(back->hides_older);
  EXPECT_EQ(back->record_count(), 0);
  EXPECT_FALSE(DecodeIndexRun(EncodeIndexRun(IndexRun())).ok());
}

TEST(IndexRunTest, RowsRoundTrip) {
  const IndexRun run = TwoParts();
  EXPECT_EQ(run.record_count(), 70);
  const auto back = DecodeIndexRun(EncodeIndexRun(run));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->record_bytes, 80);
  EXPECT_EQ(back->record_count(), 70);
  ASSERT_EQ(back->parts.size(), 2U);
  EXPECT_EQ(back->parts[1].id, PartId(160));
  EXPECT_EQ(back->parts[1].offset_bytes, 4800);
  EXPECT_EQ(back->parts[1].crcs, run.parts[1].crcs);
  EXPECT_EQ(*ParseIndexRunKey(IndexRunKey(SegmentId(9), 1023)), 1023);
}

TEST(IndexRunTest, PartsThatAreNoRunAreDataLoss) {
  const auto code = [](const std::function<void(IndexRun&)>& change) {
    IndexRun run = TwoParts();
    change(run);
    return DecodeIndexRun(EncodeIndexRun(run)).status().code();
  };
  const auto loss = absl::StatusCode::kDataLoss;
  EXPECT_EQ(code([](IndexRun&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(code([](IndexRun& run) { run.parts.clear(); }), loss);
  EXPECT_EQ(code([](IndexRun& run) { run.record_bytes = 15; }), loss);
  EXPECT_EQ(code([](IndexRun& run) { run.record_bytes = 79; }), loss);
  EXPECT_EQ(code([](IndexRun& run) { run.parts.erase(run.parts.begin()); }), loss);
  EXPECT_EQ(code([](IndexRun& run) { run.parts[1].kind = ExtentKind::kLogRun; }), loss);
  EXPECT_EQ(code([](IndexRun& run) { run.parts[1].first_page = PageIndex(8); }), loss);
  EXPECT_EQ(code([](IndexRun& run) { run.parts[1].positions = Positions::Range(61, 9); }), loss);
}

TEST(IndexRunTest, AChangeIsARowOrThatThereIsNone) {
  const ClusterKey key{0, 0, ClusterId(1)};
  EXPECT_TRUE(CheckIndexChange(key, GoneIndexRow()).ok());
  EXPECT_TRUE(CheckIndexChange(key, EncodeIndexRow({{0, ClusterId(1)}, "abc", true, 3})).ok());
  EXPECT_FALSE(DecodeIndexRow(key, GoneIndexRow()).ok());
  EXPECT_FALSE(CheckIndexChange(key, GoneIndexRow() + "x").ok());
}

}  // namespace
}  // namespace cairn::kv
