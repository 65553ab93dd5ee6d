// DynaKvPolicy retrieves by clusters that adapt while the conversation grows (Wang et al., "DynaKV:
// Enabling Accurate and Efficient Long-Sequence LLM Decoding on Smartphones", sections 4.1, 4.2 and
// Algorithm 1).
//
// - A prompt's keys are clustered by K-means, chunk by chunk, for each layer and KV head; behind
//   the last of several chunks again over all of them, region by region (Regroup): clusters of
//   single chunks are as many as those of the whole would be, but wider, because like keys of other
//   chunks are not there.
// - A key that leaves the window later joins the nearest cluster of the whole conversation. If that
//   would raise the cluster's variance above the head's threshold, or the cluster is as large as
//   may be, the cluster is flagged and the entry held back in memory, as are later ones of it.
// - A flagged cluster is split, with what is held for it, behind the step that selects it: its
//   entries are in memory then, so that adapting reads nothing. When too many entries are held, the
//   next step selects the cluster that holds most.
// - Distances between keys are those that the queries of the first prompt see (query_metric.h).
// - A step selects clusters by what their better keys may have as product with the query, summed
//   over the heads that share the KV head: that of the centroid and kSpreadWeight deviations. Best
//   first, until what it attends is SelectedTokens; sinks, window and held entries count.
//
// Where the paper is silent: the threshold is kThresholdFactor times the mean variance, weighted by
// size, of what K-means made. A conversation that begins with few tokens keeps them in clusters of
// neighbours until there are kPartitionEntriesMin, and clusters them in the step that reads them
// all.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compute-node/retrieval/clustering/cluster_index.h"
#include "compute-node/retrieval/clustering/kmeans.h"
#include "compute-node/retrieval/clustering/query_metric.h"
#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

inline constexpr float kThresholdFactor = 1.5F;
// Of the deviation of a cluster's products with a query, what is added to its score: of two equal
// centroids the one whose keys lie farther apart has the better best key.
inline constexpr float kSpreadWeight = 1;
// Entries that are clustered by K-means, at least.
inline constexpr std::int64_t kPartitionEntriesMin = 128;
// Entries that leave the window at once and become clusters of their own instead of joining others.
inline constexpr std::int64_t kChunkEntriesMin = 64;
// Tokens of a pass whose queries the metric learns from: at least, and about at most.
inline constexpr std::int64_t kMetricTokensMin = 64;
inline constexpr std::int64_t kMetricTokensMax = 512;

// Entries of one head that are clustered anew at a time: few enough to be in memory, and many,
// because regions are cut between clusters that are to be made again. (Regions of 1024 made wider
// clusters than there were before.)
inline constexpr std::int64_t kRegionEntries = 16384;
// The first tokens of each head.
inline constexpr ClusterId kSinkCluster{1};

class DynaKvPolicy : public BasicPolicy, public PagedIndex {
 public:
  // REQUIRES: options.Validate() is OK.
  explicit DynaKvPolicy(const PolicyOptions& options, std::int64_t region_entries = kRegionEntries);

  PagedIndex* paged_index() final { return this; }
  std::int64_t WindowTokens(std::int64_t token_count) const override;
  std::vector<FetchSlice> Select(const SelectionInput& input) const override;
  std::vector<std::vector<ClusterId>> Estimate(const SelectionInput& input,
                                               std::span<const FetchSlice> plan) const override;
  void LoadMeans(std::int32_t layer, std::int32_t head, std::span<const ClusterId> clusters,
                 KvBlock& block, std::span<float> counts) const override;
  StoreActions Store(const LeavingEntries& leaving) override;
  std::vector<ClusterSplit> Adapt(std::int32_t layer,
                                  std::span<const LoadedCluster> clusters) override;
  std::vector<ClusterGroup> Regroup(std::int32_t layer) override;
  std::vector<ClusterSplit> Recluster(std::int32_t layer,
                                      std::span<const std::vector<LoadedCluster>> groups,
                                      ThreadPool& pool) override;
  std::int64_t memory_bytes() const override;
  PolicyStatistics statistics() const override;
  std::vector<std::int64_t> NextClusterIds() const override;
  PutPolicyState SaveState() const override;
  // Of what SaveState gives.
  std::int64_t state_bytes() const;
  absl::Status RestoreState(const StoredPolicyState& stored) override;
  std::vector<IndexRow> TakeChangedRows(std::int32_t layer) override;
  void ReturnRows(std::int32_t layer, std::span<const ClusterRef> clusters) override;
  absl::Status RestoreIndex(std::int32_t layer, std::span<const IndexRecord> records,
                            const std::vector<ClusterInfo>* clusters, ThreadPool& pool) override;
  std::int64_t ClusterBytes(std::int32_t layer) const override;
  std::int64_t IndexBytes(std::int32_t layer) const override;
  bool IndexIsLoaded(std::int32_t layer) const override;
  bool StoreReadsIndex(const LeavingEntries& leaving) const override;
  std::int64_t LoadIndex(std::int32_t layer, std::span<const IndexRecords> records,
                         ThreadPool& pool) override;
  void FlagUnknown(std::int32_t layer) override;
  void UnloadIndex(std::int32_t layer) override;
  absl::Status RestoreHeld(std::int32_t layer, const HeldEntry& held) override;

