// RetrievalPolicy decides, for one conversation, into which clusters entries go when they leave the
// window and which clusters a query reads. It sees keys and queries and answers with plain values:
// it neither talks to the KV node nor computes attention, so it can be driven from a recorded trace
// too.
//
// Units:      positions and counts in tokens; a plan's bytes are entry bytes.
// Threading:  one thread at a time, as the conversation that owns it; but Store without a pool and
//             Adapt may run for several layers at once.
// Invariants: the clusters of one Select together hold each position at most once for each head.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/kv/index_record.h"
#include "common/kv/messages.h"
#include "compute-node/kernels/attention.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/retrieval/query_metric.h"
#include "compute-node/retrieval/selection_options.h"

namespace cairn::compute {

// A cluster to be read, and what it must hold: anything else in the answer is an error.
struct PlannedCluster {
  ClusterRef cluster;
  std::int64_t entry_count = 0;
  // Empty for a policy that keeps no positions: then only the count is compared.
  Positions positions{};
  // Whether Adapt wants to see its entries afterwards.
  bool adapt = false;
  // Which of its entries are attended, ascending indices; empty: all of them.
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

// Entries that leave the window together, all heads of one layer: consecutive positions, which
// follow those that left before.
struct LeavingEntries {
  std::int32_t layer = 0;
  std::int64_t first_position = 0;
  std::int64_t token_count = 0;
  // (KV head, token, head_dim), rotated, as attention will read them; empty unless needs_keys().
  std::span<const float> keys{};
  // Their values, likewise; empty unless needs_values().
  std::span<const float> values{};
  // Of the pass in which they leave, (token, query head, head_dim), rotated; empty between passes.
  std::span<const float> queries{};
  ThreadPool* pool = nullptr;  // as in SelectionInput
  // Whether they leave in a pass of several tokens, and what the conversation holds then.
  bool of_prompt = false;
  std::int64_t conversation_token_count = 0;
};

// Positions of the cluster's head that go into `cluster`: of entries that leave now, or that were
// held back earlier.
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
  std::vector<float> keys{};      // (position, head_dim)
  std::vector<float> values{};    // likewise; empty unless needs_values()
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

  absl::Status Validate() const;
};

// What a session goes on from. Version 0 without state and ids: it is new.
struct StoredPolicyState {
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

class RetrievalPolicy {
 public:
  virtual ~RetrievalPolicy() = default;

  virtual std::string_view name() const = 0;

  // Whether Select ignores queries. Then a layer's clusters are requested while the layer before
  // computes.
  virtual bool selects_without_queries() const = 0;
  // Whether Select is asked with what a layer's queries are foreseen to be, and that is attended
  // unless they turn out to be far from it (session/foreseen_queries.h); but for the first layer,
  // of which nothing is foreseen.
  virtual bool selects_ahead() const { return false; }
  // Whether Select needs of the queries no more than their sums (query_sum.h). So must whoever
  // selects ahead.
  virtual bool ranks_by_query_sums() const { return false; }
  // Whether Store looks at keys.
  virtual bool needs_keys() const { return false; }
  // Whether it looks at values, there and wherever it looks at keys.
  virtual bool needs_values() const { return false; }

  // Newest tokens that stay out of the clusters when the conversation holds `token_count`; 0: as
  // many as the session has room for. The session keeps fewer where its window has no room for them
  // and for what leaves it together. Never so many more for a longer conversation that the oldest
  // of them would have to come back.
  virtual std::int64_t WindowTokens(std::int64_t token_count) const {
    static_cast<void>(token_count);
    return 0;
  }

  // What attention reads for a layer, in the order in which it is attended. Changes nothing: the
  // same step may be computed again.
  virtual std::vector<FetchSlice> Select(const SelectionInput& input) const = 0;

  // Which held entries the same input attends, by KV head; nullopt: all of them.
  virtual std::optional<std::vector<Positions>> SelectHeld(const SelectionInput& input) const {
    static_cast<void>(input);
    return std::nullopt;
  }

  // Clusters that the same input attends by their means beside what `plan`, which Select made of
  // it, reads: for each KV head ascending ids. Empty: none.
  virtual std::vector<std::vector<ClusterId>> Estimate(const SelectionInput& input,
                                                       std::span<const FetchSlice> plan) const {
    static_cast<void>(input);
    static_cast<void>(plan);
    return {};
  }
  // The means of such clusters' keys and values, up to kAttentionBlockEntries of a head in
  // ascending order, as a block; `counts`, as many, take how many entries each stands for.
  virtual void LoadMeans(std::int32_t layer, std::int32_t head, std::span<const ClusterId> clusters,
                         KvBlock& block, std::span<float> counts) const {
    static_cast<void>(layer);
    static_cast<void>(head);
    static_cast<void>(clusters);
    static_cast<void>(counts);
    block.entry_count = 0;
  }

  // Where leaving entries go.
  virtual StoreActions Store(const LeavingEntries& leaving) = 0;

  // What becomes of clusters that were planned with `adapt`: called between two steps, with those
  // of one layer in the order of the plan.
  virtual std::vector<ClusterSplit> Adapt(std::int32_t layer,
                                          std::span<const LoadedCluster> clusters) {
    static_cast<void>(layer);
    static_cast<void>(clusters);
    return {};
  }

