// Named threads with signals blocked: only main handles signals.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "common/base/status.h"

namespace cairn {

// Starts a thread that blocks all signals and carries `name` (at most 15 characters; longer is a
// programmer error).
std::thread StartThread(const std::string& name, std::function<void()> body);
// The same where it is no programmer error that there is no room for one more thread.
// RESOURCE_EXHAUSTED: of memory, or the limit of threads is reached.
absl::StatusOr<std::thread> TryStartThread(const std::string& name, std::function<void()> body);

inline constexpr int kRealtimePriorityMax = 99;

// For threads that others wait for, and that run for microseconds at a time. As long as it lives
// the thread that made it, and for ever those that the thread starts meanwhile, run before all that
// have no such priority (SCHED_RR). 0: as all others, but with the shortest time slice: since Linux
// 6.12 a thread that wakes up with a shorter one runs before those that compute, of whose slices it
// would wait for milliseconds; before that nothing changes.
class ServingPriority {
 public:
  explicit ServingPriority(int realtime_priority);
  ~ServingPriority();
  ServingPriority(const ServingPriority&) = delete;
  ServingPriority& operator=(const ServingPriority&) = delete;

  // PERMISSION_DENIED where the system does not allow a realtime priority.
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
  bool is_realtime_ = false;
  bool has_short_slice_ = false;
  int policy_before_ = 0;
  int priority_before_ = 0;
};

}  // namespace cairn