  // What the index of one (layer, head) holds, and how its keys are stretched; for tests and
  // statistics.
  const ClusterIndex& index(std::int32_t layer, std::int32_t head) const {
    return heads_[HeadOf(layer, head)].index;
  }
  const QueryMetric& metric(std::int32_t layer, std::int32_t head) const {
    return heads_[HeadOf(layer, head)].metric;
  }

 private:
  // One (layer, head).
  struct Head {
    Head(std::int64_t dim, RotaryPairs pairs, bool keeps_values)
        : index(dim, keeps_values), metric(dim, pairs) {}

    ClusterIndex index;  // of stretched keys
    QueryMetric metric;
    std::int64_t next_id = 1;
    bool partitioned = false;  // K-means has made clusters
    // Of these: the sum of entries times variance, and of entries.
    double variance_sum = 0;
    std::int64_t variance_entries = 0;
    std::map<ClusterId, std::int64_t> held;  // entries that wait for a flagged cluster's split
    std::int64_t split_count = 0;            // for statistics only, and not stored

    float Threshold() const;
    std::int64_t HeldTotal() const;
    void CountVariance(const ClusterMoments& moments);
    std::vector<float> Stretched(std::span<const float> keys) const;
    HeadStatistics Statistics() const;
  };

  std::size_t HeadOf(std::int32_t layer, std::int32_t head) const {
    return static_cast<std::size_t>(std::int64_t{layer} * options_.layout.head_count + head);
  }
  // Those of a layer.
  std::span<Head> HeadsOf(std::int32_t layer) {
    return std::span(heads_).subspan(HeadOf(layer, 0), HeadOf(1, 0));
  }
  std::span<const Head> HeadsOf(std::int32_t layer) const {
    return std::span(heads_).subspan(HeadOf(layer, 0), HeadOf(1, 0));
  }
  void Clear();
  std::int64_t dim() const { return options_.layout.head_dim; }

  std::vector<PlannedCluster> SelectHead(const SelectionInput& input, std::int32_t head) const;
  std::vector<std::size_t> Choose(const Head& head, std::span<const float> scores,
                                  std::int64_t room) const;
  std::vector<std::size_t> MustRead(const Head& head, std::int64_t token_count,
                                    std::int64_t& room) const;
  std::vector<ClusterId> EstimateHead(const SelectionInput& input, std::int32_t head_number,
                                      std::span<const ClusterId> read) const;
  PlannedCluster Plan(const Head& head, std::int32_t head_number, std::size_t slot,
                      bool adapt) const;

  void LearnMetrics(const LeavingEntries& leaving);
  StoreActions StoreStretched(const LeavingEntries& leaving);
  void StoreSinks(const LeavingEntries& leaving, std::int64_t sink_count, StoreActions& actions);
  void StoreChunk(const LeavingEntries& leaving, std::int64_t first_index, StoreActions& actions);
  void StoreEarly(const LeavingEntries& leaving, std::int32_t head, std::int64_t first_index,
                  StoreActions& actions);
  void StoreOne(const LeavingEntries& leaving, std::int32_t head, std::int64_t first_index,
                StoreActions& actions);
  void Partition(std::int32_t layer, std::int32_t head_number,
                 std::span<const LoadedCluster* const> clusters, std::vector<ClusterSplit>& splits);
  // Makes the clusters that K-means found among the keys of `loaded` instead of these.
  void Replace(Head& head, std::span<const LoadedCluster* const> loaded,
               std::span<const float> keys, const PointClusters& found, ClusterSplit& split);
  void AdaptOne(Head& head, const LoadedCluster& loaded, std::vector<ClusterSplit>& splits);

  const PolicyOptions options_;
  const std::int64_t region_entries_;
  std::vector<Head> heads_;  // by (layer, head)
};

}  // namespace cairn::compute
