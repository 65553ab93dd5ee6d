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

inline constexpr int kEventsMax = 1024;
// How long a full queue is waited for before the client counts as gone.
inline constexpr std::chrono::seconds kSlowClientTimeMax{10};

class EventQueue {
 public:
  // Waits while the queue is full. DEADLINE_EXCEEDED: it stayed full, the client does not read; or
  // what `stop` answers.
  absl::Status Push(v1::GenerateEvent event, const StopSignal& stop);
  // No more events come.
  void Close();

  // The next event; nullopt when the time is up (or the queue is closed and empty: see done).
  std::optional<v1::GenerateEvent> Pop(std::chrono::milliseconds time_max);
  // Whether the queue is closed and empty.
  bool done() const;

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<v1::GenerateEvent> events_ CAIRN_GUARDED_BY(mutex_);
  bool closed_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn::compute
