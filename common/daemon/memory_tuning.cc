#include "common/daemon/memory_tuning.h"

#include <malloc.h>

#include "common/base/check.h"

namespace cairn {

void TuneMemory() {
  // The defaults give each of gRPC's threads a heap of its own, and keep what was freed for later:
  // memory that counts against the budget for keys and values. Two heaps, buffers of some size
  // mapped one by one, and what is free goes back.
  constexpr int kArenaCount = 2;
  constexpr int kMmapThresholdBytes = 32 << 10;
  constexpr int kTrimThresholdBytes = 256 << 10;
  constexpr int kTopPadBytes = 64 << 10;
  // NOLINTBEGIN(concurrency-mt-unsafe): called before threads start.
  CAIRN_CHECK(mallopt(M_ARENA_MAX, kArenaCount) == 1);
  CAIRN_CHECK(mallopt(M_MMAP_THRESHOLD, kMmapThresholdBytes) == 1);
  CAIRN_CHECK(mallopt(M_TRIM_THRESHOLD, kTrimThresholdBytes) == 1);
  CAIRN_CHECK(mallopt(M_TOP_PAD, kTopPadBytes) == 1);
  // NOLINTEND(concurrency-mt-unsafe)
}

}  // namespace cairn
