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

inline constexpr int kRealtimePriorityMax = 99;

// As long as it lives the thread that made it, and for ever those that the thread starts meanwhile,
// run before all that have no such priority (SCHED_RR). 0: nothing changes.
class RealtimePriority {
 public:
  explicit RealtimePriority(int priority);
  ~RealtimePriority();
  RealtimePriority(const RealtimePriority&) = delete;
  RealtimePriority& operator=(const RealtimePriority&) = delete;

  // PERMISSION_DENIED where the system does not allow it.
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
  bool changed_ = false;
  int policy_before_ = 0;
  int priority_before_ = 0;
};

}  // namespace cairn
