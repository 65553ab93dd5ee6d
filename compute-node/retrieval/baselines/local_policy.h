// LocalPolicy clusters what comes together and never touches it again: ClusterKV (Liu et al.,
// 2024), the baseline "local-cluster". The keys of a prompt's chunk become clusters by K-means;
// entries that leave the window later wait in memory until there are 320, which become clusters of
// their own. As published these are 8 clusters; a variant makes 40. A prompt gets clusters of that
// size too.
//
// A step takes clusters by centroid times query, summed over the heads of the group, best first,
// and of the last one the entries that fit, oldest first. An entry that waits is a candidate of its
// own, by its key. The sinks are a cluster that is always taken.
//
// Centroids are the means of the entries: a reopened conversation computes them again from the
// keys, so that nothing of them is stored.
//
// Threading:  as RetrievalPolicy.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

// Entries that are clustered together behind a prompt.
inline constexpr std::int64_t kLocalBatchEntries = 320;
// Instead of the cluster that a waiting entry belongs to, which it has not yet: an id that no
// cluster gets.
inline constexpr ClusterId kWaitingBuffer{1};

class LocalPolicy : public BasicPolicy {
 public:
  // `name` is a literal; clusters have `cluster_entries` on average. REQUIRES: options.Validate()
  // is OK.
  LocalPolicy(std::string_view name, std::int64_t cluster_entries, const PolicyOptions& options);

  std::int64_t WindowTokens(std::int64_t token_count) const override {
    return SparseWindowTokens(options_.selection, token_count);
  }
  std::vector<FetchSlice> Select(const SelectionInput& input) const override;
  std::optional<std::vector<Positions>> SelectHeld(const SelectionInput& input) const override;
  StoreActions Store(const LeavingEntries& leaving) override;
  std::int64_t memory_bytes() const override;
  std::vector<std::int64_t> NextClusterIds() const override;
  PutPolicyState SaveState() const override;
  absl::Status RestoreState(const StoredPolicyState& stored) override;
  absl::Status RestoreHeld(std::int32_t layer, const HeldEntry& held) override;
  absl::Status Rebuild(std::int32_t layer, std::span<const LoadedCluster> clusters) override;

 private:
  struct Cluster {
    ClusterId id;
    Positions positions;
  };
  struct Head {
    std::optional<Cluster> sinks;
    std::vector<Cluster> clusters;  // ascending ids
    std::vector<float> centroids;   // of `clusters`
    Positions waiting;              // for a cluster
    std::vector<float> waiting_keys;
    std::int64_t next_id = kWaitingBuffer.value() + 1;
    std::int64_t run_bytes = 0;  // of the clusters' positions
  };
  // What a step attends of a head.
  struct Selection {
    std::vector<PlannedCluster> clusters;
    Positions waiting;
  };

  Head& HeadAt(std::int32_t layer, std::int32_t head) {
    return heads_[static_cast<std::size_t>(std::int64_t{layer} * options_.layout.head_count +
                                           head)];
  }
  const Head& HeadAt(std::int32_t layer, std::int32_t head) const {
    return heads_[static_cast<std::size_t>(std::int64_t{layer} * options_.layout.head_count +
                                           head)];
  }
  std::vector<Selection> SelectAll(const SelectionInput& input) const;
  Selection SelectHead(const SelectionInput& input, std::int32_t head, std::int64_t budget) const;
  void TakeBest(const SelectionInput& input, std::int32_t head, std::int64_t budget,
                Selection& selection) const;
  // Moves positions of the leaving entries below kSinkTokens into the sinks' cluster.
  void StoreSinks(const LeavingEntries& leaving, StoreActions& actions);
  // Makes clusters of waiting entries as long as there are enough of them.
  void ClusterWaiting(std::int32_t layer, ThreadPool* pool, StoreActions& actions);
  // Makes clusters of each head's entries, which have these positions.
  void MakeClusters(std::int32_t layer, const Positions& positions,
                    const std::vector<std::vector<float>>& keys, ThreadPool* pool,
                    StoreActions& actions);
  void AddCluster(Head& head, Cluster cluster, std::span<const float> keys) const;
  absl::Status RebuildOne(std::int32_t layer, const LoadedCluster& loaded);

  const PolicyOptions options_;
  const std::int64_t cluster_entries_;
  const std::int64_t cluster_entries_max_;
  std::vector<Head> heads_;  // by (layer, head)
};

}  // namespace cairn::compute
