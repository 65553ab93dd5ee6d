// WatchedPolicy is a policy in front of another one, which does all the work, and tells what
// becomes of the clusters.
//
// Threading:  as RetrievalPolicy; the watcher is called where the calls come.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "compute-node/retrieval/policy.h"

namespace cairn::eval {

class PolicyWatcher {
 public:
  virtual ~PolicyWatcher() = default;
  virtual void Stored(std::int32_t layer, const compute::StoreActions& actions) = 0;
  virtual void Split(std::int32_t layer, std::span<const compute::ClusterSplit> splits) = 0;
};

class WatchedPolicy : public compute::RetrievalPolicy {
 public:
  // Borrows `watcher`, which outlives it.
  WatchedPolicy(std::unique_ptr<compute::RetrievalPolicy> inner, PolicyWatcher& watcher)
      : inner_(std::move(inner)), watcher_(watcher) {}

  std::string_view name() const override { return inner_->name(); }
  bool selects_without_queries() const override { return inner_->selects_without_queries(); }
  bool selects_ahead() const override { return inner_->selects_ahead(); }
  bool ranks_by_query_sums() const override { return inner_->ranks_by_query_sums(); }
  bool needs_keys() const override { return inner_->needs_keys(); }
  bool needs_values() const override { return inner_->needs_values(); }
  std::int64_t WindowTokens(std::int64_t token_count) const override {
    return inner_->WindowTokens(token_count);
  }
  std::vector<compute::FetchSlice> Select(const compute::SelectionInput& input) const override {
    return inner_->Select(input);
  }
  std::optional<std::vector<Positions>> SelectHeld(
      const compute::SelectionInput& input) const override {
    return inner_->SelectHeld(input);
  }
  std::vector<std::vector<ClusterId>> Estimate(
      const compute::SelectionInput& input,
      std::span<const compute::FetchSlice> plan) const override {
    return inner_->Estimate(input, plan);
  }
  void LoadMeans(std::int32_t layer, std::int32_t head, std::span<const ClusterId> clusters,
                 compute::KvBlock& block, std::span<float> counts) const override {
    inner_->LoadMeans(layer, head, clusters, block, counts);
  }
  compute::StoreActions Store(const compute::LeavingEntries& leaving) override {
    compute::StoreActions actions = inner_->Store(leaving);
    watcher_.Stored(leaving.layer, actions);
    return actions;
  }
  std::vector<compute::ClusterSplit> Adapt(
      std::int32_t layer, std::span<const compute::LoadedCluster> clusters) override {
    std::vector<compute::ClusterSplit> splits = inner_->Adapt(layer, clusters);
    watcher_.Split(layer, splits);
    return splits;
  }
  std::int64_t memory_bytes() const override { return inner_->memory_bytes(); }
  std::int64_t ClusterBytes(std::int32_t layer) const override {
    return inner_->ClusterBytes(layer);
  }
  std::vector<compute::ClusterGroup> Regroup(std::int32_t layer) override {
    return inner_->Regroup(layer);
  }
  std::vector<compute::ClusterSplit> Recluster(
      std::int32_t layer, std::span<const std::vector<compute::LoadedCluster>> groups,
      ThreadPool& pool) override {
    std::vector<compute::ClusterSplit> splits = inner_->Recluster(layer, groups, pool);
    watcher_.Split(layer, splits);
    return splits;
  }
  compute::PolicyStatistics statistics() const override { return inner_->statistics(); }
  std::vector<std::int64_t> NextClusterIds() const override { return inner_->NextClusterIds(); }
  PutPolicyState SaveState() const override { return inner_->SaveState(); }
  absl::Status RestoreState(const compute::StoredPolicyState& stored) override {
    return inner_->RestoreState(stored);
  }
  bool has_index() const override { return inner_->has_index(); }
  std::vector<IndexRow> TakeChangedRows(std::int32_t layer) override {
    return inner_->TakeChangedRows(layer);
  }
  void ReturnRows(std::int32_t layer, std::span<const ClusterRef> clusters) override {
    inner_->ReturnRows(layer, clusters);
  }
  absl::Status RestoreIndex(std::int32_t layer, std::span<const IndexRecord> records,
                            const std::vector<ClusterInfo>* clusters, ThreadPool& pool) override {
    return inner_->RestoreIndex(layer, records, clusters, pool);
  }
  std::int64_t IndexBytes(std::int32_t layer) const override { return inner_->IndexBytes(layer); }
  bool IndexIsLoaded(std::int32_t layer) const override { return inner_->IndexIsLoaded(layer); }
  bool StoreReadsIndex(const compute::LeavingEntries& leaving) const override {
    return inner_->StoreReadsIndex(leaving);
  }
  std::int64_t LoadIndex(std::int32_t layer, std::span<const IndexRecords> records,
                         ThreadPool& pool) override {
    return inner_->LoadIndex(layer, records, pool);
  }
  void FlagUnknown(std::int32_t layer) override { inner_->FlagUnknown(layer); }
  void UnloadIndex(std::int32_t layer) override { inner_->UnloadIndex(layer); }
  bool rebuilds_from_keys() const override { return inner_->rebuilds_from_keys(); }
  absl::Status Rebuild(std::int32_t layer,
                       std::span<const compute::LoadedCluster> clusters) override {
    return inner_->Rebuild(layer, clusters);
  }
  std::int64_t kept_key_bytes() const override { return inner_->kept_key_bytes(); }
  absl::Status RestoreHeld(std::int32_t layer, const compute::HeldEntry& held) override {
    return inner_->RestoreHeld(layer, held);
  }

 private:
  const std::unique_ptr<compute::RetrievalPolicy> inner_;
  PolicyWatcher& watcher_;
};

}  // namespace cairn::eval
