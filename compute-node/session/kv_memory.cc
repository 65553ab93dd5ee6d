#include "compute-node/session/kv_memory.h"

namespace cairn::compute {

void KvMemory::Add(std::int64_t bytes) {
  const std::int64_t used = used_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::int64_t peak = peak_bytes_.load(std::memory_order_relaxed);
  while (used > peak && !peak_bytes_.compare_exchange_weak(peak, used, std::memory_order_relaxed)) {
  }
  if (parent_ != nullptr) parent_->Add(bytes);
}

}  // namespace cairn::compute
