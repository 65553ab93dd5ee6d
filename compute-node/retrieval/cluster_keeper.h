// ClusterKeeper is the part of a retrieval policy that says into which clusters entries go, what
// becomes of the clusters later, and what of that a checkpoint stores. It neither talks to the KV
// node nor computes attention, so it can be driven from a recorded trace too.
//
// Units:      positions and counts in tokens.
// Threading:  one thread at a time, as the conversation that owns it; but Store without a pool and
//             Adapt may run for several layers at once.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/kernels/thread_pool.h"

namespace cairn::compute {

// Entries that leave the window together, all heads of one layer: consecutive positions, which
// follow those that left before.
struct LeavingEntries {
  std::int32_t layer = 0;
  std::int64_t first_position = 0;
  std::int64_t token_count = 0;
  // (KV head, token, head_dim), rotated, as attention will read them; empty unless the policy needs
  // keys.
  std::span<const float> keys{};
  // Their values, likewise; empty unless it needs values.
  std::span<const float> values{};
  // Of the pass in which they leave, (token, query head, head_dim), rotated; empty between passes.
  std::span<const float> queries{};
  ThreadPool* pool = nullptr;  // as in SelectionInput
  bool of_prompt = false;      // whether they leave in a pass of several tokens
};

// Wherever a cluster is named here it may be one of all heads (kAllHeads): then its positions are
// those of each head, and for each position its rows are those of one head after the other.

// Positions of the cluster's head that go into `cluster`: of entries that leave now, or that were
// held back earlier, for a cluster of the same head.
struct Assignment {
  ClusterRef cluster;
  Positions positions;
};

// An entry that left the window and waits in memory for a cluster: a delayed split's buffer.
// Attended at every step, unless SelectHeld says otherwise.
struct HeldEntry {
  ClusterRef cluster;  // that it belongs to
  std::int64_t position = 0;
};

// Where entries go: every head and position either appended or held, exactly once.
struct StoreActions {
  std::vector<Assignment> appended;  // positions ascending within a cluster
  std::vector<HeldEntry> held;
};

// The entries of a cluster that was fetched, and behind them those that are held for it.
struct LoadedCluster {
  ClusterRef cluster;
  Positions positions{};
  std::int64_t stored_count = 0;  // of them in the KV node; the others are held
  std::vector<float> keys{};      // (position, head of the cluster, head_dim)
  std::vector<float> values{};    // likewise; empty unless it needs values
};

// Instead of some clusters others of the same entries, and of those that were held for them.
struct ClusterSplit {
  std::int32_t head = 0;
  std::vector<ClusterId> parent_ids;
  std::vector<ChildCluster> children;
};

// Clusters of one layer and head whose entries are clustered anew together.
struct ClusterGroup {
  std::vector<ClusterRef> clusters;
  std::vector<std::int64_t> entry_counts;  // of each, in the KV node
};

// What a session goes on from.
struct StoredPolicyState {
  // Nothing was stored of it.
  bool is_new() const { return version == 0 && next_cluster_ids.empty(); }

  std::int32_t version = 0;
  std::string_view state;
  std::span<const std::int64_t> next_cluster_ids;
  // Tokens that the session holds, and those it held when the state was stored: more, if it was
  // forked from an earlier token. What lay behind is invisible, but its cluster ids stay used.
  std::int64_t token_count = 0;
  std::int64_t state_token_count = 0;
};

// What the index of one (layer, head) holds, without sinks.
struct HeadStatistics {
  std::int64_t cluster_count = 0;
  std::int64_t entry_count = 0;
  // Mean squared distance of an entry from its cluster's centroid, as the index knows it (for
  // dynakv: between stretched keys, query_metric.h).
  double variance = 0;
  std::int64_t held_count = 0;   // entries that wait for a cluster
  std::int64_t split_count = 0;  // since the policy was made
};

struct PolicyStatistics {
  std::vector<HeadStatistics> heads{};  // by (layer, head); empty: the policy has no index
};

class ClusterKeeper {
 public:
  virtual ~ClusterKeeper() = default;

  // Newest tokens that stay out of the clusters when the conversation holds `token_count`; 0: as
  // many as the session has room for. The session keeps fewer where its window has no room for them
  // and for what leaves it together. Never so many more for a longer conversation that the oldest
  // of them would have to come back.
  virtual std::int64_t WindowTokens(std::int64_t token_count) const = 0;

  // Where leaving entries go.
  virtual StoreActions Store(const LeavingEntries& leaving) = 0;

  // What becomes of clusters that were planned with `adapt`: called between two steps, with those
  // of one layer in the order of the plan.
  virtual std::vector<ClusterSplit> Adapt(std::int32_t layer,
                                          std::span<const LoadedCluster> clusters) = 0;

  // Behind a prompt of several chunks: which clusters of a layer are to be clustered anew, and what
  // becomes of them. Called between two passes; groups are loaded, and given to Recluster, some at
  // a time, each of them whole.
  virtual std::vector<ClusterGroup> Regroup(std::int32_t layer) = 0;
  virtual std::vector<ClusterSplit> Recluster(std::int32_t layer,
                                              std::span<const std::vector<LoadedCluster>> groups,
                                              ThreadPool& pool) = 0;

  // The next unused cluster ids, layer-major, head_count + 1 for each layer (the last: all heads).
  virtual std::vector<std::int64_t> NextClusterIds() const = 0;

  // What a checkpoint stores, and the reverse. INVALID_ARGUMENT for a state that this policy did
  // not write.
  virtual PutPolicyState SaveState() const = 0;
  virtual absl::Status RestoreState(const StoredPolicyState& stored) = 0;
  // A held entry that a checkpoint stored; they come in the order of their positions.
  virtual absl::Status RestoreHeld(std::int32_t layer, const HeldEntry& held) = 0;
  // Of a policy that rebuilds from keys: those of all clusters, behind RestoreState. Each layer's
  // come in one call, by head, then id; entries that are held for no cluster of the KV node come as
  // a cluster of which nothing is stored. Those of all heads come first.
  virtual absl::Status Rebuild(std::int32_t layer, std::span<const LoadedCluster> clusters) = 0;

  // Memory of the index and of all else that a conversation's length decides.
  virtual std::int64_t memory_bytes() const = 0;
  // What each token keeps in memory as long as the conversation lasts, where the budget must have
  // room for it; 0 of policies that keep little, or that are only compared with.
  virtual std::int64_t token_memory_bytes() const = 0;
  virtual PolicyStatistics statistics() const = 0;
};

}  // namespace cairn::compute
