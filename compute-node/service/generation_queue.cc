#include "compute-node/service/generation_queue.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/thread.h"

namespace cairn::compute {

GenerationQueue::GenerationQueue(int running_max) : live_thread_count_(running_max + 1) {
  CAIRN_CHECK_GE(running_max, 1);
  for (int i = 0; i < running_max; ++i) {
    threads_.push_back(StartThread(fmt::format("cn-turn-{}", i), [this] { Run(); }));
  }
  threads_.push_back(StartThread("cn-turn-gone", [this] { RunStopped(); }));
}

GenerationQueue::~GenerationQueue() {
  CancelAll();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status GenerationQueue::Submit(std::shared_ptr<StopSignal> stop, std::function<void()> job,
                                     SessionId conversation) {
  const MutexLock lock(mutex_);
  if (stopping_) return Unavailable("cairn-compute-node is stopping");
  // Cancelled ones only wait for their turn to end.
  const std::int64_t waiting =
      std::count_if(waiting_.begin(), waiting_.end(),
                    [](const Entry& entry) { return !entry.stop->cancelled(); });
  if (waiting >= kGenerationsWaitingMax) {
    return ResourceExhausted(
        "{} generations are waiting already, which is the most: try again in some seconds",
        waiting);
  }
  waiting_.push_back({std::move(stop), std::move(job), conversation});
  changed_.NotifyAll();
  return absl::OkStatus();
}

void GenerationQueue::CancelAll() {
  const MutexLock lock(mutex_);
  stopping_ = true;
  for (const Running& running : running_) running.stop->Cancel();
  for (const Entry& entry : waiting_) entry.stop->Cancel();
  changed_.NotifyAll();
}

bool GenerationQueue::Stop(std::chrono::milliseconds time_max) {
  const auto deadline = std::chrono::steady_clock::now() + time_max;
  CancelAll();
  const MutexLock lock(mutex_);
  while (live_thread_count_ > 0) {
    if (!changed_.WaitUntil(mutex_, deadline)) break;
  }
  return live_thread_count_ == 0;
}

void GenerationQueue::Run() {
  for (;;) {
    Entry entry;
    {
      const MutexLock lock(mutex_);
      auto next = NextLocked();
      while (next == waiting_.end() && !(stopping_ && waiting_.empty())) {
        changed_.Wait(mutex_);
        next = NextLocked();
      }
      if (next == waiting_.end()) {
        EndThread();
        return;
      }
      entry = TakeLocked(next);
    }
    RunEntry(entry);
  }
}

std::deque<GenerationQueue::Entry>::iterator GenerationQueue::NextLocked() {
  auto next = waiting_.begin();
  while (next != waiting_.end() && RunsLocked(next->conversation)) ++next;
  return next;
}

bool GenerationQueue::RunsLocked(SessionId conversation) const {
  if (conversation == SessionId()) return false;
  for (const Running& running : running_) {
    if (running.conversation == conversation) return true;
  }
  return false;
}

GenerationQueue::Entry GenerationQueue::TakeLocked(const std::deque<Entry>::iterator& entry) {
  Entry taken = std::move(*entry);
  waiting_.erase(entry);
  running_.push_back({taken.stop, taken.conversation});
  return taken;
}

void GenerationQueue::RunEntry(Entry& entry) {
  entry.job();
  const MutexLock lock(mutex_);
  running_.erase(std::find_if(running_.begin(), running_.end(), [&entry](const Running& running) {
    return running.stop == entry.stop;
  }));
  changed_.NotifyAll();
}

void GenerationQueue::EndThread() {
  --live_thread_count_;
  changed_.NotifyAll();
}

// A caller that has given up still holds a thread of its endpoint until its job ends: clients that
// ask again and again, each time with a short deadline, would take them all behind a long turn.
void GenerationQueue::RunStopped() {
  for (;;) {
    Entry entry;
    {
      const MutexLock lock(mutex_);
      const auto stopped = [this]() CAIRN_REQUIRES(mutex_) {
        return std::find_if(waiting_.begin(), waiting_.end(),
                            [](const Entry& each) { return !each.stop->Check().ok(); });
      };
      auto found = stopped();
      while (found == waiting_.end() && !stopping_) {
        if (waiting_.empty()) {
          changed_.Wait(mutex_);
        } else {
          changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + kGoneCheckInterval);
        }
        found = stopped();
      }
      // Then all are stopped, and every thread takes them.
      if (stopping_) {
        EndThread();
        return;
      }
      entry = TakeLocked(found);
    }
    RunEntry(entry);
  }
}

}  // namespace cairn::compute
