#include "kv-node/meta/meta_queue.h"

#include <utility>

namespace cairn::kv {

absl::Status MetaQueue::Add(Item item) {
  MutexLock lock(mutex_);
  const bool full =
      static_cast<int>(items_.size()) >= kMetaQueueCountMax || bytes_ > kMetaQueueBytesMax;
  if (stopping_) return Unavailable("the metadata store is closing");
  if (full) {
    return Unavailable(
        "the metadata store's queue is full: {} items of {} bytes, at most {} of {}; try again",
        items_.size(), bytes_, kMetaQueueCountMax, kMetaQueueBytesMax);
  }
  bytes_ += item.batch.size_bytes();
  items_.push_back(std::move(item));
  changed_.NotifyOne();
  return absl::OkStatus();
}

std::vector<MetaQueue::Item> MetaQueue::Next(std::chrono::steady_clock::time_point due) {
  MutexLock lock(mutex_);
  while (items_.empty() && !stopping_) {
    if (!changed_.WaitUntil(mutex_, due)) break;
  }
  std::vector<Item> group;
  std::int64_t group_bytes = 0;
  while (!items_.empty()) {
    Item& front = items_.front();
    const std::int64_t front_bytes = front.batch.size_bytes();
    if (!group.empty() && (front.task || group_bytes + front_bytes > kMetaGroupBytesMax)) break;
    const bool is_task = static_cast<bool>(front.task);
    group_bytes += front_bytes;
    bytes_ -= front_bytes;
    group.push_back(std::move(front));
    items_.pop_front();
    if (is_task) break;
  }
  return group;
}

void MetaQueue::Stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  changed_.NotifyOne();
}

bool MetaQueue::HasEnded() const {
  MutexLock lock(mutex_);
  return stopping_ && items_.empty();
}

std::int64_t MetaQueue::count() const {
  MutexLock lock(mutex_);
  return static_cast<std::int64_t>(items_.size());
}

}  // namespace cairn::kv
