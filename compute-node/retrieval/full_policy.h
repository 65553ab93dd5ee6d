// FullPolicy reads everything: attention as without Cairn, with the keys and values on flash.
// Cluster i of a (layer, head) holds the consecutive positions [i * R, (i + 1) * R), where R
// entries fill the largest part. So a cluster is one sequential read, and a plan is a list of
// neighbours.
//
// Its id is i + 1, until a fork makes clusters invisible whose ids stay used: from there on ids go
// on above them.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

inline constexpr std::int64_t kFullClusterEntriesMax = 256;
inline constexpr std::int64_t kFullClusterEntriesMin = 8;
// Forks of forks, each from before the one before: more are refused.
inline constexpr std::int64_t kIdRangesMax = 1024;

class FullPolicy : public RetrievalPolicy {
 public:
  // REQUIRES: options.Validate() is OK.
  explicit FullPolicy(const PolicyOptions& options);

  std::string_view name() const override { return "full"; }
  bool selects_without_queries() const override { return true; }
  std::vector<FetchSlice> Select(const SelectionInput& input) const override;
  StoreActions Store(const LeavingEntries& leaving) override;
  std::vector<std::int64_t> NextClusterIds() const override;
  PutPolicyState SaveState() const override;
  absl::Status RestoreState(const StoredPolicyState& stored) override;

  std::int64_t cluster_entries() const { return cluster_entries_; }

 private:
  // From cluster `first_index` on ids count up from `first_id`.
  struct IdRange {
    std::int64_t first_index;
    std::int64_t first_id;
  };

  ClusterId IdAt(std::int64_t index) const;
  absl::Status ReadState(const StoredPolicyState& stored);
  void ForgetBehind(std::int64_t token_count);

  const PolicyOptions options_;
  std::int64_t cluster_entries_;
  std::vector<IdRange> id_ranges_ = {{0, 1}};  // ascending
  std::vector<std::int64_t> next_ids_;         // by layer; the same for every head
};

}  // namespace cairn::compute
