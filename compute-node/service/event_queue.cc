#include "compute-node/service/event_queue.h"

namespace cairn::compute {

using Clock = std::chrono::steady_clock;

bool EventQueue::Push(v1::GenerateEvent event) {
  const Clock::time_point deadline = Clock::now() + kSlowClientTimeMax;
  const MutexLock lock(mutex_);
  while (std::ssize(events_) >= kEventsMax) {
    if (!changed_.WaitUntil(mutex_, deadline) && std::ssize(events_) >= kEventsMax) return false;
  }
  events_.push_back(std::move(event));
  changed_.NotifyAll();
  return true;
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
