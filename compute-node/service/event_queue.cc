#include "compute-node/service/event_queue.h"

namespace cairn::compute {

using Clock = std::chrono::steady_clock;

namespace {

// How soon a producer that waits for its client notices that it should stop.
constexpr std::chrono::milliseconds kStopCheckInterval{20};

}  // namespace

absl::Status EventQueue::Push(v1::GenerateEvent event, const StopSignal& stop) {
  const Clock::time_point deadline = Clock::now() + kSlowClientTimeMax;
  const MutexLock lock(mutex_);
  while (std::ssize(events_) >= kEventsMax) {
    CAIRN_RETURN_IF_ERROR(stop.Check());
    if (Clock::now() >= deadline) {
      return DeadlineExceeded("the client did not read {} events in {} s", kEventsMax,
                              kSlowClientTimeMax.count());
    }
    changed_.WaitUntil(mutex_, Clock::now() + kStopCheckInterval);
  }
  events_.push_back(std::move(event));
  changed_.NotifyAll();
  return absl::OkStatus();
}

void EventQueue::Close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  changed_.NotifyAll();
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
  changed_.NotifyAll();
  return event;
}

bool EventQueue::done() const {
  const MutexLock lock(mutex_);
  return closed_ && events_.empty();
}

}  // namespace cairn::compute
