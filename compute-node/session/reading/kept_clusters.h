// KeptClusters holds copies of the clusters that steps attended last, so that what is attended
// again is not fetched again. The KV node keeps whole pages, of which a cluster of few entries is a
// small part: equal bytes hold several times as many clusters here. Of a cluster of which a step
// attended some entries only those are copied: they are more likely to be attended again than the
// others, which would take their room.
//
// A cluster's entries only grow: one with as many entries as were copied is as it was then, and so
// are its first ones. Whoever takes operations back, after which the same number may mean others,
// calls Clear.
//
// From a layer's share of the memory those clusters leave that were attended longest ago. All of
// them are looked for before any is put in, so that a step whose clusters are too many does not
// drive out what it is about to use.
//
// Memory:     the entries; 200 bytes more for each cluster are counted in the KvMemory too, and of
//             copies in part, which may be small, in the layer's share.
// Threading:  one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/kv/messages.h"
#include "compute-node/retrieval/entry_selector.h"
#include "compute-node/session/kv_memory.h"
#include "compute-node/session/reading/fetch_check.h"

namespace cairn::compute {

// A copy of what a fetch gave. Whoever attends it shares it.
class KeptCluster {
 public:
  // `entries` are those of all spans, in order; of these the attended ones, ascending indices, are
  // copied; empty: all. Borrows `memory`, which outlives it. REQUIRES: there are entries, and they
  // were checked.
  KeptCluster(const FetchedCluster& fetched, std::span<const std::byte* const> entries,
              std::span<const std::int32_t> attended, std::int64_t entry_bytes,
              WithPositions with_positions, KvMemory& memory);
  KeptCluster(const KeptCluster&) = delete;
  KeptCluster& operator=(const KeptCluster&) = delete;
  ~KeptCluster() = default;

  // One span, of what was copied, with positions if they were fetched.
  const FetchedCluster& fetched() const { return fetched_; }
  std::int64_t entry_count() const { return fetched_.spans.front().entry_count; }
  // Whether what is planned to be attended was copied, and the plan of the copy's entries then.
  bool Serves(const PlannedCluster& planned) const;
  PlannedCluster PlanOfCopy(PlannedCluster planned) const;
  WithPositions with_positions() const { return with_positions_; }
  // Of the layer's share.
  std::int64_t size_bytes() const;

 private:
  std::vector<std::byte> bytes_;
  std::vector<std::int32_t> indices_;  // of the copied entries in the cluster; empty: all
  WithPositions with_positions_;
  FetchedCluster fetched_;
  KvMemoryCharge charge_;
};

class KeptClusters {
 public:
  explicit KeptClusters(std::int32_t layer_count)
      : layers_(static_cast<std::size_t>(layer_count)) {}

  // Null: it is not kept, or not what is planned of it, or without the positions that are needed.
  std::shared_ptr<const KeptCluster> Find(std::int32_t layer, const PlannedCluster& planned,
                                          WithPositions needed) const;
  // It was attended again; whether it is still here does not matter.
  void Touch(std::int32_t layer, const ClusterRef& cluster);
  // Instead of an older copy. bytes_max: of the layer's clusters.
  void Put(std::int32_t layer, std::shared_ptr<const KeptCluster> cluster, std::int64_t bytes_max);
  void Shrink(std::int32_t layer, std::int64_t bytes_max);
  void Clear();

 private:
  struct HashOfRef {
    std::size_t operator()(const ClusterRef& ref) const {
      const std::uint64_t mixed =
          static_cast<std::uint64_t>(ref.cluster_id.value()) * 0x9e3779b97f4a7c15U +
          static_cast<std::uint64_t>(ref.head);
      return static_cast<std::size_t>(mixed ^ mixed >> 32U);
    }
  };
  using Order = std::list<std::shared_ptr<const KeptCluster>>;  // attended last first
  struct Layer {
    Order order;
    std::unordered_map<ClusterRef, Order::iterator, HashOfRef> by_cluster;
    std::int64_t bytes = 0;
  };

  void Drop(Layer& layer, Order::iterator which);

  std::vector<Layer> layers_;
};

}  // namespace cairn::compute
