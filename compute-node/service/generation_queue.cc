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
  for (const Entry& running : running_) running.stop->Cancel();
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
  const MutexLock lock(mutex_);
  while (!stopping_ || !waiting_.empty()) {
    if (const auto next = NextLocked(); next != waiting_.end()) {
      RunEntryLocked(next);
    } else {
      changed_.Wait(mutex_);
    }
  }
  EndThread();
}

GenerationQueue::Entries::iterator GenerationQueue::NextLocked() {
  auto next = waiting_.begin();
  while (next != waiting_.end() && RunsLocked(next->conversation)) ++next;
  return next;
}

bool GenerationQueue::RunsLocked(SessionId conversation) const {
  if (conversation == SessionId()) return false;
  for (const Entry& running : running_) {
    if (running.conversation == conversation) return true;
  }
  return false;
}

void GenerationQueue::RunEntryLocked(Entries::iterator entry) {
  running_.splice(running_.end(), waiting_, entry);
  mutex_.Unlock();
  std::exchange(entry->job, nullptr)();  // and lets go of what it holds
  mutex_.Lock();
  running_.erase(entry);
  changed_.NotifyAll();
}

void GenerationQueue::EndThread() {
  --live_thread_count_;
  changed_.NotifyAll();
}

// A caller that has given up still holds a thread of its endpoint until its job ends: clients that
// ask again and again, each time with a short deadline, would take them all behind a long turn.
void GenerationQueue::RunStopped() {
  const MutexLock lock(mutex_);
  while (!stopping_) {  // then all are stopped, and every thread takes them
    const auto stopped = std::find_if(waiting_.begin(), waiting_.end(),
                                      [](const Entry& each) { return !each.stop->Check().ok(); });
    if (stopped != waiting_.end()) {
      RunEntryLocked(stopped);
    } else if (waiting_.empty()) {
      changed_.Wait(mutex_);
    } else {
      changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + kStopCheckInterval);
    }
  }
  EndThread();
}

}  // namespace cairn::compute
