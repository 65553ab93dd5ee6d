// MetaQueue is what waits for the metadata thread: batches to commit and tasks to run, in the order
// in which they came.
//
// Limits:     kMetaQueueCountMax items, kMetaQueueBytesMax of their batches; a full queue answers
//             UNAVAILABLE.
// Threading:  Next on the metadata thread; the others from any.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

class MetaQueue {
 public:
  struct Item {
    MetaBatch batch;
    MetaStore::CommitDone done;
    MetaStore::Task task;  // instead of a batch
  };

  // UNAVAILABLE: the queue is full, or stops.
  absl::Status Add(Item item);

  // Takes a task, or neighbouring batches up to kMetaGroupBytesMax. Waits for them until `due`.
  // Empty: there is nothing until then, or the queue stops and all was taken.
  std::vector<Item> Next(std::chrono::steady_clock::time_point due);

  // From now on nothing is added; what is there can be taken.
  void Stop();
  bool HasEnded() const;
  std::int64_t count() const;

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Item> items_ CAIRN_GUARDED_BY(mutex_);
  std::int64_t bytes_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn::kv
