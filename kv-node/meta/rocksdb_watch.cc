#include "kv-node/meta/rocksdb_watch.h"

#include <algorithm>
#include <chrono>

namespace cairn::kv {
namespace {

constexpr std::chrono::seconds kWaitMax(10);
// A flush is announced a moment before its memtable is freed.
constexpr std::chrono::milliseconds kLookAgain(2);

}  // namespace

rocksdb::Status RocksDbWatch::worst_error() {
  MutexLock lock(mutex_);
  return worst_error_;
}

void RocksDbWatch::ForgetErrors() {
  MutexLock lock(mutex_);
  worst_error_ = rocksdb::Status::OK();
}

bool RocksDbWatch::MemtablesAreFull() const {
  // Only what is being flushed will go away by itself.
  const std::size_t used = memtables_->memory_usage();
  return used >= memtables_->buffer_size() && used > memtables_->mutable_memtable_memory_usage();
}

void RocksDbWatch::WaitForMemtables() {
  const auto deadline = std::chrono::steady_clock::now() + kWaitMax;
  MutexLock lock(mutex_);
  while (MemtablesAreFull() && worst_error_.ok()) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) return;
    changed_.WaitUntil(mutex_, std::min(deadline, now + kLookAgain));
  }
}

void RocksDbWatch::OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status* status) {
  MutexLock lock(mutex_);
  if (worst_error_.ok() || status->severity() > worst_error_.severity()) worst_error_ = *status;
  changed_.NotifyAll();
}

void RocksDbWatch::OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status,
                                        bool* auto_recovery) {
  *auto_recovery = false;
}

void RocksDbWatch::OnFlushCompleted(rocksdb::DB*, const rocksdb::FlushJobInfo&) {
  MutexLock lock(mutex_);
  changed_.NotifyAll();
}

}  // namespace cairn::kv
