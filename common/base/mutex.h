// Mutex is std::mutex with clang's thread-safety annotations. Not absl::Mutex: Debian's is built
// without ThreadSanitizer, which then cannot see its ordering.
#pragma once

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define CAIRN_ANNOTATION(x) __attribute__((x))
#else
#define CAIRN_ANNOTATION(x)
#endif
#define CAIRN_GUARDED_BY(x) CAIRN_ANNOTATION(guarded_by(x))
#define CAIRN_REQUIRES(x) CAIRN_ANNOTATION(requires_capability(x))

namespace cairn {

class CAIRN_ANNOTATION(capability("mutex")) Mutex {
 public:
  void Lock() CAIRN_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  void Unlock() CAIRN_ANNOTATION(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class CAIRN_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) CAIRN_ANNOTATION(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() CAIRN_ANNOTATION(release_capability()) { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  void Wait(Mutex& mutex) CAIRN_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cond_.wait(lock);
    lock.release();
  }
  // Returns false when the deadline passed first.
  template <typename TimePoint>
  bool WaitUntil(Mutex& mutex, TimePoint deadline) CAIRN_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const auto status = cond_.wait_until(lock, deadline);
    lock.release();
    return status == std::cv_status::no_timeout;
  }
  void NotifyOne() { cond_.notify_one(); }
  void NotifyAll() { cond_.notify_all(); }

 private:
  std::condition_variable cond_;
};

}  // namespace cairn
