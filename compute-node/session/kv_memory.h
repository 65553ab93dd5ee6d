// KvMemory counts the bytes of every buffer that holds keys or values: windows, chunk buffers,
// fetch replies, messages. The sum is what `kv_dram_peak_bytes` reports for this process. A counter
// may have a parent (a generation's counts into the daemon's).
//
// Threading:  safe from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace cairn::compute {

class KvMemory {
 public:
  // Borrows `parent` (may be null), which outlives it.
  explicit KvMemory(KvMemory* parent = nullptr) : parent_(parent) {}

  void Add(std::int64_t bytes) {
    const std::int64_t used = used_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    std::int64_t peak = peak_bytes_.load(std::memory_order_relaxed);
    while (used > peak &&
           !peak_bytes_.compare_exchange_weak(peak, used, std::memory_order_relaxed)) {
    }
    if (parent_ != nullptr) parent_->Add(bytes);
  }
  void Remove(std::int64_t bytes) { Add(-bytes); }
  struct Remover {
    std::int64_t bytes = 0;
    void operator()(KvMemory* memory) const { memory->Remove(bytes); }
  };

  std::int64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  std::int64_t peak_bytes() const { return peak_bytes_.load(std::memory_order_relaxed); }

 private:
  KvMemory* const parent_;
  std::atomic<std::int64_t> used_bytes_{0};
  std::atomic<std::int64_t> peak_bytes_{0};
};

// Bytes counted for as long as this lives.
class KvMemoryCharge {
 public:
  KvMemoryCharge() = default;
  KvMemoryCharge(KvMemory& memory, std::int64_t bytes)
      : charged_(&memory, KvMemory::Remover{bytes}) {
    memory.Add(bytes);
  }

  void Release() { charged_.reset(); }

 private:
  std::unique_ptr<KvMemory, KvMemory::Remover> charged_;
};

}  // namespace cairn::compute
