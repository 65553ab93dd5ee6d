// ThreadPool runs fork-join loops on a fixed set of threads: the caller and thread_count - 1
// workers. Indices are handed out dynamically, so that a busy core only slows its own share; so
// results must not depend on which thread runs an index. A worker that has not been scheduled by
// the time the last index is taken is not waited for.
//
// Policy: threads are not pinned. A phone's scheduler moves threads between large and small cores
// for good reasons. Between two loops of a layer they spin, and give the core to whoever else can
// run: the KV node's threads need one whenever an answer comes.
//
// Threading:  ParallelFor may be called from any thread; concurrent calls run one after the other.
//             Never call it from inside a loop body.
// Blocking:   ParallelFor returns when every index is done. Waiting threads spin for a part of a
//             millisecond at most, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace cairn {

inline constexpr int kThreadCountMax = 256;

class ThreadPool {
 public:
  // `thread_count` counts the caller: 1 starts no worker. Between 1 and kThreadCountMax.
  explicit ThreadPool(int thread_count);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(index) once for every index of [0, count), in any order, on several threads at once.
  template <typename Body>
  void ParallelFor(std::int64_t count, const Body& body) {
    Run(
        count,
        [](const void* context, std::int64_t index) {
          (*static_cast<const Body*>(context))(index);
        },
        &body);
  }

 private:
  using Invoke = void (*)(const void* context, std::int64_t index);

  struct Loop {
    Invoke invoke = nullptr;
    const void* context = nullptr;
    std::int64_t count = 0;
  };

  void Run(std::int64_t count, Invoke invoke, const void* context);
  void WorkerMain();
  void DrainIndices(const Loop& loop);

  std::vector<std::thread> workers_;
  Mutex run_mutex_;  // held by the caller for the length of one loop

  Mutex mutex_;
  CondVar work_ready_;
  CondVar work_done_;
  Loop loop_ CAIRN_GUARDED_BY(mutex_);
  bool open_ CAIRN_GUARDED_BY(mutex_) = false;  // whether workers may still join the loop

  // Changed under the mutex, but watched without it by spinning threads.
  std::atomic<std::uint64_t> generation_{0};  // counts loops
  std::atomic<std::int64_t> next_index_{0};
  std::atomic<int> active_count_{0};  // workers inside the loop
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn
