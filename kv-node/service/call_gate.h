// CallGate counts calls in flight, so that a stopping server can wait for them.
//
// Threading:  safe from any thread.
// Blocking:   only WaitIdle.
#pragma once

#include <chrono>
#include <cstdint>

#include "common/base/mutex.h"

namespace cairn::kv {

class CallGate {
 public:
  void Enter() {
    const MutexLock lock(mutex_);
    ++inside_count_;
  }
  void Leave() {
    const MutexLock lock(mutex_);
    --inside_count_;
    if (inside_count_ == 0) idle_.NotifyAll();
  }
  // False when calls are still inside at the deadline.
  bool WaitIdle(std::chrono::steady_clock::time_point deadline) {
    const MutexLock lock(mutex_);
    while (inside_count_ > 0) {
      if (!idle_.WaitUntil(mutex_, deadline)) return inside_count_ == 0;
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar idle_;
  std::int64_t inside_count_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn::kv
