#include "kv-node/layout/free_map.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/seed.h"
#include "tests/unit/layout_rows/random_rows.h"

namespace cairn::kv {
namespace {

TEST(FreeMapTest, ReservedPagesAreNeverGiven) {
  FreeMap map(10, 2);
  EXPECT_EQ(map.used_count(), 2);
  EXPECT_EQ(*map.Allocate(8), PageIndex(2));
  EXPECT_EQ(map.used_count(), 10);
}

TEST(FreeMapTest, AFullMapSaysHowMuchWasWanted) {
  FreeMap map(10, 2);
  const auto refused = map.Allocate(9);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(
      Message(refused.status())
          .find("flash is full: 0.0 of 0.0 MiB are in use, and there are no 36 KiB in one piece; "),
      0U)
      << refused.status();
  EXPECT_EQ(map.used_count(), 2) << "a refused allocation takes nothing";
}

TEST(FreeMapTest, ASearchThatReachesTheEndBeginsAgain) {
  FreeMap map(100, 2);
  ASSERT_TRUE(map.Allocate(90).ok());
  map.Free(PageIndex(5), 10);
  EXPECT_EQ(*map.Allocate(10), PageIndex(5)) << "only the freed hole is long enough";
  EXPECT_EQ(*map.Allocate(8), PageIndex(92));
  EXPECT_FALSE(map.Allocate(1).ok());
}

TEST(FreeMapTest, ARangeThatTheCursorCutsIsFound) {
  FreeMap map(20, 2);
  ASSERT_TRUE(map.Allocate(10).ok());  // the cursor is at 12
  map.Free(PageIndex(8), 4);
  EXPECT_EQ(*map.Allocate(12), PageIndex(8));
}

TEST(FreeMapTest, WhatMustLieInFrontOfAnEndDoes) {
  FreeMap map(100, 2);
  ASSERT_TRUE(map.MarkUsed(PageIndex(2), 50));
  map.Free(PageIndex(20), 4);
  EXPECT_EQ(map.TryAllocateBelow(56, 4), std::optional(PageIndex(20)));
  EXPECT_EQ(map.TryAllocateBelow(56, 5), std::nullopt) << "four are left in front of 56";
  EXPECT_EQ(map.TryAllocateBelow(56, 4), std::optional(PageIndex(52)));
  EXPECT_EQ(map.TryAllocateBelow(56, 1), std::nullopt);
  EXPECT_EQ(map.TryAllocateBelow(1, 2), std::nullopt) << "an end in front of everything";
  EXPECT_EQ(map.TryAllocateBelow(57, 1), std::optional(PageIndex(56)));
}

TEST(FreeMapTest, BehindTheUsedEndEverythingIsFree) {
  FreeMap map(200, 2);
  EXPECT_EQ(map.used_end(), 2);
  for (const std::int64_t page : {63, 64, 127, 128, 199}) {
    ASSERT_TRUE(map.MarkUsed(PageIndex(page), 1));
    EXPECT_EQ(map.used_end(), page + 1);
  }
  map.Free(PageIndex(199), 1);
  EXPECT_EQ(map.used_end(), 129);
  EXPECT_EQ(FreeMap(64, 0).used_end(), 0);
}

TEST(FreeMapTest, FreeRangesComeLongestFirst) {
  FreeMap map(200, 2);
  ASSERT_TRUE(map.Allocate(198).ok());
  EXPECT_TRUE(map.FreeRanges().empty());
  map.Free(PageIndex(5), 3);
  map.Free(PageIndex(60), 10);  // over a word's end
  map.Free(PageIndex(199), 1);
  const std::vector<FreeMap::Range> ranges = map.FreeRanges();
  ASSERT_EQ(ranges.size(), 3u);
  EXPECT_EQ(ranges[0].first, PageIndex(60));
  EXPECT_EQ(ranges[0].count, 10);
  EXPECT_EQ(ranges[1].first, PageIndex(5));
  EXPECT_EQ(ranges[1].count, 3);
  EXPECT_EQ(ranges[2].first, PageIndex(199));
  EXPECT_EQ(ranges[2].count, 1);
}

TEST(FreeMapTest, MarkUsedRefusesOverlapsAndPagesOutside) {
  FreeMap map(10, 2);
  EXPECT_TRUE(map.MarkUsed(PageIndex(4), 2));
  EXPECT_FALSE(map.MarkUsed(PageIndex(5), 1));
  EXPECT_FALSE(map.MarkUsed(PageIndex(3), 2));
  EXPECT_FALSE(map.MarkUsed(PageIndex(0), 1));
  EXPECT_FALSE(map.MarkUsed(PageIndex(9), 2));
  EXPECT_FALSE(map.MarkUsed(PageIndex(-1), 1));
  EXPECT_FALSE(map.MarkUsed(PageIndex(4), -1));
  EXPECT_FALSE(map.MarkUsed(PageIndex(std::int64_t{1} << 62), std::int64_t{1} << 62));
  EXPECT_EQ(map.used_count(), 4) << "a refused mark changes nothing";
  EXPECT_FALSE(map.IsUsed(PageIndex(3)));
}

TEST(FreeMapDeathTest, FreeingWhatIsFreeIsAProgrammerError) {
  FreeMap map(10, 2);
  ASSERT_TRUE(map.MarkUsed(PageIndex(4), 1));
  EXPECT_DEATH(map.Free(PageIndex(4), 2), "IsUsed");
}

// A page at a time: whether there is a hole of `count` pages.
bool HasHole(const std::vector<bool>& used, std::int64_t count) {
  std::int64_t free = 0;
  for (const bool in_use : used) {
    free = in_use ? 0 : free + 1;
    if (free == count) return true;
  }
  return false;
}

TEST(FreeMapTest, RandomUseAgreesWithAPlainList) {
  test::Rng rng(test::TestSeed());
  for (int round = 0; round < 20; ++round) {
    const std::int64_t page_count = 2 + Draw(rng, 700);
    FreeMap map(page_count, 2);
    std::vector<bool> used(static_cast<std::size_t>(page_count));
    used[0] = used[1] = true;
    std::vector<std::pair<PageIndex, std::int64_t>> held;
    const auto mark = [&](PageIndex first, std::int64_t count, bool value) {
      for (std::int64_t page = first.value(); page < first.value() + count; ++page) {
        ASSERT_NE(used[static_cast<std::size_t>(page)], value);
        used[static_cast<std::size_t>(page)] = value;
      }
    };
    for (int step = 0; step < 300; ++step) {
      if (!held.empty() && rng.Below(5) < 2) {
        const auto victim = static_cast<std::size_t>(rng.Below(held.size()));
        map.Free(held[victim].first, held[victim].second);
        mark(held[victim].first, held[victim].second, false);
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(victim));
        continue;
      }
      const std::int64_t count = 1 + Draw(rng, 20);
      const auto first = map.Allocate(count);
      ASSERT_EQ(first.ok(), HasHole(used, count)) << count << " of " << page_count;
      if (!first.ok()) continue;
      mark(*first, count, true);
      held.emplace_back(*first, count);
    }
    std::int64_t used_count = 0;
    for (std::int64_t page = 0; page < page_count; ++page) {
      ASSERT_EQ(map.IsUsed(PageIndex(page)), used[static_cast<std::size_t>(page)]);
      used_count += used[static_cast<std::size_t>(page)] ? 1 : 0;
    }
    EXPECT_EQ(map.used_count(), used_count);
  }
}

TEST(FreeMapDoubts, WhatNoRowNamesIsFreed) {
  FreeMap map(20, 2);
  ASSERT_TRUE(map.MarkUsed(PageIndex(4), 8));
  map.Doubt(PageIndex(4), 4);
  FreeMap named(20, 2);
  ASSERT_TRUE(named.MarkUsed(PageIndex(5), 2));
  EXPECT_EQ(map.SettleDoubts(map.StartSettling(), named), 2);
  EXPECT_FALSE(map.has_doubts());
  for (const int page : {4, 7}) EXPECT_FALSE(map.IsUsed(PageIndex(page))) << page;
  for (const int page : {5, 6, 8, 11}) EXPECT_TRUE(map.IsUsed(PageIndex(page))) << page;
  EXPECT_EQ(map.used_count(), 2 + 6);
}

// Between the reading of the rows and the answer a page may go to somebody else.
TEST(FreeMapDoubts, APageThatWasFreedMeanwhileIsItsNewOwners) {
  FreeMap map(20, 2);
  ASSERT_TRUE(map.MarkUsed(PageIndex(4), 4));
  map.Doubt(PageIndex(4), 4);
  const std::int64_t round = map.StartSettling();
  map.Free(PageIndex(4), 2);
  ASSERT_TRUE(map.MarkUsed(PageIndex(4), 2));
  map.Doubt(PageIndex(4), 1);  // by a failure behind the rows that were read
  EXPECT_EQ(map.SettleDoubts(round, FreeMap(20, 2)), 2);
  for (const int page : {4, 5}) EXPECT_TRUE(map.IsUsed(PageIndex(page))) << page;
  for (const int page : {6, 7}) EXPECT_FALSE(map.IsUsed(PageIndex(page))) << page;
  EXPECT_TRUE(map.has_doubts());
}

TEST(ExtentTest, FreesItsPagesUnlessARowNamesIt) {
  const auto map = std::make_shared<FreeMap>(20, 2);
  ASSERT_TRUE(map->MarkUsed(PageIndex(4), 4));
  {
    const Extent temporary(map, ExtentKind::kPool, PageIndex(4), 2, /*committed=*/false);
    Extent stored(map, ExtentKind::kPool, PageIndex(6), 2, /*committed=*/false);
    stored.set_committed(true);
  }
  EXPECT_FALSE(map->IsUsed(PageIndex(4)));
  EXPECT_TRUE(map->IsUsed(PageIndex(6)));
}

}  // namespace
}  // namespace cairn::kv
