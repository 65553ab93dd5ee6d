// Settings of malloc for a process that moves buffers of 64 KiB to some MiB all the time.
#pragma once

#include <cstdint>

namespace cairn {

struct MemoryTuning {
  // Blocks from this size on are mapped one by one, and given back when they are freed.
  std::int32_t mmap_threshold_bytes = 32 << 10;
  // Freed memory that the heap keeps at its end.
  std::int32_t trim_threshold_bytes = 256 << 10;
};

// Call before threads start.
void TuneMemory(const MemoryTuning& tuning);

}  // namespace cairn
