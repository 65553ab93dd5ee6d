// Part: where some entries of a cluster lie, and how they are checked. A part never moves; its
// entries are named by (part id, index in the part) for ever. Everything about pages, room and
// checksums follows from the functions here. docs/on-disk-format.md, "Pools, runs and parts", has
// the picture.
//
// Units:      bytes within an extent unless said otherwise; `entry_bytes` is
//             EntryLayout::EntryBytes of the part's head.
// Threading:  values and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <absl/container/inlined_vector.h>

#include "common/kv/messages.h"
#include "kv-node/layout/free_map.h"

namespace cairn::kv {

inline constexpr std::int64_t kPoolPagesMax = 16;
inline constexpr std::int64_t kPartBytesMax = kPoolPagesMax * kPageBytes;
using StoreId = std::array<std::byte, 16>;

// Pages of the smallest pool class (1, 2, 4, 8 or 16 pages) that holds `bytes`. REQUIRES: bytes <=
// kPartBytesMax.
std::int64_t PoolClassPages(std::int64_t bytes);
// Log runs are bounded for each size class: class i has 2^i to 2^(i+1) - 1 pages.
int LogRunClass(std::int64_t page_count);

// One for each page number in a part. Few have more than four pages.
using PartCrcs = absl::InlinedVector<std::uint32_t, 4>;

// A part as rows have it: its pages by number, which nothing keeps in use.
struct StoredPart {
  PartId id;
  ExtentKind kind = ExtentKind::kPool;
  PageIndex first_page;           // of its extent
  std::int64_t page_count = 0;    // of its extent
  std::int64_t offset_bytes = 0;  // of the first byte in a run; 0 in a pool
  Direction direction = Direction::kUp;
  Positions positions;
  PartCrcs crcs;  // one for each page number in the part

  std::int64_t count() const { return positions.count(); }
  std::int64_t extent_bytes() const { return page_count * kPageBytes; }
};

inline bool IsLog(const StoredPart& part) { return part.kind == ExtentKind::kLogRun; }

// A part that keeps its extent in use.
struct Part : StoredPart {
  ExtentRef extent;

  Part() = default;
  Part(StoredPart stored, ExtentRef in_use)
      : StoredPart(std::move(stored)), extent(std::move(in_use)) {}
  void SetExtent(ExtentRef in_use) {
    extent = std::move(in_use);
    kind = extent->kind();
    first_page = extent->first();
    page_count = extent->page_count();
  }
};

// Bytes [begin, end) of an extent.
struct ByteRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
// Entries first .. first + count - 1 of the part.
ByteRange RangeOf(const StoredPart& part, std::int64_t entry_bytes, std::int64_t first,
                  std::int64_t count);

// Pages of an extent that a range of its bytes touches. REQUIRES: it is not empty.
struct PageSpan {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t end() const { return first + count; }
};
inline PageSpan PagesOf(const ByteRange& range) {
  const std::int64_t first = range.begin / kPageBytes;
  return {first, (range.end - 1) / kPageBytes + 1 - first};
}

// The part's bytes in one page.
struct PagePiece {
  std::int64_t page_number =
      0;           // in the part, counted from the part's own end: stays when the part grows
  PageIndex page;  // in the extent file
  std::int64_t begin = 0;  // in the page
  std::int64_t end = 0;
};
// Of page `page` of the extent; `whole` is the range of all of the part's entries.
PagePiece PieceIn(const StoredPart& part, const ByteRange& whole, std::int64_t page);

// A small part lies in one page, or across the border of two.
using PagePieces = absl::InlinedVector<PagePiece, 2>;
// In order of page_number. All of the part's bytes in each page that entries first .. first + count
// - 1 touch, because a checksum covers all of them.
PagePieces PiecesOf(const StoredPart& part, std::int64_t entry_bytes, std::int64_t first,
                    std::int64_t count);

// Adds the pages that entries 0 .. count - 1 touch.
void AddPages(const StoredPart& part, std::int64_t entry_bytes, std::int64_t count,
              std::vector<PageIndex>& pages);

// CRC32C of a part's bytes in one page, seeded with store id, part id and page number, so that a
// page of another store, part or place fails too.
std::uint32_t PartCrc(const StoreId& store, PartId part, std::int64_t page_number,
                      std::span<const std::byte> bytes);

// A page in memory: kPageBytes bytes.
using PageBytes = std::span<const std::byte>;

// Whether the part's bytes in a page pass their check.
bool PieceIsIntact(const StoreId& store, const StoredPart& part, const PagePiece& piece,
                   PageBytes page);

}  // namespace cairn::kv
