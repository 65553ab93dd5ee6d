// RetrievalPolicy decides, for one conversation, into which clusters entries go when they leave the
// window and which clusters a query reads. It sees keys and queries and answers with plain values:
// it neither talks to the KV node nor computes attention, so it can be driven from a recorded trace
// too.
//
// Units:      positions and counts in tokens; a plan's bytes are entry bytes.
// Threading:  one thread at a time, as the conversation that owns it.
// Invariants: the clusters of one Select together hold each position at most once for each head.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/kv/messages.h"

namespace cairn::compute {

// A cluster to be read, and what it must hold: anything else in the answer is an error.
struct PlannedCluster {
  ClusterRef cluster;
  Positions positions;
};

// What one fetch asks for.
struct FetchSlice {
  std::vector<PlannedCluster> clusters;
  std::int64_t bytes = 0;
};

struct SelectionInput {
  std::int32_t layer = 0;
  // Positions [0, stored_token_count) of this layer are in the KV node.
  std::int64_t stored_token_count = 0;
  // (token, query head, head_dim), rotated; empty for a policy that selects without queries.
  std::span<const float> queries{};
};

// Entries that leave the window together, all heads of one layer: consecutive positions, which
// follow those that left before.
struct LeavingEntries {
  std::int32_t layer = 0;
  std::int64_t first_position = 0;
  std::int64_t token_count = 0;
};

// Positions [first_position, first_position + token_count) of the cluster's head go into `cluster`.
struct Assignment {
  ClusterRef cluster;
  std::int64_t first_position = 0;
  std::int64_t token_count = 0;
};

struct PolicyOptions {
  EntryLayout layout;
  // Of the KV node: a cluster that is to be one read must fit into it.
  std::int64_t part_bytes_max = 0;
  // The most that one slice asks for, at least one cluster.
  std::int64_t fetch_slice_bytes = std::int64_t{2} << 20;

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

class RetrievalPolicy {
 public:
  virtual ~RetrievalPolicy() = default;

  virtual std::string_view name() const = 0;

  // Whether Select ignores queries. Then a layer's clusters are requested while the layer before
  // computes.
  virtual bool selects_without_queries() const = 0;

  // What attention reads for a layer, in the order in which it is attended.
  virtual std::vector<FetchSlice> Select(const SelectionInput& input) = 0;

  // Where leaving entries go: every head and position exactly once, ascending within a cluster.
  virtual std::vector<Assignment> Store(const LeavingEntries& leaving) = 0;

  // The next unused cluster ids, layer-major, head_count + 1 for each layer (the last: all heads).
  virtual std::vector<std::int64_t> NextClusterIds() const = 0;

  // What a checkpoint stores, and the reverse. INVALID_ARGUMENT for a state that this policy did
  // not write.
  virtual PutPolicyState SaveState() const = 0;
  virtual absl::Status RestoreState(const StoredPolicyState& stored) = 0;
};

// INVALID_ARGUMENT for an unknown name; the message lists the known ones.
absl::StatusOr<std::unique_ptr<RetrievalPolicy>> MakePolicy(std::string_view name,
                                                            const PolicyOptions& options);

}  // namespace cairn::compute
