// EntrySelector is the part of a retrieval policy that says what a step attends: which clusters are
// read, and which are attended by their means alone. It sees queries and answers with plain values.
//
// Units:      positions and counts in tokens; a plan's bytes are entry bytes.
// Threading:  one thread at a time, as the conversation that owns it.
// Invariants: the clusters of one Select together hold each position at most once for each head.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/kv/messages.h"
#include "compute-node/kernels/attention.h"
#include "compute-node/kernels/thread_pool.h"

namespace cairn::compute {

// A cluster to be read, of one KV head or of all (kAllHeads), and what it must hold: anything else
// in the answer is an error.
struct PlannedCluster {
  ClusterRef cluster;
  std::int64_t entry_count = 0;
  // Empty for a policy that keeps no positions: then only the count is compared.
  Positions positions{};
  // Whether Adapt wants to see its entries afterwards.
  bool adapt = false;
  // Which of its entries are attended, by each of its heads, ascending indices; empty: all of them.
  std::vector<std::int32_t> attended{};
};

// What one fetch asks for.
struct FetchSlice {
  std::vector<PlannedCluster> clusters;
  std::int64_t bytes = 0;
};

struct SelectionInput {
  std::int32_t layer = 0;
  // Positions [0, stored_token_count) of this layer have left the window.
  std::int64_t stored_token_count = 0;
  // Of the first query: all positions before it are there.
  std::int64_t first_position = 0;
  // Of the queries' tokens. Of several tokens (a prompt) every one sees everything.
  std::int64_t token_count = 1;
  // (token, query head, head_dim), rotated; empty for a policy that selects without queries. For
  // one that ranks by query sums also, of one token, (KV head, head_dim): those sums.
  std::span<const float> queries{};
  // For work that is worth sharing; null: none may be shared.
  ThreadPool* pool = nullptr;
};

class EntrySelector {
 public:
  virtual ~EntrySelector() = default;

  // What attention reads for a layer, in the order in which it is attended. Changes nothing: the
  // same step may be computed again.
  virtual std::vector<FetchSlice> Select(const SelectionInput& input) const = 0;

  // Which held entries the same input attends, by KV head; nullopt: all of them.
  virtual std::optional<std::vector<Positions>> SelectHeld(const SelectionInput& input) const = 0;

  // Clusters that the same input attends by their means beside what `plan`, which Select made of
  // it, reads: for each KV head ascending ids. Empty: none.
  virtual std::vector<std::vector<ClusterId>> Estimate(const SelectionInput& input,
                                                       std::span<const FetchSlice> plan) const = 0;
  // The means of such clusters' keys and values, up to kAttentionBlockEntries of a head in
  // ascending order, as a block; `counts`, as many, take how many entries each stands for.
  virtual void LoadMeans(std::int32_t layer, std::int32_t head, std::span<const ClusterId> clusters,
                         KvBlock& block, std::span<float> counts) const = 0;
};

}  // namespace cairn::compute
