#include "common/kv/index_record.h"

#include <array>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/index_run.h"
#include "tests/tools/seed.h"

namespace cairn {
namespace {

IndexRow RowOf(std::int32_t head, std::int64_t id, std::size_t row_bytes) {
  IndexRow row;
  row.cluster = {head, ClusterId(id)};
  row.entry_count = id % 1000;
  row.stale = id % 3 == 0;
  row.row = std::string(row_bytes, static_cast<char>('a' + id % 20));
  return row;
}

TEST(IndexRecordTest, ParsingGivesWhatWasEncoded) {
  std::array<std::byte, 100> bytes{};
  for (const std::int32_t head : {kAllHeads, 0, 500}) {
    for (const std::int64_t id : {std::int64_t{1}, std::int64_t{1} << 40}) {
      const IndexRow row = RowOf(head, id, 70);
      EncodeIndexRecord(row, bytes);
      const std::optional<IndexRecord> parsed = ParseIndexRecord(bytes);
      ASSERT_TRUE(parsed.has_value());
      EXPECT_EQ(parsed->cluster, row.cluster);
      EXPECT_EQ(parsed->entry_count, row.entry_count);
      EXPECT_EQ(parsed->stale, row.stale);
      EXPECT_EQ(parsed->row, row.row);
    }
  }
}

TEST(IndexRecordTest, WhatIsNoRecordIsNotParsed) {
  std::array<std::byte, 40> bytes{};
  EXPECT_FALSE(ParseIndexRecord(bytes).has_value());  // cluster 0
  EncodeIndexRecord(RowOf(0, 7, 24), bytes);
  EXPECT_TRUE(ParseIndexRecord(bytes).has_value());
  EXPECT_FALSE(ParseIndexRecord(std::span(bytes).first(39)).has_value());
  EXPECT_FALSE(ParseIndexRecord(std::span(bytes).first(15)).has_value());
  EXPECT_FALSE(ParseIndexRecord({}).has_value());
  bytes[12] = bytes[13] = std::byte{0x80};  // head below -1
  EXPECT_FALSE(ParseIndexRecord(bytes).has_value());
}

TEST(IndexRecordTest, TheRecordsOfAHeadAreFoundAlsoBesideDamage) {
  constexpr std::size_t kRecordBytes = 64;
  const std::uint64_t seed = test::TestSeed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    std::map<std::int32_t, std::vector<std::int64_t>> expected;
    std::vector<std::byte> bytes;
    std::int64_t count = 0;
    const bool damaged = round % 2 == 1;
    for (std::int32_t head = -1; head < 4; ++head) {
      const std::uint64_t of_head = random() % 9;
      for (std::uint64_t id = 1; id <= of_head; ++id) {
        bytes.resize(bytes.size() + kRecordBytes);
        const std::span<std::byte> record = std::span(bytes).last(kRecordBytes);
        EncodeIndexRecord(RowOf(head, static_cast<std::int64_t>(id), random() % 48), record);
        ++count;
        // A record without a cluster is skipped; those of other heads stay where they are.
        if (damaged && random() % 8 == 0) {
          std::fill_n(record.begin(), 8, std::byte{0});
        } else {
          expected[head].push_back(static_cast<std::int64_t>(id));
        }
      }
    }
    if (count == 0) continue;
    const IndexRecords records{bytes, count};
    for (std::int32_t head = -1; head < 5; ++head) {
      std::vector<std::int64_t> found;
      records.ForEachOfHead(head, [&](const IndexRecord& record) {
        EXPECT_EQ(record.cluster.head, head);
        found.push_back(record.cluster.cluster_id.value());
      });
      // Where the search meets damage it begins too early, never too late.
      EXPECT_EQ(found, expected[head]) << "seed " << seed << " round " << round;
    }
  }
}

// Against a map that takes the runs one after the other.
TEST(IndexRecordTest, OfEachClusterTheLastRecordIsVisible) {
  const std::uint64_t seed = test::TestSeed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::map<ClusterRef, IndexRow> expected;
    std::vector<std::string> bytes;
    std::vector<IndexRecords> runs;
    bytes.reserve(4);
    for (std::uint64_t left = random() % 5; left > 0; --left) {
      std::vector<IndexRow> rows;
      for (std::int32_t head = 0; head < 3; ++head) {
        for (std::int64_t id = 1; id <= 12; ++id) {
          if (random() % 3 == 0) continue;
          IndexRow row = RowOf(head, id, random() % 40);
          row.entry_count = static_cast<std::int64_t>(random() % 3);  // none: it is gone
          if (row.entry_count == 0) expected.erase(row.cluster);
          if (row.entry_count > 0) expected[row.cluster] = row;
          rows.push_back(std::move(row));
        }
      }
      if (rows.empty()) continue;
      bytes.push_back(test::IndexRunOf(rows));
      runs.push_back({std::as_bytes(std::span(bytes.back())), std::ssize(rows)});
    }
    std::vector<IndexRecord> visible(3);
    FindVisibleRecords(runs, visible);
    ASSERT_EQ(visible.size(), expected.size()) << "seed " << seed << " round " << round;
    auto next = expected.begin();
    for (const IndexRecord& record : visible) {
      const IndexRow& row = (next++)->second;
      EXPECT_EQ(record.cluster, row.cluster) << "seed " << seed << " round " << round;
      EXPECT_EQ(record.row, row.row);
      EXPECT_EQ(record.entry_count, row.entry_count);
      EXPECT_EQ(record.stale, row.stale);
    }
  }
}

TEST(IndexRecordTest, WhatDoesNotAscendIsNotVisible) {
  const std::vector<IndexRow> rows = {RowOf(0, 3, 8), RowOf(0, 2, 8), RowOf(0, 3, 8),
                                      RowOf(1, 1, 8), RowOf(0, 9, 8)};
  const std::string run = test::IndexRunOf(rows);
  const IndexRecords records{std::as_bytes(std::span(run)), 5};
  std::vector<IndexRecord> visible;
  FindVisibleRecords({&records, 1}, visible);
  ASSERT_EQ(visible.size(), 2U);
  EXPECT_EQ(visible[0].cluster, (ClusterRef{0, ClusterId(3)}));
  EXPECT_EQ(visible[1].cluster, (ClusterRef{1, ClusterId(1)}));
}

}  // namespace
}  // namespace cairn