  // Memory of the index and of all else that a conversation's length decides.
  virtual std::int64_t memory_bytes() const { return 0; }
  // What the clusters of a layer take here while its index is unloaded, and their rows in the KV
  // node, about; 0 for a policy whose clusters are few.
  virtual std::int64_t ClusterBytes(std::int32_t layer) const {
    static_cast<void>(layer);
    return 0;
  }

  // Behind a prompt of several chunks: which clusters of a layer are to be clustered anew, and what
  // becomes of them. Called between two passes; groups are loaded, and given to Recluster, some at
  // a time, each of them whole.
  virtual std::vector<ClusterGroup> Regroup(std::int32_t layer) {
    static_cast<void>(layer);
    return {};
  }
  virtual std::vector<ClusterSplit> Recluster(std::int32_t layer,
                                              std::span<const std::vector<LoadedCluster>> groups,
                                              ThreadPool& pool) {
    static_cast<void>(layer);
    static_cast<void>(groups);
    static_cast<void>(pool);
    return {};
  }

  virtual PolicyStatistics statistics() const { return {}; }

  // The next unused cluster ids, layer-major, head_count + 1 for each layer (the last: all heads).
  virtual std::vector<std::int64_t> NextClusterIds() const = 0;

  // What a checkpoint stores, and the reverse. INVALID_ARGUMENT for a state that this policy did
  // not write.
  virtual PutPolicyState SaveState() const = 0;
  virtual absl::Status RestoreState(const StoredPolicyState& stored) = 0;

  // Index rows of a layer, for a policy that has an index. TakeChangedRows: those that the next
  // checkpoint must store; ReturnRows: these were not stored after all. RestoreIndex: what the last
  // one stored, ascending; `clusters` are all those that the session sees, or null when the records
  // are known to be complete and of whole clusters. It may leave the index unloaded.
  virtual bool has_index() const { return false; }
  virtual std::vector<IndexRow> TakeChangedRows(std::int32_t layer) {
    static_cast<void>(layer);
    return {};
  }
  virtual void ReturnRows(std::int32_t layer, std::span<const ClusterRef> clusters) {
    static_cast<void>(layer);
    static_cast<void>(clusters);
  }
  virtual absl::Status RestoreIndex(std::int32_t layer, std::span<const IndexRecord> records,
                                    const std::vector<ClusterInfo>* clusters, ThreadPool& pool) {
    static_cast<void>(layer);
    static_cast<void>(records);
    static_cast<void>(clusters);
    static_cast<void>(pool);
    return absl::OkStatus();
  }
  // Of an index only what Select needs may be in memory; LoadIndex brings the rest from the rows
  // that were taken. Estimate, LoadMeans, Regroup and, where StoreReadsIndex says so, Store need
  // it; what changed and was not taken stays in memory. IndexBytes: what UnloadIndex frees, when
  // the layer is loaded; 0: nothing.
  virtual std::int64_t IndexBytes(std::int32_t layer) const {
    static_cast<void>(layer);
    return 0;
  }
  virtual bool IndexIsLoaded(std::int32_t layer) const {
    static_cast<void>(layer);
    return true;
  }
  virtual bool StoreReadsIndex(const LeavingEntries& leaving) const {
    static_cast<void>(leaving);
    return true;
  }
  // Of two records of a cluster the later counts. Returns the number of clusters that lack one:
  // FlagUnknown says that this is so, and not for want of a better answer. REQUIRES: not loaded.
  virtual std::int64_t LoadIndex(std::int32_t layer, std::span<const IndexRecords> records,
                                 ThreadPool& pool) {
    static_cast<void>(layer);
    static_cast<void>(records);
    static_cast<void>(pool);
    return 0;
  }
  virtual void FlagUnknown(std::int32_t layer) { static_cast<void>(layer); }
  virtual void UnloadIndex(std::int32_t layer) { static_cast<void>(layer); }
  // For a policy that keeps keys instead of an index: whether it must see those of all clusters
  // again behind RestoreState. Each layer's come in one call, by head, then id; entries that are
  // held for no cluster of the KV node come as a cluster of which nothing is stored.
  virtual bool rebuilds_from_keys() const { return false; }
  virtual absl::Status Rebuild(std::int32_t layer, std::span<const LoadedCluster> clusters) {
    static_cast<void>(layer);
    static_cast<void>(clusters);
    return absl::OkStatus();
  }
  // Memory for such keys, which memory_bytes() leaves out: what a table of policies reports apart
  // from what counts as memory of a conversation.
  virtual std::int64_t kept_key_bytes() const { return 0; }
  // A held entry that a checkpoint stored; they come in the order of their positions.
  virtual absl::Status RestoreHeld(std::int32_t layer, const HeldEntry& held) {
    return InvalidArgument("policy {} holds nothing back, but layer {} has position {} held",
                           name(), layer, held.position);
  }
};

// Names that MakePolicy knows.
std::span<const std::string_view> PolicyNames();
// INVALID_ARGUMENT for an unknown name; the message lists the known ones.
absl::StatusOr<std::unique_ptr<RetrievalPolicy>> MakePolicy(std::string_view name,
                                                            const PolicyOptions& options);

}  // namespace cairn::compute
