// MemtableGate keeps the memtables within their budget when flushes are slower than commits:
// RocksDB starts a flush when they are full, and goes on filling new ones beside it.
//
// Threading:  Wait() on the metadata thread; RocksDB calls the listener on its own threads.
#pragma once

#include <cstdint>
#include <memory>

#include <rocksdb/listener.h>
#include <rocksdb/write_buffer_manager.h>

#include "common/base/mutex.h"

namespace cairn::kv {

class MemtableGate : public rocksdb::EventListener {
 public:
  explicit MemtableGate(std::shared_ptr<rocksdb::WriteBufferManager> memtables)
      : memtables_(std::move(memtables)) {}

  // Waits until flushes have brought the memtables below their budget. Gives up after some seconds,
  // or when a flush failed: the next write then tells why.
  void Wait();
  // The database was closed.
  void ForgetFailure();

  void OnFlushCompleted(rocksdb::DB* db, const rocksdb::FlushJobInfo& info) override;
  void OnBackgroundError(rocksdb::BackgroundErrorReason reason, rocksdb::Status* status) override;

 private:
  bool IsFull() const;

  const std::shared_ptr<rocksdb::WriteBufferManager> memtables_;
  Mutex mutex_;
  CondVar changed_;
  bool failed_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn::kv
