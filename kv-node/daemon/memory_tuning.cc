#include "kv-node/daemon/memory_tuning.h"

#include <malloc.h>

#include "common/base/check.h"

namespace cairn::kv {

void TuneMemory() {
  // The defaults give each of gRPC's threads a heap of its own, and map and fault every buffer of
  // 128 KiB or more anew: a fetch of 1 MiB then takes three times as long. Larger thresholds would
  // be faster still, but memory that the allocator keeps counts against the budget for keys and
  // values, so freed buffers must go back soon.
  constexpr int kArenaCount = 2;
  constexpr int kMmapThresholdBytes = 4 << 20;
  constexpr int kTrimThresholdBytes = 4 << 20;
  constexpr int kTopPadBytes = 1 << 20;
  CAIRN_CHECK(mallopt(M_ARENA_MAX, kArenaCount) == 1);
  CAIRN_CHECK(mallopt(M_MMAP_THRESHOLD, kMmapThresholdBytes) == 1);
  CAIRN_CHECK(mallopt(M_TRIM_THRESHOLD, kTrimThresholdBytes) == 1);
  CAIRN_CHECK(mallopt(M_TOP_PAD, kTopPadBytes) == 1);
}

}  // namespace cairn::kv
