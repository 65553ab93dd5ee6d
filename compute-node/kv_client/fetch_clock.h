// FetchClock measures how long a session's fetches take, how much of that nobody computes, and what
// is read from flash for it.
//
// A fetch is under way from asking to the answer, which may have lain in the KV node's memory. What
// the KV node reads ahead by itself is not counted: neither its time and bytes nor that it is
// hidden.
//
// Threading:  safe from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include <absl/cleanup/cleanup.h>

#include "common/base/check.h"
#include "common/base/mutex.h"

namespace cairn::compute {

struct FetchTimes {
  // While at least one fetch was under way or waited for.
  std::chrono::nanoseconds io_time{0};
  // Of io_time: while somebody waited for one.
  std::chrono::nanoseconds exposed_time{0};
  // Of flash, for the answers; those to what opens the session included.
  std::int64_t read_bytes = 0;
};

class FetchClock {
 public:
  using Clock = std::chrono::steady_clock;

  explicit FetchClock(std::function<Clock::time_point()> now = Clock::now) : now_(std::move(now)) {}

  void BeginFetch() {
    const MutexLock lock(mutex_);
    io_.Begin(now_());
  }
  void EndFetch() {
    const MutexLock lock(mutex_);
    io_.End(now_());
  }
  // Until the waiting thread goes on, which is later than the answer.
  void BeginWait() {
    const MutexLock lock(mutex_);
    const Clock::time_point now = now_();
    io_.Begin(now);
    exposed_.Begin(now);
  }
  void EndWait() {
    const MutexLock lock(mutex_);
    const Clock::time_point now = now_();
    exposed_.End(now);
    io_.End(now);
  }

  // While the answer lives, somebody waits for a fetch.
  auto Wait() {
    BeginWait();
    return absl::MakeCleanup([this] { EndWait(); });
  }

  void AddReadBytes(std::int64_t bytes) {
    const MutexLock lock(mutex_);
    read_bytes_ += bytes;
  }

  // Until now, where some are under way.
  FetchTimes times() const {
    const MutexLock lock(mutex_);
    const Clock::time_point now = now_();
    return {io_.Total(now), exposed_.Total(now), read_bytes_};
  }

 private:
  // The length of the union of intervals.
  class Union {
   public:
    void Begin(Clock::time_point now) {
      if (count_++ == 0) start_ = now;
    }
    void End(Clock::time_point now) {
      CAIRN_CHECK_LT(0, count_);
      if (--count_ == 0) total_ += now - start_;
    }
    Clock::duration Total(Clock::time_point now) const {
      return count_ == 0 ? total_ : total_ + (now - start_);
    }

   private:
    std::int64_t count_ = 0;
    Clock::time_point start_;
    Clock::duration total_{0};
  };

  const std::function<Clock::time_point()> now_;
  mutable Mutex mutex_;
  Union io_ CAIRN_GUARDED_BY(mutex_);
  Union exposed_ CAIRN_GUARDED_BY(mutex_);
  std::int64_t read_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn::compute
