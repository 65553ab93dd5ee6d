// How a granule of the KV node's shared memory is laid out: first a table with a 64-bit generation
// for each page of the granule, then pages of entries. The KV node writes a page's generation
// before it puts other bytes there; who read from a page and still finds the generation that it was
// told has read what it was promised.
//
// Threading: pure functions on shared memory; loads and stores of generations are atomic.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn {

inline constexpr std::int64_t kArenaPageBytes = 4096;

// Pages that a granule's table takes.
constexpr std::int64_t ArenaTablePages(std::int64_t granule_bytes) {
  const std::int64_t table_bytes =
      granule_bytes / kArenaPageBytes * static_cast<std::int64_t>(sizeof(std::int64_t));
  return (table_bytes + kArenaPageBytes - 1) / kArenaPageBytes;
}

// `granule` is the begin of its mapping; pages count from there.
void SetArenaGeneration(std::byte* granule, std::int64_t first_page, std::int64_t page_count,
                        std::int64_t generation);
// Whether all pages that bytes [offset, offset + size) touch still have the generation. What was
// read before the call counts as read before it.
bool HasArenaGeneration(const std::byte* granule, std::int64_t offset_bytes,
                        std::int64_t size_bytes, std::int64_t generation);

}  // namespace cairn
