// CallGate counts calls in flight, so that a stopping server can wait for them.
//
// Threading:  safe from any thread.
// Blocking:   only WaitIdle.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "common/base/mutex.h"

namespace cairn::kv {

class CallGate {
 public:
  // Whether a call that comes or goes ends the quiet for which WaitQuiet waits.
  enum class Sound { kHeard, kSilent };

  void Enter(Sound sound = Sound::kHeard) {
    const MutexLock lock(mutex_);
    ++inside_count_;
    if (sound == Sound::kHeard) last_change_ = std::chrono::steady_clock::now();
  }
  void Leave(Sound sound = Sound::kHeard) {
    const MutexLock lock(mutex_);
    --inside_count_;
    if (sound == Sound::kHeard) last_change_ = std::chrono::steady_clock::now();
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
  // Waits until nobody has come or gone aloud for `quiet`, at most until the deadline.
  void WaitQuiet(std::chrono::milliseconds quiet, std::chrono::steady_clock::time_point deadline) {
    const MutexLock lock(mutex_);
    last_change_ = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() < std::min(deadline, last_change_ + quiet)) {
      idle_.WaitUntil(mutex_, std::min(deadline, last_change_ + quiet));
    }
  }

 private:
  Mutex mutex_;
  CondVar idle_;
  std::int64_t inside_count_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point last_change_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv
