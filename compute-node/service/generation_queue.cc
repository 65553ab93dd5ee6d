#include "compute-node/service/generation_queue.h"

#include <algorithm>
#include <utility>

#include "common/base/thread.h"

namespace cairn::compute {

GenerationQueue::GenerationQueue() {
  thread_ = StartThread("cn-generate", [this] { Run(); });
}

GenerationQueue::~GenerationQueue() {
  CancelAll();
  thread_.join();
}

absl::Status GenerationQueue::Submit(std::shared_ptr<StopSignal> stop, std::function<void()> job) {
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
  waiting_.push_back({std::move(stop), std::move(job)});
  changed_.NotifyAll();
  return absl::OkStatus();
}

int GenerationQueue::count() const {
  const MutexLock lock(mutex_);
  return static_cast<int>(waiting_.size()) + (running_ != nullptr ? 1 : 0);
}

void GenerationQueue::CancelAll() {
  const MutexLock lock(mutex_);
  stopping_ = true;
  if (running_ != nullptr) running_->Cancel();
  for (const Entry& entry : waiting_) entry.stop->Cancel();
  changed_.NotifyAll();
}

bool GenerationQueue::Stop(std::chrono::milliseconds time_max) {
  const auto deadline = std::chrono::steady_clock::now() + time_max;
  CancelAll();
  const MutexLock lock(mutex_);
  while (!ended_) {
    if (!changed_.WaitUntil(mutex_, deadline)) break;
  }
  return ended_;
}

void GenerationQueue::Run() {
  for (;;) {
    Entry entry;
    {
      const MutexLock lock(mutex_);
      running_ = nullptr;
      while (waiting_.empty() && !stopping_) changed_.Wait(mutex_);
      if (waiting_.empty()) {
        ended_ = true;
        changed_.NotifyAll();
        return;
      }
      entry = std::move(waiting_.front());
      waiting_.pop_front();
      running_ = entry.stop;
    }
    entry.job();
  }
}

}  // namespace cairn::compute
