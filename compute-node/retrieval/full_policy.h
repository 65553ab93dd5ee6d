// FullPolicy reads everything: attention as without Cairn, with the keys and values on flash.
// Cluster c (counted from 1) of a (layer, head) holds the consecutive positions [(c - 1) * R, c *
// R), where R entries fill the largest part. So a cluster is one sequential read, and a plan is a
// list of neighbours.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

inline constexpr std::int64_t kFullClusterEntriesMax = 256;
inline constexpr std::int64_t kFullClusterEntriesMin = 8;

class FullPolicy : public RetrievalPolicy {
 public:
  // REQUIRES: options.Validate() is OK.
  explicit FullPolicy(const PolicyOptions& options);

  std::string_view name() const override { return "full"; }
  bool selects_without_queries() const override { return true; }
  std::vector<FetchSlice> Select(const SelectionInput& input) override;
  std::vector<Assignment> Store(const LeavingEntries& leaving) override;
  std::vector<std::int64_t> NextClusterIds() const override;
  PutPolicyState SaveState() const override;
  absl::Status RestoreState(std::int32_t version, std::string_view state,
                            std::span<const std::int64_t> next_cluster_ids) override;

  std::int64_t cluster_entries() const { return cluster_entries_; }

 private:
  const PolicyOptions options_;
  std::int64_t cluster_entries_;
  std::vector<std::int64_t> next_ids_;  // by layer; the same for every head
};

}  // namespace cairn::compute
