// DiskErrors notes what RocksDB's own threads, or a write, met on the disk, and keeps RocksDB from
// mending it by itself. Where a write of its log failed it would move one family after the other
// into tables and drop the log, and a process that ends on the way leaves a batch, which is in the
// log, for some families and not for others. That may happen, too, while it mends an error that
// came before. The store is opened anew instead, which takes the log as a whole.
//
// Threading: any thread.
#pragma once

#include <rocksdb/listener.h>

#include "common/base/mutex.h"

namespace cairn::kv {

class DiskErrors : public rocksdb::EventListener {
 public:
  // Since Forget(); OK: none.
  rocksdb::Status worst();
  // The database was closed.
  void Forget();

  void OnBackgroundError(rocksdb::BackgroundErrorReason reason, rocksdb::Status* status) override;
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason reason, rocksdb::Status error,
                            bool* auto_recovery) override;

 private:
  Mutex mutex_;
  rocksdb::Status worst_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv
