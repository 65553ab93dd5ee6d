// PolicyWorld drives a policy as a conversation does, with keys made up, and keeps what the KV node
// and the window would: it knows where every position is, and checks what the policy says of it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "common/kv/index_record.h"
#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

// Records of rows, in which they lie, ascending.
std::vector<IndexRecord> RecordsOf(std::span<const IndexRow> rows);

class PolicyWorld {
 public:
  using Make = std::function<std::unique_ptr<RetrievalPolicy>(const PolicyOptions&)>;

  PolicyWorld(const PolicyOptions& options, Make make, std::uint64_t seed);

  RetrievalPolicy& policy() { return *policy_; }
  const PolicyOptions& options() const { return options_; }
  std::int64_t token_count() const { return token_count_; }
  // Position -> cluster, of what was appended.
  const std::map<std::int64_t, ClusterId>& places(std::int32_t layer, std::int32_t head) const {
    return places_.at({layer, head});
  }
  // Position -> cluster, of what is held back for one.
  const std::map<std::int64_t, ClusterId>& held(std::int32_t layer, std::int32_t head) const {
    return held_.at({layer, head});
  }
  // How many are held back.
  std::int64_t HeldCount(std::int32_t layer, std::int32_t head) const {
    const auto held = held_.find({layer, head});
    return held == held_.end() ? 0 : std::ssize(held->second);
  }
  // The key, without what is made of it in the store: f32.
  std::span<const float> Key(std::int32_t layer, std::int32_t head, std::int64_t position) const;

  // The value that belongs to a key: something else that it decides.
  static std::vector<float> ValueOf(std::span<const float> key);

  // A prompt of so many tokens, as one chunk.
  void Prefill(std::int64_t count);
  // One token: selects by random queries, and adapts.
  void Step();
  // Clusters anew, as behind a long prompt.
  void Regroup();
  // A step that was computed but failed.
  void FailedStep();
  // Saves the policy's state and goes on with a new one; at an earlier token if it is a fork.
  void Restart() { ForkAt(token_count_); }
  void ForkAt(std::int64_t token_count);
  // A restart that finds no index rows of these clusters.
  void RestartWithout(std::int32_t layer, const std::vector<ClusterRef>& lost);

  // Of the last step: the most entries that a head attended, window and held ones too.
  std::int64_t attended_count_max() const { return attended_count_max_; }
  // Its plan: positions attended in clusters, by (layer, head).
  const std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int64_t>>& attended()
      const {
    return attended_;
  }
  // Fails the test unless every position is in exactly one place.
  void CheckPlaces() const;

 private:
  using LayerHead = std::pair<std::int32_t, std::int32_t>;

  void MakeKeys(std::int64_t count);
  void Settle(std::int64_t token_count);
  // `queries` are those of the pass.
  void Leave(std::int32_t layer, std::int64_t until, std::span<const float> queries = {});
  // Some dimensions' larger than others'.
  std::vector<float> MakeQueries(std::int64_t token_count);
  void Split(std::int32_t layer, const ClusterSplit& split);
  std::vector<LoadedCluster> Select(std::int32_t layer);
  LoadedCluster Load(std::int32_t layer, const ClusterRef& cluster) const;
  std::int64_t WindowStartAt(std::int64_t token_count) const;

  PolicyOptions options_;
  Make make_;
  std::mt19937_64 random_;
  std::unique_ptr<RetrievalPolicy> policy_;
  std::int64_t token_count_ = 0;
  std::int64_t state_token_count_ = 0;
  std::vector<std::int64_t> stored_;                               // by layer
  std::map<LayerHead, std::vector<float>> keys_;                   // (position, dim)
  std::map<LayerHead, std::map<std::int64_t, ClusterId>> places_;  // appended
  std::map<LayerHead, std::map<std::int64_t, ClusterId>> held_;    // held for
  std::map<LayerHead, std::map<std::int64_t, IndexRow>> rows_;     // by cluster id
  std::map<LayerHead, std::vector<std::int64_t>> lost_rows_;       // by cluster id, of a restart
  std::vector<std::vector<LoadedCluster>> loaded_;                 // by layer
  std::map<LayerHead, std::vector<std::int64_t>> attended_;
  std::int64_t attended_count_max_ = 0;
};

}  // namespace cairn::compute
