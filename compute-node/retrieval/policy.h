// RetrievalPolicy decides, for one conversation, into which clusters entries go when they leave the
// window (ClusterKeeper), which clusters a query reads (EntrySelector), what of its index is in
// memory (PagedIndex), and what it learns from attention (WeightObserver). Callers take the part
// that they need.
//
// Threading:  as its parts.
// Ownership:  the parts live as long as the policy.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/kernels/key_codes.h"
#include "compute-node/kernels/ops.h"
#include "compute-node/retrieval/cluster_keeper.h"
#include "compute-node/retrieval/entry_selector.h"
#include "compute-node/retrieval/paged_index.h"
#include "compute-node/retrieval/selection_options.h"
#include "compute-node/retrieval/weight_observer.h"

namespace cairn::compute {

// What a policy is made from, equal for all of them.
struct PolicyOptions {
  EntryLayout layout;
  // Query heads that share a KV head.
  std::int64_t group_size = 1;
  RotaryPairs rotary_pairs = RotaryPairs::kAdjacent;
  // Of the KV node: a cluster that is to be one read must fit into it.
  std::int64_t part_bytes_max = 0;
  // The most that one slice asks for, at least one cluster.
  std::int64_t fetch_slice_bytes = std::int64_t{2} << 20;
  SelectionOptions selection;
  // Of a new conversation of kvswap; not valid: as the layout has it (kvswap_policy.h).
  KeyCodeShape small_keys{};

  absl::Status Validate() const;
};

// What a caller must know of a policy; the same for its whole life.
struct PolicyTraits {
  std::string_view name;  // a literal
  // Select ignores queries. Then a layer's clusters are requested while the layer before computes.
  bool selects_without_queries = false;
  // Select is asked with what a layer's queries are foreseen to be, and that is attended unless
  // they turn out to be far from it (session/attention/foreseen_queries.h); but for the first
  // layer, of which nothing is foreseen. Such a policy ranks by query sums.
  bool selects_ahead = false;
  // Select needs of the queries no more than their sums (fetch_plan.h).
  bool ranks_by_query_sums = false;
  // Store looks at keys.
  bool needs_keys = false;
  // It also looks at the queries of a prompt, and must know which dimensions are turned together.
  bool learns_from_queries = false;
  // It looks at values, there and wherever it looks at keys; and steps attend means of clusters.
  bool needs_values = false;
  // Steps attend what a prompt's weights decide: a prompt of two tokens is computed as a pass too.
  bool learns_from_prompts = false;
  // The keeper's Rebuild must see the keys of all clusters behind RestoreState: they are kept
  // instead of an index.
  bool rebuilds_from_keys = false;
};

class RetrievalPolicy {
 public:
  virtual ~RetrievalPolicy() = default;

  virtual PolicyTraits traits() const = 0;
  virtual const EntrySelector& selector() const = 0;
  virtual ClusterKeeper& keeper() = 0;
  const ClusterKeeper& keeper() const { return const_cast<RetrievalPolicy*>(this)->keeper(); }
  // Null: the policy has no index.
  virtual PagedIndex* paged_index() = 0;
  // Null: the policy has no use for attention weights.
  virtual WeightObserver* weight_observer() = 0;
};

// A policy in one piece, with the answers of one that holds nothing back, never changes a cluster,
// has no index and asks for no weights.
class BasicPolicy : public RetrievalPolicy, public EntrySelector, public ClusterKeeper {
 public:
  PolicyTraits traits() const final { return traits_; }
  const EntrySelector& selector() const final { return *this; }
  ClusterKeeper& keeper() final { return *this; }
  PagedIndex* paged_index() override { return nullptr; }
  WeightObserver* weight_observer() override { return nullptr; }

  std::optional<std::vector<Positions>> SelectHeld(const SelectionInput&) const override {
    return std::nullopt;
  }
  std::vector<std::vector<ClusterId>> Estimate(const SelectionInput&,
                                               std::span<const FetchSlice>) const override {
    return {};
  }
  void LoadMeans(std::int32_t, std::int32_t, std::span<const ClusterId>, KvBlock& block,
                 std::span<float>) const override {
    block.entry_count = 0;
  }
  std::int64_t WindowTokens(std::int64_t) const override { return 0; }
  std::vector<ClusterSplit> Adapt(std::int32_t, std::span<const LoadedCluster>) override {
    return {};
  }
  std::vector<ClusterGroup> Regroup(std::int32_t) override { return {}; }
  std::vector<ClusterSplit> Recluster(std::int32_t, std::span<const std::vector<LoadedCluster>>,
                                      ThreadPool&) override {
    return {};
  }
  absl::Status RestoreHeld(std::int32_t layer, const HeldEntry& held) override;
  absl::Status Rebuild(std::int32_t, std::span<const LoadedCluster>) override {
    return absl::OkStatus();
  }
  std::int64_t memory_bytes() const override { return 0; }
  std::int64_t token_memory_bytes() const override { return 0; }
  PolicyStatistics statistics() const override { return {}; }

 protected:
  explicit BasicPolicy(const PolicyTraits& traits) : traits_(traits) {}

 private:
  const PolicyTraits traits_;
};

}  // namespace cairn::compute
