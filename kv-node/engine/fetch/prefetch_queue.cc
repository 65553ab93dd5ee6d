#include "kv-node/engine/fetch/prefetch_queue.h"

namespace cairn::kv {

bool PrefetchQueue::Add(const QueuedPrefetch& prefetch) {
  if (std::ssize(queue_) >= kPrefetchQueueCountMax) return false;
  if (bytes_ + prefetch.bytes > kPrefetchQueueBytesMax) return false;
  bytes_ += prefetch.bytes;
  queue_.push_back(prefetch);
  return true;
}

template <typename Fn>
void PrefetchQueue::EraseIf(Fn&& is_gone) {
  std::erase_if(queue_, [&](const QueuedPrefetch& prefetch) {
    if (!is_gone(prefetch)) return false;
    bytes_ -= prefetch.bytes;
    return true;
  });
}

void PrefetchQueue::Cancel(RequestId request_id) {
  if (request_id == RequestId()) return;
  EraseIf([&](const QueuedPrefetch& prefetch) { return prefetch.request_id == request_id; });
}

void PrefetchQueue::DropStaged() {
  EraseIf([](const QueuedPrefetch& prefetch) { return prefetch.staged; });
}

std::int64_t PrefetchQueue::Clear() {
  const std::int64_t count = std::ssize(queue_);
  queue_.clear();
  bytes_ = 0;
  return count;
}

void PrefetchQueue::PopFront() {
  bytes_ -= queue_.front().bytes;
  queue_.pop_front();
}

}  // namespace cairn::kv
