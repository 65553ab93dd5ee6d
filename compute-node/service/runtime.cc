#include "compute-node/service/runtime.h"

#include "common/log/log.h"

namespace cairn::compute {
absl::StatusOr<std::shared_ptr<Runtime>> DaemonState::runtime() const {
  if (phase() == Phase::kStopping) return Unavailable("cairn-compute-node is stopping");
  const MutexLock lock(mutex_);
  if (runtime_ == nullptr && !kv_status_.ok()) {
    return Unavailable("cairn-compute-node is loading: {}", Message(kv_status_));
  }
  if (runtime_ == nullptr) {
    return Unavailable(
        "cairn-compute-node is still loading the model ({} of {} bytes): try again in a moment",
        loaded_bytes(), size_bytes());
  }
  return runtime_;
}

void DaemonState::SetLoading(std::int64_t done_bytes, std::int64_t total_bytes) {
  loaded_bytes_.store(done_bytes);
  size_bytes_.store(total_bytes);
}

void DaemonState::Fail(const absl::Status& why) {
  std::function<void()> on_fatal;
  {
    const MutexLock lock(mutex_);
    if (!fatal_.ok()) return;
    fatal_ = why;
    on_fatal = on_fatal_;
  }
  LogError("stopping: {}", Message(why));
  if (on_fatal) on_fatal();
}

void DaemonState::SetOnFatal(std::function<void()> on_fatal) {
  const MutexLock lock(mutex_);
  on_fatal_ = std::move(on_fatal);
}

absl::Status DaemonState::fatal() const {
  const MutexLock lock(mutex_);
  return fatal_;
}

absl::Status DaemonState::kv_status() const {
  const MutexLock lock(mutex_);
  return kv_status_;
}

absl::Status DaemonState::KvStatusNow() const {
  absl::Status status = kv_status();
  if (status.ok()) return status;
  const absl::StatusOr<std::shared_ptr<Runtime>> loaded = runtime();
  const bool serves = loaded.ok() && (*loaded)->node->Probe(kKvLookAgainTimeMax).ok();
  return serves ? absl::OkStatus() : status;
}

void DaemonState::SetKvStatus(absl::Status status) {
  const MutexLock lock(mutex_);
  kv_status_ = std::move(status);
}

void DaemonState::SetReady(std::shared_ptr<Runtime> runtime) {
  const MutexLock lock(mutex_);
  runtime_ = std::move(runtime);
  Phase loading = Phase::kLoading;
  phase_.compare_exchange_strong(loading, Phase::kReady);
}

}  // namespace cairn::compute
