// SelectedFetch brings the clusters that one layer of a step selects. What the layer will probably
// select is asked for while the layer before is still being computed; when the queries are there,
// only what was not foreseen is. The result is the same, whatever was foreseen: clusters come in
// the order of the plan.
//
// Memory:     what is asked for is counted in a KvMemory from request to release.
// Threading:  one thread.
// Blocking:   Take waits for the KV node, watching the stop signal.
// Errors:     those of fetch_check.h; what the session answers. After an error call Reset.
#pragma once

#include <cstdint>
#include <deque>
#include <future>
#include <map>
#include <vector>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/retrieval/policy.h"
#include "compute-node/session/entry_run.h"
#include "compute-node/session/kv_memory.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

// Clusters of a layer, in the planned order.
struct SelectedClusters {
  struct Cluster {
    PlannedCluster planned;
    EntryRun entries;
    const FetchedCluster* fetched = nullptr;
  };
  std::vector<Cluster> clusters;
  // Keep what the pointers name.
  std::vector<FetchReply> replies;
  std::vector<KvMemoryCharge> charges;
};

// Since the conversation was opened.
struct FetchCounts {
  std::int64_t selected_count = 0;   // clusters that layers selected
  std::int64_t foreseen_count = 0;   // of these asked for ahead
  std::int64_t predicted_count = 0;  // clusters asked for ahead, selected later or not
};

class SelectedFetch {
 public:
  // Borrows `memory`, which outlives it.
  SelectedFetch(std::int64_t entry_bytes, KvMemory& memory)
      : entry_bytes_(entry_bytes), memory_(memory) {}

  // Asks for the plan's clusters. REQUIRES: `session` lives until Reset; nothing is asked for yet
  // but for a layer that was taken.
  void Predict(KvSession& session, std::int32_t layer, const std::vector<FetchSlice>& plan);
  absl::StatusOr<SelectedClusters> Take(KvSession& session, std::int32_t layer,
                                        std::vector<FetchSlice> plan, const StopSignal& stop);
  // Forgets what is in flight.
  void Reset();

  const FetchCounts& counts() const { return counts_; }

 private:
  struct Request {
    std::vector<ClusterRef> clusters;
    std::future<absl::StatusOr<ReadReply>> answer;
    KvMemoryCharge charge;
  };
  // Where a cluster is or will be.
  struct Place {
    std::size_t request = 0;
    std::size_t index = 0;
  };

  void Ask(KvSession& session, std::int32_t layer, const std::vector<PlannedCluster>& clusters,
           std::int64_t bytes);

  const std::int64_t entry_bytes_;
  KvMemory& memory_;
  std::int32_t layer_ = -1;  // that requests_ are of
  std::vector<Request> requests_;
  std::map<ClusterRef, Place> places_;
  FetchCounts counts_;
};

}  // namespace cairn::compute
