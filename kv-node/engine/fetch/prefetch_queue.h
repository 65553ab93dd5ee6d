// PrefetchQueue holds the parts that one session wants to have read ahead, in the order of asking,
// until the device has time for them. It names parts and keeps nothing of them: what was placed
// anew or has gone by the time of its turn is passed over, and no space waits for it (rule 15).
//
// Units:      bytes of the pages that a part touches.
// Threading:  the engine thread.
// Limits:     kPrefetchQueueBytesMax and kPrefetchQueueCountMax; Add refuses what is above them.
#pragma once

#include <cstdint>
#include <deque>

#include "common/kv/messages.h"
#include "kv-node/layout/rows.h"

namespace cairn::kv {

inline constexpr std::int64_t kPrefetchQueueBytesMax = std::int64_t{4} << 20;
inline constexpr std::int64_t kPrefetchQueueCountMax = 1024;

struct QueuedPrefetch {
  RequestId request_id;  // 0: cannot be cancelled
  bool staged = false;   // for a LayerHint, not for a Prefetch
  ClusterKey key;
  PartId part_id;
  std::int64_t bytes = 0;
};

class PrefetchQueue {
 public:
  // False: no room.
  bool Add(const QueuedPrefetch& prefetch);
  // Takes what a request asked for out of the queue. 0 names none.
  void Cancel(RequestId request_id);
  // Takes everything out that was queued for a hint: the next one has come.
  void DropStaged();
  // Empties the queue. Returns how many there were.
  std::int64_t Clear();

  bool empty() const { return queue_.empty(); }
  const QueuedPrefetch& front() const { return queue_.front(); }
  void PopFront();
  std::int64_t bytes() const { return bytes_; }

 private:
  template <typename Fn>
  void EraseIf(Fn&& is_gone);

  std::deque<QueuedPrefetch> queue_;
  std::int64_t bytes_ = 0;
};

}  // namespace cairn::kv
