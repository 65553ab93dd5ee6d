// Rows of parts in memory: what is put is what is found, log runs live as long as a row names them,
// and a row takes little memory.
#include "kv-node/engine/state/segment_parts.h"

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/seed.h"
#include "tests/unit/layout_rows/random_rows.h"

namespace cairn::kv {
namespace {

constexpr EntryLayout kRowLayout = {
    .layer_count = 4, .head_count = 2, .head_dim = 64, .kv_format = KvFormat::kF16};
constexpr std::int64_t kRowEntryBytes = 256;

ClusterKey RowKey(std::int64_t id, std::int32_t layer = 0, std::int32_t head = 0) {
  return {layer, head, ClusterId(id)};
}

void ExpectSame(const std::vector<StoredPart>& found, const std::vector<Part>& want) {
  ASSERT_EQ(found.size(), want.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].id, want[i].id);
    EXPECT_EQ(found[i].kind, want[i].extent->kind());
    EXPECT_EQ(found[i].first_page, want[i].extent->first());
    EXPECT_EQ(found[i].page_count, want[i].extent->page_count());
    EXPECT_EQ(found[i].offset_bytes, want[i].offset_bytes);
    EXPECT_EQ(found[i].direction, want[i].direction);
    EXPECT_EQ(found[i].positions, want[i].positions);
    EXPECT_EQ(found[i].crcs, want[i].crcs);
  }
}

TEST(SegmentPartsTest, RandomRowsAreFoundAsTheyWerePut) {
  test::Rng rng(test::TestSeed());
  SegmentParts parts(kRowLayout, nullptr);
  std::map<ClusterKey, std::vector<Part>> want;
  for (int i = 0; i < 1000; ++i) {
    const ClusterKey key = RowKey(1 + Draw(rng, 100), static_cast<std::int32_t>(Draw(rng, 3)),
                                  static_cast<std::int32_t>(Draw(rng, 3)) - 1);
    const std::vector<Part> row = RandomParts(rng, kRowEntryBytes);
    // Half of the rows come again with another length, or go.
    parts.Put(key, row);
    want[key] = row;
    if (row.empty()) want.erase(key);
  }
  std::map<PageIndex, std::int64_t> named_bytes;
  for (const auto& [key, row] : want) {
    EXPECT_TRUE(parts.rows().Contains(key));
    ASSERT_NO_FATAL_FAILURE(ExpectSame(parts.rows().Find(key), row));
    for (const Part& part : row) {
      if (part.extent->kind() != ExtentKind::kLogRun) continue;
      named_bytes[part.extent->first()] += part.count() * kRowLayout.EntryBytes(key.head);
    }
  }
  for (const auto& [first, run] : parts.log_runs()) {
    EXPECT_EQ(run.named_bytes, named_bytes[first]);
    named_bytes.erase(first);
  }
  EXPECT_TRUE(named_bytes.empty()) << "a run that rows name is unknown";

  std::vector<ClusterKey> keys;
  std::vector<ClusterKey> logged;
  parts.rows().ForEachKey([&](const ClusterKey& key) { keys.push_back(key); });
  parts.rows().ForEachLogged(
      [&](const ClusterKey& key, const std::vector<StoredPart>&) { logged.push_back(key); });
  auto next = keys.begin();
  auto next_logged = logged.begin();
  for (const auto& [key, row] : want) {
    ASSERT_NE(next, keys.end());
    EXPECT_EQ(*next++, key);
    const bool names_log = std::any_of(row.begin(), row.end(), [](const Part& part) {
      return part.extent->kind() == ExtentKind::kLogRun;
    });
    if (names_log) {
      ASSERT_NE(next_logged, logged.end());
      EXPECT_EQ(*next_logged++, key);
    }
  }
  EXPECT_EQ(next, keys.end());
  EXPECT_EQ(next_logged, logged.end());
}

TEST(SegmentPartsTest, KeysOfALayerAreThoseOfAllItsHeads) {
  SegmentParts parts(kRowLayout, nullptr);
  test::Rng rng(1);
  std::vector<Part> row;
  while (row.empty()) row = RandomParts(rng, kRowEntryBytes);
  for (const ClusterKey& key : {RowKey(9, 0, 1), RowKey(3, 1, kAllHeads), RowKey(1, 1, 0),
                                RowKey(2, 1, 1), RowKey(5, 2, kAllHeads)}) {
    parts.Put(key, row);
  }
  std::vector<ClusterKey> keys;
  parts.rows().ForEachKeyOfLayer(1, [&](const ClusterKey& key) { keys.push_back(key); });
  EXPECT_EQ(keys, (std::vector{RowKey(3, 1, kAllHeads), RowKey(1, 1, 0), RowKey(2, 1, 1)}));
  EXPECT_TRUE(parts.Find(RowKey(4, 1, 0)).empty());
  EXPECT_TRUE(parts.Find(RowKey(-1, 1, 0)).empty());
  EXPECT_TRUE(parts.Find(RowKey(1, 3, 0)).empty());
}

TEST(SegmentPartsTest, ALogRunIsHeldAsLongAsARowNamesIt) {
  const auto map = std::make_shared<FreeMap>(100, 2);
  SegmentParts parts(kRowLayout, nullptr);
  Part part;
  part.id = PartId(7);
  part.SetExtent(std::make_shared<Extent>(map, ExtentKind::kLogRun, *map->Allocate(3), 3, false));
  part.positions = Positions::Range(10, 4);
  parts.Put(RowKey(1), {part});
  part.id = PartId(8);
  part.offset_bytes = 4 * kRowEntryBytes;
  parts.Put(RowKey(2), {part});
  part = Part();
  EXPECT_EQ(map->used_count(), 5);
  EXPECT_EQ(parts.Find(RowKey(1)).front().extent, parts.Find(RowKey(2)).front().extent);
  parts.Put(RowKey(1), parts.Find(RowKey(1)));
  EXPECT_EQ(parts.log_runs().begin()->second.named_bytes, 8 * kRowEntryBytes);
  parts.Put(RowKey(1), {});
  EXPECT_EQ(map->used_count(), 5);
  const std::vector<Part> read = parts.Find(RowKey(2));
  parts.Put(RowKey(2), {});
  EXPECT_TRUE(parts.log_runs().empty());
  EXPECT_EQ(map->used_count(), 5) << "a read is in flight";
}

TEST(SegmentPartsTest, ARowOfScatteredEntriesTakesLittleMemory) {
  SegmentParts parts(kRowLayout, nullptr);
  test::Rng rng(1);
  constexpr std::int64_t kCount = 16384;
  for (std::int64_t id = 1; id <= kCount; ++id) {
    std::vector<std::int64_t> positions;
    for (std::int64_t i = 0; i < 8; ++i) positions.push_back(i * 2048 + Draw(rng, 2048));
    Part part;
    part.id = PartId(1000000 + id);
    part.extent =
        std::make_shared<Extent>(nullptr, ExtentKind::kPool, PageIndex(1000000 + id / 2), 1, true);
    part.positions = Positions::FromUnsorted(std::move(positions));
    part.crcs = {static_cast<std::uint32_t>(rng.Next())};
    parts.Put(RowKey(id), {part});
  }
  EXPECT_LT(parts.memory_bytes(), 40 * kCount);
}

}  // namespace
}  // namespace cairn::kv
