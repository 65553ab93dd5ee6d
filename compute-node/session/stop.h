// StopSignal tells a generation to end: the client cancelled it, or its deadline passed. Checked
// between layers and between steps.
//
// Threading:  Cancel is safe from any thread, also from a signal-free callback; the rest too.
#pragma once

#include <atomic>
#include <chrono>

#include "common/base/status.h"

namespace cairn::compute {

// How soon what waits for something else notices that it was stopped.
inline constexpr std::chrono::milliseconds kStopCheckInterval{20};

class StopSignal {
 public:
  using Clock = std::chrono::steady_clock;

  StopSignal() = default;
  explicit StopSignal(Clock::time_point deadline) : deadline_(deadline) {}

  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  // What Model::Forward watches; it does not know deadlines.
  const std::atomic<bool>* flag() const { return &cancelled_; }

  // OK, CANCELLED or DEADLINE_EXCEEDED.
  absl::Status Check() const {
    if (cancelled_.load(std::memory_order_relaxed))
      return Cancelled("the generation was cancelled");
    if (deadline_ != Clock::time_point::max() && Clock::now() >= deadline_) {
      return DeadlineExceeded("the deadline of the generation passed");
    }
    return absl::OkStatus();
  }

 private:
  std::atomic<bool> cancelled_{false};
  const Clock::time_point deadline_ = Clock::time_point::max();
};

// Whether this is what StopSignal::Check answers; KvSession has no errors with these codes.
inline bool IsStop(const absl::Status& status) {
  return status.code() == absl::StatusCode::kCancelled ||
         status.code() == absl::StatusCode::kDeadlineExceeded;
}

}  // namespace cairn::compute
