// SelectionOptions: how much of a conversation a step reads, and how clusters are made. The words
// are those of docs/architecture.md, "Words". Values; see Validate for the ranges.
#pragma once

#include <cstdint>

#include "common/base/status.h"

namespace cairn::compute {

// The first tokens of a conversation, which every step attends (Xiao et al., "Efficient Streaming
// Language Models with Attention Sinks", 2023).
inline constexpr std::int64_t kSinkTokens = 4;
inline constexpr std::int64_t kSparseWindowTokensMin = 16;
inline constexpr std::int64_t kSparseWindowTokensMax = 120;
// Entries that wait for delayed splits, for one head.
inline constexpr std::int64_t kHeldEntriesMax = 16;

struct SelectionOptions {
  // What a step attends for each KV head, in percent of the conversation's tokens: everything
  // counts, also what is in memory.
  double select_percent = 3;
  // But at least and at most so many tokens.
  std::int64_t select_tokens_min = 192;
  std::int64_t select_tokens_max = 1024;
  // Entries of a cluster, on average; twice as many at most.
  std::int64_t cluster_target_entries = 8;
  // Of whatever is random: equal seeds give equal clusters.
  std::uint64_t seed = 0;
  // Of the clusters that a step does not read so many percent, the best ones, are attended by the
  // means of their keys and values; 0: none. Only of dynakv.
  double estimate_percent = 0;
  // Whether all layers but the first select by what their queries are foreseen to be while the
  // layer before is computed, so that what they attend is there in time. Heads of which that was
  // wrong select anew. Only of dynakv and kvswap.
  bool select_ahead = true;

  std::int64_t cluster_entries_max() const { return 2 * cluster_target_entries; }
  absl::Status Validate() const;
  friend bool operator==(const SelectionOptions&, const SelectionOptions&) = default;
};

// Tokens that a step attends at most for each KV head, when `token_count` are there.
std::int64_t SelectedTokens(const SelectionOptions& options, std::int64_t token_count);
// How many of these are the newest ones; behind long contexts the session's window has room for
// fewer (compute-node/session/entries/window.h).
std::int64_t SparseWindowTokens(const SelectionOptions& options, std::int64_t token_count);
// How many may wait for delayed splits, for each KV head.
std::int64_t HeldEntriesMax(const SelectionOptions& options, std::int64_t token_count);

}  // namespace cairn::compute
