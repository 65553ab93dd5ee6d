// Geometry and checksums of parts, checked against a page-by-page walk of the definition.
#include "kv-node/layout/part.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/seed.h"
#include "tests/unit/layout_rows/random_rows.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kFirstPage = 100;

Part MakePart(ExtentKind kind, std::int64_t page_count, Direction direction,
              std::int64_t entry_count, std::int64_t offset_bytes = 0) {
  Part part;
  part.id = PartId(7);
  part.SetExtent(std::make_shared<Extent>(std::make_shared<FreeMap>(1000, 2), kind,
                                          PageIndex(kFirstPage), page_count, /*committed=*/true));
  part.offset_bytes = offset_bytes;
  part.direction = direction;
  part.positions = Positions::Range(0, entry_count);
  return part;
}

TEST(PartTest, UpwardEntriesLieInOrderFromTheOffset) {
  const Part part = MakePart(ExtentKind::kLogRun, 4, Direction::kUp, 10, 1000);
  EXPECT_EQ(RangeOf(part, 512, 0, 1).begin, 1000);
  EXPECT_EQ(RangeOf(part, 512, 3, 2).begin, 1000 + 3 * 512);
  EXPECT_EQ(RangeOf(part, 512, 3, 2).end, 1000 + 5 * 512);
}

TEST(PartTest, DownwardEntriesLieInReverseFromTheEndOfThePool) {
  const Part part = MakePart(ExtentKind::kPool, 2, Direction::kDown, 10);
  EXPECT_EQ(RangeOf(part, 512, 0, 1).begin, 8192 - 512);
  EXPECT_EQ(RangeOf(part, 512, 0, 1).end, 8192);
  EXPECT_EQ(RangeOf(part, 512, 3, 2).begin, 8192 - 5 * 512);
  EXPECT_EQ(RangeOf(part, 512, 3, 2).end, 8192 - 3 * 512);
}

TEST(PartTest, PageNumbersCountFromThePartsOwnEnd) {
  // 20 entries of 512 bytes: two pages and a half. The last page in the pool is the part's first.
  const Part down = MakePart(ExtentKind::kPool, 4, Direction::kDown, 20);
  const auto pieces = PiecesOf(down, 512, 0, 20);
  ASSERT_EQ(pieces.size(), 3U);
  EXPECT_EQ(pieces[0].page_number, 0);
  EXPECT_EQ(pieces[0].page, PageIndex(kFirstPage + 3));
  EXPECT_EQ(pieces[2].page_number, 2);
  EXPECT_EQ(pieces[2].page, PageIndex(kFirstPage + 1));
  EXPECT_EQ(pieces[2].begin, 2048);
  EXPECT_EQ(pieces[2].end, 4096);

  const Part up = MakePart(ExtentKind::kPool, 4, Direction::kUp, 20);
  const auto last = PiecesOf(up, 512, 19, 1);
  ASSERT_EQ(last.size(), 1U);
  EXPECT_EQ(last[0].page_number, 2);
  EXPECT_EQ(last[0].page, PageIndex(kFirstPage + 2));
  EXPECT_EQ(last[0].begin, 0);
  EXPECT_EQ(last[0].end, 2048) << "a checksum covers all of the part's bytes in the page";
}

// For each page that entries [first, first + count) touch, the part's bytes there, byte by byte.
using BytesOfPage = std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>>;
BytesOfPage Walk(const Part& part, std::int64_t entry_bytes, std::int64_t first,
                 std::int64_t count) {
  BytesOfPage out;
  const auto add = [&](std::int64_t entry, bool only_known) {
    for (std::int64_t i = 0; i < entry_bytes; ++i) {
      const std::int64_t at = part.direction == Direction::kUp
                                  ? part.offset_bytes + entry * entry_bytes + i
                                  : part.extent->size_bytes() - (entry + 1) * entry_bytes + i;
      const std::int64_t page = at / kPageBytes;
      if (only_known && out.count(page) == 0) continue;
      auto& range = out.try_emplace(page, kPageBytes, 0).first->second;
      range.first = std::min(range.first, at % kPageBytes);
      range.second = std::max(range.second, at % kPageBytes + 1);
    }
  };
  for (std::int64_t entry = first; entry < first + count; ++entry) add(entry, false);
  for (std::int64_t entry = 0; entry < part.count(); ++entry) add(entry, true);
  return out;
}

