// SelectedFetch brings the clusters that one layer of a step selects. What the layer will probably
// select is asked for while the layer before is still being computed; when the queries are there,
// only what was not foreseen is. What earlier steps attended may be kept, and is not asked for. The
// result is the same, whatever was foreseen or kept: clusters come in the order of the plan.
//
// A layer of which less than kUsedShareMin of what was asked for ahead was selected lately is not
// worth asking for: where flash is slow, reading what is not used takes more time than it hides.
// Each kProbeSteps steps one asks anyway, to see whether that has changed.
//
// Memory:     what is asked for is counted in a KvMemory from request to release.
// Threading:  one thread.
// Blocking:   Take waits for the KV node, watching the stop signal.
// Errors:     those of fetch_check.h; what the session answers. After an error call Reset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/retrieval/entry_selector.h"
#include "compute-node/session/kv_memory.h"
#include "compute-node/session/reading/fetch_check.h"
#include "compute-node/session/reading/kept_clusters.h"
#include "compute-node/session/stop.h"

namespace cairn::compute {

inline constexpr double kUsedShareMin = 0.5;
inline constexpr int kProbeSteps = 16;

// Clusters of a layer, in the planned order.
struct SelectedClusters {
  struct Cluster {
    PlannedCluster planned;
    std::size_t first_entry = 0;  // in `entries`; as many as planned
    const FetchedCluster* fetched = nullptr;
    bool was_kept = false;
    WithPositions with_positions = WithPositions::kNo;  // of `fetched`
  };
  std::vector<Cluster> clusters;
  std::vector<const std::byte*> entries;  // in the order of clusters and positions

  std::span<const std::byte* const> EntriesOf(const Cluster& cluster) const {
    return std::span(entries).subspan(cluster.first_entry,
                                      static_cast<std::size_t>(cluster.planned.entry_count));
  }
  // Keep what the pointers name.
  std::vector<FetchReply> replies;
  std::vector<std::shared_ptr<const KeptCluster>> kept;
  std::vector<KvMemoryCharge> charges;
};

// Since the conversation was opened.
struct FetchCounts {
  std::int64_t selected_count = 0;   // clusters that layers selected
  std::int64_t kept_count = 0;       // of these kept from an earlier step
  std::int64_t foreseen_count = 0;   // of these asked for ahead
  std::int64_t predicted_count = 0;  // clusters asked for ahead, selected later or not
};

class SelectedFetch {
 public:
  // Borrows `memory`, which outlives it. Positions come for clusters that the policy adapts or
  // knows positions of; with kYes for all.
  SelectedFetch(const EntryLayout& layout, WithPositions with_positions, KvMemory& memory)
      : layout_(layout),
        with_positions_(with_positions),
        memory_(memory),
        kept_(layout.layer_count),
        foresight_(static_cast<std::size_t>(layout.layer_count)) {}

  // Whether the layer is worth a Predict in this step.
  bool IsWorthPredicting(std::int32_t layer) const;
  // Asks for the plan's clusters. REQUIRES: `session` lives until Reset; nothing is asked for yet
  // but for a layer that was taken.
  void Predict(KvSession& session, std::int32_t layer, const std::vector<FetchSlice>& plan);
  // `meanwhile` is called when everything is asked for, before the wait.
  absl::StatusOr<SelectedClusters> Take(KvSession& session, std::int32_t layer,
                                        std::vector<FetchSlice> plan, const StopSignal& stop,
                                        const std::function<void()>& meanwhile = nullptr);
  // Keeps what was attended for later steps, as far as bytes_max has room for the layer; 0:
  // nothing. REQUIRES: its bytes were intact until now.
  void Keep(std::int32_t layer, const SelectedClusters& taken, std::int64_t bytes_max);
  // Forgets what is in flight.
  void Reset();
  // Forgets what is kept: behind operations that are taken back.
  void ForgetKept() { kept_.Clear(); }

  const FetchCounts& counts() const { return counts_; }

 private:
  struct Request {
    std::size_t cluster_count = 0;
    WithPositions with_positions = WithPositions::kNo;
    std::future<absl::StatusOr<ReadReply>> answer;
    KvMemoryCharge charge;
    bool wanted = false;
  };
  // Where a cluster is or will be: in an answer, or among those kept.
  struct Place {
    std::size_t request = 0;
    std::size_t index = 0;
    bool is_kept = false;
  };
  struct Foreseen {
    ClusterRef cluster;
    Place place;
  };

  // How well a layer was foreseen.
  struct Foresight {
    double used_share = 1;  // of what was asked for ahead, about the last four times
    int skipped_steps = 0;  // since then
  };

  void NoteForesight(std::int32_t layer, std::int64_t foreseen_count);
  bool NeedsPositions(const PlannedCluster& planned) const;
  std::shared_ptr<const KeptCluster> FindKept(std::int32_t layer,
                                              const PlannedCluster& planned) const;
  // Finds what is kept or was foreseen, and asks for the rest. Places are in the order of the plan.
  std::vector<Place> PlacesOf(KvSession& session, std::int32_t layer,
                              const std::vector<FetchSlice>& plan, SelectedClusters& taken);
  absl::Status WaitForWanted(KvSession& session, std::int32_t layer, const StopSignal& stop,
                             SelectedClusters& taken);
  // Asks for those of the clusters that need positions and for the others apart, of which there
  // mostly are none: positions are much of the work. Places are in the order of `clusters`.
  std::vector<Place> Ask(KvSession& session, std::int32_t layer,
                         std::span<const PlannedCluster* const> clusters);
  // Null: was not foreseen, or without the positions that it needs.
  const Place* Find(const PlannedCluster& planned) const;

  const EntryLayout layout_;
  const WithPositions with_positions_;
  KvMemory& memory_;
  KeptClusters kept_;
  std::vector<Foresight> foresight_;  // by layer
  std::int32_t layer_ = -1;           // that requests_ are of
  std::vector<Request> requests_;
  std::vector<Foreseen> foreseen_;  // by cluster
  FetchCounts counts_;
};

}  // namespace cairn::compute
