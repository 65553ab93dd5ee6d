// WatchedPolicy is a policy in front of another one, which does all the work, and tells a
// ClusterWatch what becomes of the clusters.
//
// Threading:  as RetrievalPolicy; the watch is called where the calls come.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "compute-node/eval/cluster_watch.h"
#include "compute-node/retrieval/policy.h"

namespace cairn::eval {

// Only the keeper is one of its own: the other parts are the inner policy's.
class WatchedPolicy : public compute::RetrievalPolicy, private compute::ClusterKeeper {
 public:
  // Borrows `watch`, which outlives it.
  WatchedPolicy(std::unique_ptr<compute::RetrievalPolicy> inner, ClusterWatch& watch)
      : inner_(std::move(inner)), kept_(inner_->keeper()), watch_(watch) {}

  compute::PolicyTraits traits() const override { return inner_->traits(); }
  const compute::EntrySelector& selector() const override { return inner_->selector(); }
  compute::ClusterKeeper& keeper() override { return *this; }
  compute::PagedIndex* paged_index() override { return inner_->paged_index(); }
  compute::WeightObserver* weight_observer() override { return inner_->weight_observer(); }

 private:
  std::int64_t WindowTokens(std::int64_t token_count) const override {
    return kept_.WindowTokens(token_count);
  }
  compute::StoreActions Store(const compute::LeavingEntries& leaving) override {
    compute::StoreActions actions = kept_.Store(leaving);
    watch_.Stored(leaving.layer, actions);
    return actions;
  }
  std::vector<compute::ClusterSplit> Adapt(
      std::int32_t layer, std::span<const compute::LoadedCluster> clusters) override {
    return Told(layer, kept_.Adapt(layer, clusters));
  }
  std::vector<compute::ClusterGroup> Regroup(std::int32_t layer) override {
    return kept_.Regroup(layer);
  }
  std::vector<compute::ClusterSplit> Recluster(
      std::int32_t layer, std::span<const std::vector<compute::LoadedCluster>> groups,
      ThreadPool& pool) override {
    return Told(layer, kept_.Recluster(layer, groups, pool));
  }
  std::vector<std::int64_t> NextClusterIds() const override { return kept_.NextClusterIds(); }
  PutPolicyState SaveState() const override { return kept_.SaveState(); }
  absl::Status RestoreState(const compute::StoredPolicyState& stored) override {
    return kept_.RestoreState(stored);
  }
  absl::Status RestoreHeld(std::int32_t layer, const compute::HeldEntry& held) override {
    return kept_.RestoreHeld(layer, held);
  }
  absl::Status Rebuild(std::int32_t layer,
                       std::span<const compute::LoadedCluster> clusters) override {
    return kept_.Rebuild(layer, clusters);
  }
  std::int64_t memory_bytes() const override { return kept_.memory_bytes(); }
  std::int64_t token_memory_bytes() const override { return kept_.token_memory_bytes(); }
  compute::PolicyStatistics statistics() const override { return kept_.statistics(); }

  std::vector<compute::ClusterSplit> Told(std::int32_t layer,
                                          std::vector<compute::ClusterSplit> splits) {
    watch_.Split(layer, splits);
    return splits;
  }

  const std::unique_ptr<compute::RetrievalPolicy> inner_;
  compute::ClusterKeeper& kept_;
  ClusterWatch& watch_;
};

}  // namespace cairn::eval
