// ReadAhead reads ahead for a session: parts that a Prefetch names, and those of a hinted layer's
// hottest clusters, are brought into the cache while the device has nothing better to do. Only
// speed depends on it: what finds no room, fails, or comes too late is left out without a word, and
// the fetch that wants it reads it itself.
//
// A part waits in the session's own queue until the device is less than half busy; then its read
// starts at once, in class kPrefetch. So a fetch that wants a part has two cases: the part is
// queued still, and the fetch reads it (its turn in the queue finds it in the cache); or the read
// has started, and the fetch waits for it as for any other read. There is nothing to promote.
//
// Threading:  the engine thread.
// Ownership:  its callbacks hold the host's I/O, so that it outlives them.
#pragma once

#include <cstdint>
#include <memory>

#include "kv-node/engine/fetch/hot_clusters.h"
#include "kv-node/engine/fetch/prefetch_queue.h"
#include "kv-node/engine/state/session_host.h"

namespace cairn::kv {

struct FetchRun;

class ReadAhead {
 public:
  // `host` outlives it.
  ReadAhead(SessionHost& host, std::int32_t layer_count);

  // `fetch_read_bytes`: what the session's fetches have read of the device so far.
  void Apply(RequestId request_id, const HintOperation& hint, std::int64_t fetch_read_bytes);
  void NoteFetch(const Fetch& op);
  // Begins queued reads, as far as the device is idle and the bounds allow.
  void Start();
  std::int64_t memory_bytes() const { return hot_clusters_.memory_bytes(); }

 private:
  struct Job;

  void Queue(RequestId request_id, const Prefetch& op);
  // Queues the parts of the cluster that are not in the cache, as many as have at most these bytes.
  // Returns the bytes queued.
  std::int64_t QueueMissing(QueuedPrefetch prefetch, std::int64_t bytes_max);
  void StageLayer(std::int32_t layer, std::int64_t fetch_read_bytes);
  std::int64_t RoomBytes() const;
  // Takes parts from the queue that together have at most these bytes.
  std::shared_ptr<Job> Take(std::int64_t bytes_max, std::int64_t part_count_max);
  // Reads at most these bytes, holes too.
  void Read(const std::shared_ptr<Job>& job, std::int64_t bytes_max);
  void ReadRun(const std::shared_ptr<Job>& job, FetchRun run, const SlotRef& slot);
  void FinishRun(const Job& job, const FetchRun& run, const SlotRef& slot, bool ok);

  SessionHost& host_;
  EngineContext& context_;
  SessionState& state_;
  const std::int32_t layer_count_;
  HotClusters hot_clusters_;
  StageBudget stage_budget_;
  PrefetchQueue prefetches_;
  std::int64_t in_flight_bytes_ = 0;
};

}  // namespace cairn::kv
