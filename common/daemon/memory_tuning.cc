#include "common/daemon/memory_tuning.h"

#include <malloc.h>

#include "common/base/check.h"

namespace cairn {

void TuneMemory(const MemoryTuning& tuning) {
  // The defaults give each of gRPC's threads a heap of its own, and keep what was freed for later:
  // memory that counts against the budget for keys and values. So one heap, and what is free
  // at its end beyond a limit goes back.
  constexpr int kArenaCount = 1;
  constexpr int kTopPadBytes = 64 << 10;
  // NOLINTBEGIN(concurrency-mt-unsafe): called before threads start.
  CAIRN_CHECK(mallopt(M_ARENA_MAX, kArenaCount) == 1);
  CAIRN_CHECK(mallopt(M_MMAP_THRESHOLD, tuning.mmap_threshold_bytes) == 1);
  CAIRN_CHECK(mallopt(M_TRIM_THRESHOLD, tuning.trim_threshold_bytes) == 1);
  CAIRN_CHECK(mallopt(M_TOP_PAD, kTopPadBytes) == 1);
  // NOLINTEND(concurrency-mt-unsafe)
}

}  // namespace cairn
