// EventQueue carries the events of one generation from the thread that computes to the thread that
// writes to the client. Bounded: a client that does not read stops its own generation, not the
// daemon.
//
// Threading:  one producer, one consumer.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include "cairn/compute/v1/inference.pb.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

inline constexpr int kEventsMax = 128;
// How long an event may wait to be taken before the client counts as one that does not read.
inline constexpr std::chrono::seconds kSlowClientTimeMax{10};

class EventQueue {
 public:
  explicit EventQueue(std::chrono::milliseconds slow_client_time_max = kSlowClientTimeMax)
      : slow_client_time_max_(slow_client_time_max) {}

  // Waits while the queue is full. DEADLINE_EXCEEDED: no event was taken for so long, though there
  // was one; or what `stop` answers.
  absl::Status Push(v1::GenerateEvent event, const StopSignal& stop);
  // No more events come; `end` is how the generation ended.
  void Close(absl::Status end = absl::OkStatus());
  // Whoever takes the events sees for itself whether the client reads, and cancels.
  void TrustReader();

  // The next event; nullopt when the time is up (or the queue is closed and empty: see done).
  std::optional<v1::GenerateEvent> Pop(std::chrono::milliseconds time_max);
  // Whether the queue is closed and empty.
  bool done() const;
  // What Close was told. REQUIRES: done.
  absl::Status end() const;

 private:
  using Clock = std::chrono::steady_clock;
  bool IsStuckLocked() const CAIRN_REQUIRES(mutex_);

  const std::chrono::milliseconds slow_client_time_max_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<v1::GenerateEvent> events_ CAIRN_GUARDED_BY(mutex_);
  Clock::time_point taken_ CAIRN_GUARDED_BY(mutex_);  // or when the first one came
  bool closed_ CAIRN_GUARDED_BY(mutex_) = false;
  absl::Status end_ CAIRN_GUARDED_BY(mutex_);
  bool trusts_reader_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn::compute
