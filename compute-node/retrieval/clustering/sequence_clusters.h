// SequenceClusters are clusters of consecutive positions: cluster i of every (layer, head), or of
// all heads of a layer, holds [i * R, (i + 1) * R). It says where leaving entries go, which cluster
// holds what, and keeps ids right over forks.
//
// Its id is i + 1, until a fork makes clusters invisible whose ids stay used: from there on ids go
// on above them.
//
// Units:      entries; R is cluster_entries().
// Threading:  as ClusterKeeper.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "compute-node/retrieval/cluster_keeper.h"
#include "compute-node/retrieval/entry_selector.h"
#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

// Forks of forks, each from before the one before: more are refused.
inline constexpr std::int64_t kIdRangesMax = 1024;

class SequenceClusters {
 public:
  struct Options {
    std::string_view policy;  // for messages; a literal
    EntryLayout layout;
    std::int64_t cluster_entries = 0;  // of a new conversation
    // Of a stored one: clusters keep the length that they were made with.
    std::int64_t cluster_entries_min = 0;
    std::int64_t cluster_entries_max = 0;
    bool of_all_heads = false;
  };
  explicit SequenceClusters(const Options& options);

  std::int64_t cluster_entries() const { return cluster_entries_; }
  ClusterId IdAt(std::int64_t index) const;
  // The whole of a head's cluster `index`, as far as it is below `stored_token_count`. `head` is
  // kAllHeads where clusters are of all heads.
  PlannedCluster Plan(std::int32_t head, std::int64_t index, std::int64_t stored_token_count) const;
  // What reads all that is stored, position by position.
  std::vector<FetchSlice> PlanAll(const PolicyOptions& options,
                                  std::int64_t stored_token_count) const;
  std::vector<Assignment> Store(const LeavingEntries& leaving);
  // As ClusterKeeper answers it.
  std::vector<std::int64_t> NextClusterIds() const;

  // What a state has of it: cluster_entries() and, behind a fork, ranges of ids.
  static constexpr std::int64_t kNumbersMax = 1 + 2 * kIdRangesMax;
  std::vector<std::int64_t> Numbers() const;
  // The reverse; numbers come from disk. INVALID_ARGUMENT if they are none of these;
  // RESOURCE_EXHAUSTED if the fork is one too many.
  absl::Status Restore(const StoredPolicyState& stored, std::span<const std::int64_t> numbers);
  // For a new conversation.
  void Clear();

 private:
  // From cluster `first_index` on ids count up from `first_id`.
  struct IdRange {
    std::int64_t first_index;
    std::int64_t first_id;
  };

  absl::Status ReadNumbers(const StoredPolicyState& stored, std::span<const std::int64_t> numbers);
  void ForgetBehind(std::int64_t token_count);

  const Options options_;
  std::int64_t cluster_entries_;
  std::vector<IdRange> id_ranges_ = {{0, 1}};  // ascending
  std::vector<std::int64_t> next_ids_;         // by layer; the same for every head
};

}  // namespace cairn::compute
