// PagePolicy is what policies share that choose single tokens, with the entries in sequence order
// on flash: clusters are pages of consecutive entries, as many as one read of the device brings
// anyway, and a page is read when one of its entries is chosen.
//
// A step attends for each KV head at most SelectedTokens entries: what has not left the window, the
// sinks, and of the others those that a derived class chooses.
//
// Threading:  as RetrievalPolicy; Choose may run for several heads at once.
#pragma once

#include <cstdint>
#include <vector>

#include "compute-node/retrieval/clustering/sequence_clusters.h"
#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

// What a device reads at least.
inline constexpr std::int64_t kPageBytes = 4096;
inline constexpr std::int64_t kPageEntriesMax = 64;

class PagePolicy : public BasicPolicy {
 public:
  std::int64_t WindowTokens(std::int64_t token_count) const override;
  std::vector<FetchSlice> Select(const SelectionInput& input) const final;
  StoreActions Store(const LeavingEntries& leaving) final;
  std::vector<std::int64_t> NextClusterIds() const final { return clusters_.NextClusterIds(); }
  PutPolicyState SaveState() const override;
  absl::Status RestoreState(const StoredPolicyState& stored) override;

  std::int64_t page_entries() const { return clusters_.cluster_entries(); }

 protected:
  // REQUIRES: options.Validate() is OK. `traits` never say that it selects without queries, also
  // where it does not look at them: entries would be attended in the blocks of a policy that reads
  // everything.
  PagePolicy(const PolicyTraits& traits, const PolicyOptions& options);

  const PolicyOptions& options() const { return options_; }
  SequenceClusters& clusters() { return clusters_; }
  const SequenceClusters& clusters() const { return clusters_; }

  // `count` positions of [kSinkTokens, stored_token_count), each at most once, in any order.
  // REQUIRES: there are more than `count`.
  virtual std::vector<std::int64_t> Choose(const SelectionInput& input, std::int32_t head,
                                           std::int64_t count) const = 0;
  // Entries that leave the window, before they are stored.
  virtual void Keep(const LeavingEntries& leaving) { static_cast<void>(leaving); }

 private:
  std::vector<PlannedCluster> PagesOf(const SelectionInput& input, std::int32_t head,
                                      std::int64_t budget) const;

  const PolicyOptions options_;
  SequenceClusters clusters_;
};

// Two that choose without looking at queries: what a policy that looks must beat.

// The sinks and the newest tokens (Xiao et al., "Efficient Streaming Language Models with Attention
// Sinks", 2023). The others stay on flash, where a prompt reads them.
class StreamingPolicy : public PagePolicy {
 public:
  explicit StreamingPolicy(const PolicyOptions& options)
      : PagePolicy({.name = "streaming"}, options) {}

 protected:
  std::vector<std::int64_t> Choose(const SelectionInput& input, std::int32_t head,
                                   std::int64_t count) const override;
};

// Random pages, other ones for every layer, head and step; the last of them in part.
class RandomPolicy : public PagePolicy {
 public:
  explicit RandomPolicy(const PolicyOptions& options) : PagePolicy({.name = "random"}, options) {}

 protected:
  std::vector<std::int64_t> Choose(const SelectionInput& input, std::int32_t head,
                                   std::int64_t count) const override;
};

}  // namespace cairn::compute
