// RocksDbWatch hears what RocksDB's own threads do.
//
// It notes what they, or a write, met on the disk, and keeps RocksDB from mending it by itself.
// Where a write of its log failed it would move one family after the other into tables and drop the
// log, and a process that ends on the way leaves a batch, which is in the log, for some families
// and not for others. That may happen, too, while it mends an error that came before. The store is
// opened anew instead, which takes the log as a whole.
//
// It keeps the memtables within their budget when flushes are slower than commits: RocksDB starts a
// flush when they are full, and goes on filling new ones beside it.
//
// Threading:  WaitForMemtables() on the metadata thread; the others from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <rocksdb/listener.h>
#include <rocksdb/write_buffer_manager.h>

#include "common/base/mutex.h"

namespace cairn::kv {

class RocksDbWatch : public rocksdb::EventListener {
 public:
  explicit RocksDbWatch(std::shared_ptr<rocksdb::WriteBufferManager> memtables)
      : memtables_(std::move(memtables)) {}

  // Since ForgetErrors(); OK: none.
  rocksdb::Status worst_error();
  // The database was closed.
  void ForgetErrors();
  // Waits until flushes have brought the memtables below their budget. Gives up after some seconds,
  // or when there is an error: the next write then tells why.
  void WaitForMemtables();
  // Of the table files that were made.
  std::int64_t table_bytes() const { return table_bytes_; }

  void OnBackgroundError(rocksdb::BackgroundErrorReason reason, rocksdb::Status* status) override;
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason reason, rocksdb::Status error,
                            bool* auto_recovery) override;
  void OnFlushCompleted(rocksdb::DB* db, const rocksdb::FlushJobInfo& info) override;
  // Flushes and compactions alike; a file that could not be finished has a size, too.
  void OnTableFileCreated(const rocksdb::TableFileCreationInfo& info) override {
    table_bytes_ += static_cast<std::int64_t>(info.file_size);
  }

 private:
  bool MemtablesAreFull() const;

  const std::shared_ptr<rocksdb::WriteBufferManager> memtables_;
  std::atomic<std::int64_t> table_bytes_ = 0;
  Mutex mutex_;
  CondVar changed_;
  rocksdb::Status worst_error_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv
