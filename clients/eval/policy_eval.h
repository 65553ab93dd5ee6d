// Evaluate runs one text under several retrieval policies and under full attention in memory, token
// by token side by side, and measures how far each policy is from full attention. The KV node is in
// this process, over memory: answers are those of the daemons, times are not measured.
//
// The first tokens are a prompt, computed at once; the others are fed one by one as if they had
// been generated, whatever the distributions say (teacher forcing).
//
// Threading:  one call at a time for a model.
// Errors:     INVALID_ARGUMENT an option out of range, or more tokens than the model's context;
//             those of Conversation.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "clients/eval/attention_recall.h"
#include "clients/eval/cluster_shift.h"
#include "clients/eval/cluster_watch.h"
#include "clients/eval/divergence.h"
#include "common/base/status.h"
#include "common/kv/kv_format.h"
#include "compute-node/model/forward.h"
#include "compute-node/retrieval/policy.h"

namespace cairn::eval {

struct EvalOptions {
  std::vector<std::string> policies;  // each once
  compute::SelectionOptions selection;
  KvFormat kv_format = KvFormat::kF16;
  // Tokens of the prompt; at least one more must be there.
  std::int64_t prefill_tokens = 256;
  // Of the prompt, computed in one pass: as many as the model was loaded for.
  std::int64_t chunk_tokens = 4096;
  // At which of the fed tokens recall is measured: the first, and each so manieth behind it.
  std::int64_t recall_every = 8;
  // Whenever the conversation's tokens are a multiple of it, the index is looked at.
  std::int64_t index_every = 1024;
  // Whether clusters of policies with an index are followed, step by step (ClusterWatch), and
  // compared with other ways to make them (ClusterShift), behind the prompt, whenever the tokens
  // have doubled, and at the end.
  bool follow_clusters = false;
};

// What the index held when the conversation had so many tokens.
struct IndexSample {
  std::int64_t token_count = 0;
  compute::PolicyStatistics statistics;
};

// When the conversation had so many tokens.
struct ShiftSamples {
  std::int64_t token_count = 0;
  std::vector<ShiftSample> heads;  // by (layer, KV head)
};

struct PolicyResult {
  std::string policy;
  bool reads_everything = false;     // then there is no budget
  Divergence divergence;             // from full attention, of the tokens behind each fed one
  std::vector<HeadAttention> heads;  // by (layer, KV head)
  // Behind the prompt, at the multiples, and at the end; empty for a policy without an index.
  std::vector<IndexSample> index;
  // With follow_clusters, of a policy with an index.
  std::optional<ClusterCounts> clusters;
  std::vector<ShiftSamples> shift;
  std::int64_t entry_bytes = 0;  // one entry of one KV head
};

// Called behind each fed token.
using EvalProgress = std::function<void(std::int64_t fed_count, std::int64_t all_count)>;

// The results in the order of the policies. `tokens` are the prompt and those that are fed.
absl::StatusOr<std::vector<PolicyResult>> Evaluate(compute::Model& model,
                                                   std::span<const std::int32_t> tokens,
                                                   const EvalOptions& options,
                                                   const EvalProgress& progress);

}  // namespace cairn::eval
