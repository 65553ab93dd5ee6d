// FullPolicy reads everything: attention as without Cairn, with the keys and values on flash. Its
// clusters are in sequence order (sequence_clusters.h), and R entries fill the largest part. So a
// cluster is one sequential read, and a plan is a list of neighbours.
#pragma once

#include <vector>

#include "compute-node/retrieval/clustering/sequence_clusters.h"
#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

inline constexpr std::int64_t kFullClusterEntriesMax = 256;
inline constexpr std::int64_t kFullClusterEntriesMin = 8;

class FullPolicy : public BasicPolicy {
 public:
  // REQUIRES: options.Validate() is OK.
  explicit FullPolicy(const PolicyOptions& options)
      : FullPolicy({.name = "full", .selects_without_queries = true}, options) {}

  std::vector<FetchSlice> Select(const SelectionInput& input) const override;
  StoreActions Store(const LeavingEntries& leaving) override;
  std::vector<std::int64_t> NextClusterIds() const override { return clusters_.NextClusterIds(); }
  PutPolicyState SaveState() const override;
  absl::Status RestoreState(const StoredPolicyState& stored) override;

  std::int64_t cluster_entries() const { return clusters_.cluster_entries(); }

 protected:
  // One that keeps entries like it.
  FullPolicy(const PolicyTraits& traits, const PolicyOptions& options);

 private:
  const PolicyOptions options_;
  SequenceClusters clusters_;
};

}  // namespace cairn::compute