TEST(PartTest, PiecesAreThePartsBytesInEachTouchedPage) {
  test::Rng rng(test::TestSeed());
  // 96 bytes do not divide a page: entries straddle pages.
  for (const std::int64_t entry_bytes : {96, 256, 512, 5120}) {
    for (int round = 0; round < 60; ++round) {
      const bool pool = rng.Below(2) == 0;
      const bool down = pool && rng.Below(2) == 0;
      const std::int64_t page_count = std::int64_t{2} << Draw(rng, 4);
      const std::int64_t room = page_count * kPageBytes / entry_bytes;
      const std::int64_t entry_count = 1 + Draw(rng, room);
      const std::int64_t slack = page_count * kPageBytes - entry_count * entry_bytes;
      const Part part = MakePart(pool ? ExtentKind::kPool : ExtentKind::kLogRun, page_count,
                                 down ? Direction::kDown : Direction::kUp, entry_count,
                                 pool ? 0 : Draw(rng, slack + 1));
      const std::int64_t first = Draw(rng, entry_count);
      const std::int64_t count = 1 + Draw(rng, entry_count - first);
      const BytesOfPage expected = Walk(part, entry_bytes, first, count);
      const auto pieces = PiecesOf(part, entry_bytes, first, count);
      ASSERT_EQ(pieces.size(), expected.size());
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        const PagePiece& piece = pieces[i];
        if (i > 0) {
          EXPECT_EQ(piece.page_number, pieces[i - 1].page_number + 1);
        }
        const auto it = expected.find(piece.page.value() - kFirstPage);
        ASSERT_NE(it, expected.end());
        EXPECT_EQ(piece.begin, it->second.first);
        EXPECT_EQ(piece.end, it->second.second);
      }
    }
  }
}

TEST(PartTest, APageNumberStaysWhenThePartGrows) {
  for (const Direction direction : {Direction::kUp, Direction::kDown}) {
    const Part small = MakePart(ExtentKind::kPool, 8, direction, 3);
    const Part grown = MakePart(ExtentKind::kPool, 8, direction, 30);
    const auto before = PiecesOf(small, 512, 0, 3);
    const auto after = PiecesOf(grown, 512, 0, 3);
    ASSERT_EQ(before.size(), 1U);
    ASSERT_EQ(after.size(), 1U);
    EXPECT_EQ(before[0].page_number, after[0].page_number);
    EXPECT_EQ(before[0].page, after[0].page);
  }
}

TEST(PartTest, NoEntriesTouchNoPage) {
  EXPECT_TRUE(PiecesOf(MakePart(ExtentKind::kPool, 1, Direction::kUp, 3), 512, 0, 0).empty());
}

TEST(PartCrcTest, StorePartAndPageNumberAreSeeds) {
  const std::vector<std::byte> bytes(512, std::byte{9});
  StoreId store{};
  StoreId other_store{};
  other_store[15] = std::byte{1};
  const std::uint32_t crc = PartCrc(store, PartId(7), 2, bytes);
  EXPECT_EQ(crc, PartCrc(store, PartId(7), 2, bytes));
  EXPECT_NE(crc, PartCrc(other_store, PartId(7), 2, bytes));
  EXPECT_NE(crc, PartCrc(store, PartId(8), 2, bytes));
  EXPECT_NE(crc, PartCrc(store, PartId(std::int64_t{7} << 40), 2, bytes));
  EXPECT_NE(crc, PartCrc(store, PartId(7), 3, bytes));
}

TEST(PartCrcTest, ThePartnersBytesInThePageDoNotMatter) {
  const StoreId store{};
  Part part = MakePart(ExtentKind::kPool, 1, Direction::kUp, 4);
  const PagePiece piece = PiecesOf(part, 512, 0, 4).front();
  constexpr std::size_t kPartBytes = 2048;  // four entries
  std::vector<std::byte> page(kPageBytes, std::byte{3});
  part.crcs = {PartCrc(store, part.id, 0, std::span(page).first(kPartBytes))};
  EXPECT_TRUE(PieceIsIntact(store, part, piece, page));
  page[kPartBytes] = std::byte{4};  // the first byte behind the part
  EXPECT_TRUE(PieceIsIntact(store, part, piece, page));
  page[kPartBytes - 1] = std::byte{4};  // its last one
  EXPECT_FALSE(PieceIsIntact(store, part, piece, page));
}

TEST(PartCrcTest, APageWithoutAStoredChecksumIsNotIntact) {
  const Part part = MakePart(ExtentKind::kPool, 1, Direction::kUp, 4);  // no crcs
  const std::vector<std::byte> page(kPageBytes);
  EXPECT_FALSE(PieceIsIntact({}, part, PiecesOf(part, 512, 0, 4).front(), page));
}

TEST(PoolClassTest, IsTheSmallestThatHolds) {
  EXPECT_EQ(PoolClassPages(1), 1);
  EXPECT_EQ(PoolClassPages(4096), 1);
  EXPECT_EQ(PoolClassPages(4097), 2);
  EXPECT_EQ(PoolClassPages(12288), 4);
  EXPECT_EQ(PoolClassPages(kPartBytesMax), 16);
  EXPECT_DEATH(PoolClassPages(kPartBytesMax + 1), "kPartBytesMax");
  EXPECT_DEATH(PoolClassPages(0), "bytes");
}

TEST(LogRunClassTest, IsTheLogarithmOfThePages) {
  EXPECT_EQ(LogRunClass(1), 0);
  EXPECT_EQ(LogRunClass(2), 1);
  EXPECT_EQ(LogRunClass(3), 1);
  EXPECT_EQ(LogRunClass(4), 2);
  EXPECT_EQ(LogRunClass(1023), 9);
}

}  // namespace
}  // namespace cairn::kv
