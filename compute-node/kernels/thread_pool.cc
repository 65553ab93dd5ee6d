#include "compute-node/kernels/thread_pool.h"

#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/thread.h"

namespace cairn {
namespace {

// A wake-up across cores costs tens of microseconds, in a virtual machine on both of them; what one
// thread does between two loops of a layer takes less than this.
constexpr std::chrono::microseconds kSpinTimeMax{150};

template <typename Condition>
bool SpinUntil(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTimeMax;
  do {
    for (int i = 0; i < 64; ++i) {
      if (condition()) {
        return true;
      }
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    // The KV node's threads, which may wait for this core, go first.
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < deadline);
  return condition();
}

}  // namespace

ThreadPool::ThreadPool(int thread_count) {
  CAIRN_CHECK_GE(thread_count, 1);
  CAIRN_CHECK_LE(thread_count, kThreadCountMax);
  workers_.reserve(static_cast<std::size_t>(thread_count - 1));
  for (int i = 1; i < thread_count; ++i) {
    workers_.push_back(StartThread(fmt::format("cn-fwd-{}", i), [this] { WorkerMain(); }));
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    generation_.fetch_add(1, std::memory_order_release);
  }
  work_ready_.NotifyAll();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

void ThreadPool::DrainIndices(const Loop& loop) {
  for (std::int64_t index = next_index_.fetch_add(1, std::memory_order_relaxed); index < loop.count;
       index = next_index_.fetch_add(1, std::memory_order_relaxed)) {
    loop.invoke(loop.context, index);
  }
}

void ThreadPool::Run(std::int64_t count, Invoke invoke, const void* context) {
  MutexLock run_lock(run_mutex_);
  const Loop loop{invoke, context, count};
  if (workers_.empty() || count <= 1) {
    for (std::int64_t index = 0; index < count; ++index) {
      invoke(context, index);
    }
    return;
  }
  {
    MutexLock lock(mutex_);
    loop_ = loop;
    open_ = true;
    next_index_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
  }
  work_ready_.NotifyAll();
  DrainIndices(loop);
  {
    // From here on no worker joins: one that woke up late would otherwise take the next loop's
    // indices with this loop's body, or, on a busy machine, be waited for without having work.
    MutexLock lock(mutex_);
    open_ = false;
  }
  const auto done = [this] { return active_count_.load(std::memory_order_acquire) == 0; };
  if (!SpinUntil(done)) {
    MutexLock lock(mutex_);
    while (!done()) {
      work_done_.Wait(mutex_);
    }
  }
}

void ThreadPool::WorkerMain() {
  std::uint64_t seen_generation = 0;
  while (true) {
    const auto changed = [&] {
      return generation_.load(std::memory_order_acquire) != seen_generation;
    };
    Loop loop;
    if (!SpinUntil(changed)) {
      MutexLock lock(mutex_);
      while (!changed()) {
        work_ready_.Wait(mutex_);
      }
    }
    {
      MutexLock lock(mutex_);
      if (stopping_) {
        return;
      }
      seen_generation = generation_.load(std::memory_order_relaxed);
      if (!open_) {
        continue;
      }
      active_count_.fetch_add(1, std::memory_order_relaxed);
      loop = loop_;
    }
    DrainIndices(loop);
    if (active_count_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      // Taking the mutex orders this notification after the waiter's check.
      MutexLock lock(mutex_);
      work_done_.NotifyAll();
    }
  }
}

}  // namespace cairn
