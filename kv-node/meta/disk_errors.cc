#include "kv-node/meta/disk_errors.h"

namespace cairn::kv {

rocksdb::Status DiskErrors::worst() {
  MutexLock lock(mutex_);
  return worst_;
}

void DiskErrors::Forget() {
  MutexLock lock(mutex_);
  worst_ = rocksdb::Status::OK();
}

void DiskErrors::OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status* status) {
  MutexLock lock(mutex_);
  if (worst_.ok() || status->severity() > worst_.severity()) worst_ = *status;
}

void DiskErrors::OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status,
                                      bool* auto_recovery) {
  *auto_recovery = false;
}

}  // namespace cairn::kv
