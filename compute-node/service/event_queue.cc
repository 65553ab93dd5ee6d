#include "compute-node/service/event_queue.h"

namespace cairn::compute {

using Clock = std::chrono::steady_clock;

absl::Status EventQueue::Push(v1::GenerateEvent event, const StopSignal& stop) {
  const MutexLock lock(mutex_);
  // Also where there is room: then its generation would go on for nobody.
  while (IsStuckLocked() || std::ssize(events_) >= kEventsMax) {
    CAIRN_RETURN_IF_ERROR(stop.Check());
    if (IsStuckLocked()) {
      return DeadlineExceeded("the client has read nothing for {} ms",
                              slow_client_time_max_.count());
    }
    changed_.WaitUntil(mutex_, Clock::now() + kStopCheckInterval);
  }
  if (events_.empty()) taken_ = Clock::now();
  events_.push_back(std::move(event));
  changed_.NotifyAll();
  return absl::OkStatus();
}

bool EventQueue::IsStuckLocked() const {
  return !trusts_reader_ && !events_.empty() && Clock::now() - taken_ > slow_client_time_max_;
}

void EventQueue::Close(absl::Status end) {
  const MutexLock lock(mutex_);
  closed_ = true;
  end_ = std::move(end);
  changed_.NotifyAll();
}

void EventQueue::TrustReader() {
  const MutexLock lock(mutex_);
  trusts_reader_ = true;
}

std::optional<v1::GenerateEvent> EventQueue::Pop(std::chrono::milliseconds time_max) {
  const Clock::time_point deadline = Clock::now() + time_max;
  const MutexLock lock(mutex_);
  while (events_.empty() && !closed_) {
    if (!changed_.WaitUntil(mutex_, deadline)) break;
  }
  if (events_.empty()) return std::nullopt;
  v1::GenerateEvent event = std::move(events_.front());
  events_.pop_front();
  taken_ = Clock::now();
  changed_.NotifyAll();
  return event;
}

bool EventQueue::done() const {
  const MutexLock lock(mutex_);
  return closed_ && events_.empty();
}

absl::Status EventQueue::end() const {
  const MutexLock lock(mutex_);
  return end_;
}

}  // namespace cairn::compute
