// GenerationQueue runs generations, some of them at once, and begins them in the order in which
// they came; but the turns of one conversation run one after the other, and those that wait for the
// one before them do not hold up other conversations. Their forward passes meet in the
// ForwardScheduler.
//
// Threading:  safe from any thread. Each job runs on a thread of the queue, "cn-turn-N"; one that
//             is stopped while it waits for its turn on "cn-turn-gone", so that its caller hears of
//             it within kStopCheckInterval, whatever else runs.
// Limits:     kGenerationsWaitingMax wait; more are refused with RESOURCE_EXHAUSTED.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

inline constexpr int kGenerationsWaitingMax = 16;

class GenerationQueue {
 public:
  // Runs `running_max` jobs at once, at least 1.
  explicit GenerationQueue(int running_max);
  ~GenerationQueue();  // stops, and waits for all jobs
  GenerationQueue(const GenerationQueue&) = delete;
  GenerationQueue& operator=(const GenerationQueue&) = delete;

  // Runs `job` when its turn comes; every job that was accepted runs, also after Stop. `stop` is
  // the signal that job watches: when it stops, the job runs at once, and must end at once.
  // `conversation` is the one that it goes on with; 0: a new one. UNAVAILABLE when the queue has
  // stopped.
  absl::Status Submit(std::shared_ptr<StopSignal> stop, std::function<void()> job,
                      SessionId conversation = SessionId());

  // Cancels what runs and waits. Accepts no more. Whether all jobs ended within `time_max`.
  bool Stop(std::chrono::milliseconds time_max);

 private:
  struct Entry {
    std::shared_ptr<StopSignal> stop;
    std::function<void()> job;
    SessionId conversation;
  };
  using Entries = std::list<Entry>;
  void Run();
  void RunStopped();
  // The first that waits for nothing but a thread.
  Entries::iterator NextLocked() CAIRN_REQUIRES(mutex_);
  bool RunsLocked(SessionId conversation) const CAIRN_REQUIRES(mutex_);
  // Runs one of waiting_, without the mutex.
  void RunEntryLocked(Entries::iterator entry) CAIRN_REQUIRES(mutex_);
  void EndThread() CAIRN_REQUIRES(mutex_);
  void CancelAll();

  Mutex mutex_;
  CondVar changed_;
  Entries waiting_ CAIRN_GUARDED_BY(mutex_);
  Entries running_ CAIRN_GUARDED_BY(mutex_);
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  int live_thread_count_ CAIRN_GUARDED_BY(mutex_) = 0;  // that may still run a job
  std::vector<std::thread> threads_;
};

}  // namespace cairn::compute
