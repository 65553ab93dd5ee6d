// IndexStream brings what a policy's index has beside what selecting needs from the KV node, layer
// by layer, when entries join clusters, and lets go of it behind that. Where steps attend means of
// clusters they need it too: there it stays.
//
// Memory:     what is asked for and what was loaded are counted in a KvMemory until Unload; what
//             stays is the policy's to count.
// Threading:  one thread.
// Blocking:   Load waits for the KV node, watching the stop signal.
// Errors:     CANCELLED, DEADLINE_EXCEEDED; ABORTED when lost connections took the records away
//             again and again; what the session answers. Records that were damaged are none: their
//             clusters are read again.
#pragma once

#include <cstdint>
#include <future>
#include <map>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/retrieval/paged_index.h"
#include "compute-node/session/kv_memory.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

class IndexStream {
 public:
  // While two layers' entries find their clusters, which is as many as are worked on together, the
  // next two layers' index is read.
  static constexpr std::int32_t kIndexLayersAhead = 2;

  // Borrows all; they outlive it. `index` null: there is none, and nothing to bring. `stays`:
  // whether what was brought stays.
  IndexStream(std::int32_t layer_count, ThreadPool& pool, KvSession& session, PagedIndex* index,
              bool stays, KvMemory& memory)
      : layer_count_(layer_count),
        pool_(pool),
        session_(session),
        index_(index),
        stays_(stays),
        memory_(memory) {}

  bool IsLoaded(std::int32_t layer) const {
    return index_ == nullptr || index_->IndexIsLoaded(layer);
  }

  // The layer's index is in memory until Unload; asks for those of the next kIndexLayersAhead
  // layers.
  absl::Status Load(std::int32_t layer, const StopSignal& stop);
  // Lets go of it, unless it is to stay.
  void Unload(std::int32_t layer);
  // Forgets what was asked for. To be called before rows are taken, which answers that are on their
  // way do not have.
  void Reset() { requests_.clear(); }

 private:
  struct Asked {
    std::future<absl::StatusOr<ReadReply>> answer;
    KvMemoryCharge charge;
  };

  // Asks for a layer's index unless it is here or was asked for; for a layer behind the last: does
  // nothing.
  void Request(std::int32_t layer);
  absl::Status Take(std::int32_t layer, const FetchReply& reply);

  const std::int32_t layer_count_;
  ThreadPool& pool_;
  KvSession& session_;
  PagedIndex* const index_;
  const bool stays_;
  KvMemory& memory_;
  // By layer.
  std::map<std::int32_t, Asked> requests_;
  std::map<std::int32_t, KvMemoryCharge> loaded_;
};

}  // namespace cairn::compute
