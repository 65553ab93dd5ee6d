#include "kv-node/layout/part.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "common/io/checksum.h"

namespace cairn::kv {

std::int64_t PoolClassPages(std::int64_t bytes) {
  CAIRN_CHECK(bytes > 0 && bytes <= kPartBytesMax);
  std::int64_t pages = 1;
  while (pages * kPageBytes < bytes) pages *= 2;
  return pages;
}

int LogRunClass(std::int64_t page_count) {
  CAIRN_CHECK_GE(page_count, 1);
  return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(page_count))) - 1;
}

ByteRange RangeOf(const StoredPart& part, std::int64_t entry_bytes, std::int64_t first,
                  std::int64_t count) {
  if (part.direction == Direction::kUp) {
    const std::int64_t begin = part.offset_bytes + first * entry_bytes;
    return {begin, begin + count * entry_bytes};
  }
  const std::int64_t end = part.extent_bytes() - first * entry_bytes;
  return {end - count * entry_bytes, end};
}

PagePieces PiecesOf(const StoredPart& part, std::int64_t entry_bytes, std::int64_t first,
                    std::int64_t count) {
  PagePieces pieces;
  if (count == 0) return pieces;
  const PageSpan touched = PagesOf(RangeOf(part, entry_bytes, first, count));
  const ByteRange whole = RangeOf(part, entry_bytes, 0, part.count());
  for (std::int64_t i = 0; i < touched.count; ++i) {
    const bool up = part.direction == Direction::kUp;
    pieces.push_back(PieceIn(part, whole, up ? touched.first + i : touched.end() - 1 - i));
  }
  return pieces;
}

PagePiece PieceIn(const StoredPart& part, const ByteRange& whole, std::int64_t page) {
  PagePiece piece;
  piece.page_number = part.direction == Direction::kUp ? page - part.offset_bytes / kPageBytes
                                                       : part.page_count - 1 - page;
  piece.page = PageIndex(part.first_page.value() + page);
  piece.begin = std::max<std::int64_t>(whole.begin - page * kPageBytes, 0);
  piece.end = std::min(whole.end - page * kPageBytes, kPageBytes);
  return piece;
}

void AddPages(const StoredPart& part, std::int64_t entry_bytes, std::int64_t count,
              std::vector<PageIndex>& pages) {
  for (const PagePiece& piece : PiecesOf(part, entry_bytes, 0, count)) pages.push_back(piece.page);
}

std::uint32_t PartCrc(const StoreId& store, PartId part, std::int64_t page_number,
                      std::span<const std::byte> bytes) {
  std::array<std::byte, sizeof(StoreId) + 16> seed;
  const auto id = static_cast<std::uint64_t>(
      FailPoint("the checksum has no part id in its seed") ? 0 : part.value());
  const auto number = static_cast<std::uint64_t>(
      FailPoint("the checksum has no page number in its seed") ? 0 : page_number);
  const StoreId of = FailPoint("the checksum has no store id in its seed") ? StoreId{} : store;
  std::memcpy(seed.data(), of.data(), of.size());
  for (std::size_t i = 0; i < 8; ++i) {
    seed[store.size() + i] = static_cast<std::byte>(id >> (8 * i));
    seed[store.size() + 8 + i] = static_cast<std::byte>(number >> (8 * i));
  }
  return Crc32c(bytes, Crc32c(seed));
}

bool PieceIsIntact(const StoreId& store, const StoredPart& part, const PagePiece& piece,
                   PageBytes page) {
  const auto number = static_cast<std::size_t>(piece.page_number);
  if (number >= part.crcs.size()) return false;
  const auto bytes = page.subspan(static_cast<std::size_t>(piece.begin),
                                  static_cast<std::size_t>(piece.end - piece.begin));
  return PartCrc(store, part.id, piece.page_number, bytes) == part.crcs[number];
}

}  // namespace cairn::kv
