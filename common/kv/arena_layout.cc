#include "common/kv/arena_layout.h"

#include <atomic>

namespace cairn {
namespace {

std::atomic_ref<std::int64_t> CellOf(const std::byte* granule, std::int64_t page) {
  // A reader's mapping is read-only; atomic_ref of this standard has no const form.
  auto* cells = reinterpret_cast<std::int64_t*>(const_cast<std::byte*>(granule));
  return std::atomic_ref<std::int64_t>(cells[page]);
}

// ThreadSanitizer does not know fences, and the compiler says so as an error.
void Fence([[maybe_unused]] std::memory_order order) {
#ifndef CAIRN_THREAD_SANITIZED
  std::atomic_thread_fence(order);
#endif
}

}  // namespace

void SetArenaGeneration(std::byte* granule, std::int64_t first_page, std::int64_t page_count,
                        std::int64_t generation) {
  for (std::int64_t page = first_page; page < first_page + page_count; ++page) {
    CellOf(granule, page).store(generation, std::memory_order_relaxed);
  }
  Fence(std::memory_order_release);
}

bool HasArenaGeneration(const std::byte* granule, std::int64_t offset_bytes,
                        std::int64_t size_bytes, std::int64_t generation) {
  Fence(std::memory_order_acquire);
  const std::int64_t last = (offset_bytes + size_bytes - 1) / kArenaPageBytes;
  for (std::int64_t page = offset_bytes / kArenaPageBytes; page <= last; ++page) {
    if (CellOf(granule, page).load(std::memory_order_relaxed) != generation) return false;
  }
  return true;
}

}  // namespace cairn
