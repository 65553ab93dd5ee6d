#include "kv-node/meta/memtable_gate.h"

#include <algorithm>
#include <chrono>

namespace cairn::kv {
namespace {

constexpr std::chrono::seconds kWaitMax(10);
// A flush is announced a moment before its memtable is freed.
constexpr std::chrono::milliseconds kLookAgain(2);

}  // namespace

bool MemtableGate::IsFull() const {
  // Only what is being flushed will go away by itself.
  const std::size_t used = memtables_->memory_usage();
  return used >= memtables_->buffer_size() && used > memtables_->mutable_memtable_memory_usage();
}

void MemtableGate::Wait() {
  const auto deadline = std::chrono::steady_clock::now() + kWaitMax;
  MutexLock lock(mutex_);
  while (IsFull() && !failed_) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) return;
    changed_.WaitUntil(mutex_, std::min(deadline, now + kLookAgain));
  }
}

void MemtableGate::ForgetFailure() {
  MutexLock lock(mutex_);
  failed_ = false;
}

void MemtableGate::OnFlushCompleted(rocksdb::DB*, const rocksdb::FlushJobInfo&) {
  MutexLock lock(mutex_);
  changed_.NotifyAll();
}

void MemtableGate::OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status*) {
  MutexLock lock(mutex_);
  failed_ = true;
  changed_.NotifyAll();
}

}  // namespace cairn::kv
