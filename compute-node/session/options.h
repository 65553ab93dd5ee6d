// SessionOptions: how conversations of one model are computed and stored. Values; see Validate for
// the ranges.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/retrieval/policy_choice.h"

namespace cairn::compute {

struct SessionOptions {
  // Behaviour.
  // Tokens of a conversation, at most. 0: as many as the model was made for; never more.
  std::int64_t context_tokens_max = 0;
  // How keys and values are stored. A conversation keeps the format that it was started with.
  KvFormat kv_format = KvFormat::kF16;
  // Of a new conversation, unless it is made with another one.
  PolicyChoice policy{};

  // Performance.
  // Tokens of a prompt that are computed in one pass: larger is faster and takes more memory (one
  // layer's entries of a chunk, and the model's activations); the model must be loaded for it.
  std::int64_t prefill_chunk_tokens = 4096;
  // Newest tokens that stay in memory, 64 to 128.
  std::int64_t window_tokens_max = 128;
  // One read from the KV node, of which kSlicesInFlightMax are under way at once.
  std::int64_t fetch_slice_bytes = std::int64_t{2} << 20;
  // Policies that choose by queries: whether a step asks for what the next layer will probably
  // select, while it computes this one.
  bool predict_selection = true;
  // Policies that choose by queries: whether clusters that steps attended last are kept in memory,
  // as far as there is room (KeptClusterBytes).
  bool keep_clusters = true;
  // Policies that cluster: whether the clusters of a prompt that took several chunks are made again
  // over all of them.
  bool recluster_prompts = true;
  // For measurements only: tokens of a prompt attend their own chunk and what is in memory.
  bool local_prompts = false;
  // Of kvswap: how small keys are made, as KeyCodeShape::Parse reads it; empty: as the policy has
  // it for the model. A conversation keeps what it was started with.
  std::string small_key_bits{};
  // All memory for keys and values of a conversation; bounds the replay buffer and what is kept of
  // clusters.
  std::int64_t dram_budget_bytes = std::int64_t{64} << 20;

  absl::Status Validate() const;
};

// Bytes of operations after which a decoding conversation takes a checkpoint.
std::int64_t CheckpointReplayBytes(const SessionOptions& options, const EntryLayout& layout);

// How much a conversation keeps of the clusters of a layer that its steps attended last, so that
// the next ones read less: what the window, and what all clusters take for themselves, leave of
// half of the budget. The other half is for what is on its way: the replay buffer, messages,
// replies, and the KV node's arena. Tokens do not depend on it (docs/decisions/0027-*).
//
// Layers have about as many clusters each: every layer asks as if all were like it, whose clusters
// take `cluster_bytes` for themselves.
std::int64_t KeptClusterBytes(const SessionOptions& options, const EntryLayout& layout,
                              std::int64_t cluster_bytes);

// The most tokens of a conversation each of which keeps so much in memory: as many as the budget
// has room for; without a limit where that is 0.
std::int64_t MemoryTokensMax(const SessionOptions& options, std::int64_t token_memory_bytes);

// What a prompt, whose keys and values have `kv_bytes`, may take on flash at once.
std::int64_t PromptFlashBytes(const SessionOptions& options, const PolicyChoice& policy,
                              std::int64_t kv_bytes, std::int64_t token_count);

}  // namespace cairn::compute
