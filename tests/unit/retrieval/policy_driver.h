// Drives a retrieval policy as a conversation does, with random keys and queries instead of a
// model: a window whose entries leave in groups, prompts and steps, reopening and forking. Keeps
// what the KV node and the conversation would hold, and compares every plan with it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

// Small shapes: two layers, two KV heads of 16 with two query heads each.
PolicyOptions DriverOptions();

class PolicyDriver {
 public:
  // What one step attends of a (layer, head), besides what has not left the window.
  struct Attended {
    std::set<std::int64_t> positions;
    std::int64_t cluster_count = 0;
  };

  // `data_seed` decides keys and queries alone.
  PolicyDriver(std::string name, const PolicyOptions& options, std::uint64_t data_seed);

  RetrievalPolicy& policy() { return *policy_; }
  std::int64_t token_count() const { return token_count_; }
  std::int64_t stored_count() const { return stored_count_; }
  std::int64_t held_count(std::int32_t layer, std::int32_t head) const {
    return std::ssize(held_.at({layer, head}));
  }

  // Expects that the pass reads everything.
  void Prefill(std::int64_t token_count);
  // Expects that the plan names what is stored, each position once, and no more than is selected.
  void Step(std::int64_t count = 1);
  // What a step would attend now, all layers and heads.
  std::map<std::pair<std::int32_t, std::int32_t>, Attended> Plan(ThreadPool* pool = nullptr) const;
  // The share of the stored positions' attention that a step would see: each query head's softmax
  // over them, averaged over all heads and layers.
  double Recall() const;

  // Index rows of clusters that were stored: forgets those of which `lose` says so; how many
  // clusters have none, or one of fewer entries.
  void LoseRows(const std::function<bool(const ClusterRef&)>& lose);
  std::int64_t CountWithoutRow() const;

  // Puts a new policy in its place, with what a checkpoint keeps; of a fork, below a token.
  absl::Status Reopen() { return Fork(token_count_); }
  absl::Status Fork(std::int64_t token_count);

 private:
  using LayerHead = std::pair<std::int32_t, std::int32_t>;

  SelectionInput Input(std::int32_t layer, std::int64_t token_count,
                       const std::vector<float>& queries) const;
  std::vector<float> Keys(std::int32_t layer, std::int64_t first, std::int64_t count) const;
  std::vector<float> Queries(std::int32_t layer, std::int64_t token_count) const;
  Attended PlannedFor(const std::vector<FetchSlice>& plan, std::int32_t layer,
                      std::int32_t head) const;
  void Store(bool of_prompt);
  // The weights of the pass's last tokens, if the policy wants any: `attended` are the positions
  // below stored_count_, by (layer, head).
  void TellWeights(std::int64_t token_count,
                   const std::map<LayerHead, std::vector<std::int64_t>>& attended);
  // What the policy wants to see of its plan; whether there is anything.
  bool Adapt();
  LoadedCluster Load(std::int32_t layer, const ClusterRef& ref, const Positions& positions) const;
  void TakeRows();
  absl::Status RestoreIndex();
  absl::Status RebuildFromKeys();

  const std::string name_;
  const PolicyOptions options_;
  const std::uint64_t data_seed_;
  std::unique_ptr<RetrievalPolicy> policy_;
  std::int64_t token_count_ = 0;
  std::int64_t stored_count_ = 0;
  std::map<std::pair<std::int32_t, ClusterRef>, Positions> clusters_;  // by layer
  std::map<std::pair<std::int32_t, ClusterRef>, IndexRow> rows_;       // likewise
  std::map<LayerHead, std::map<std::int64_t, ClusterId>> held_;
};

}  // namespace cairn::compute
