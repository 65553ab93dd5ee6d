// EvictionPolicy attends the newest entries and of the others the same few at every step: for each
// KV head those that its EntryWorth ranks highest. When entries leave the window, the least worthy
// of them and of those retained until then are attended no more by this head's steps, so that
// neither what a step attends nor the memory for it grows with the text.
//
// A prompt of two tokens or more attends everything, and its last tokens rank everything anew: what
// steps no longer attend stays on flash for that.
//
// Where pages are recalled, part of what a step attends are whole pages of the entries that the
// newest tokens looked at: what is near them comes back, evicted or not.
//
// Entries lie in sequence order on flash (PagePolicy); the conversation keeps those that are
// attended in memory (session/reading/kept_clusters.h), where its budget has room for them.
//
// Threading:  as RetrievalPolicy; Choose and Store may run for several heads and layers at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "compute-node/retrieval/baselines/page_policy.h"
#include "compute-node/retrieval/eviction/entry_worth.h"

namespace cairn::compute {

class EvictionPolicy : public PagePolicy, private WeightObserver {
 public:
  struct Kind {
    std::string_view name;  // a literal
    // Of a prompt's pass so many of the last tokens are weighed.
    std::int64_t prompt_tokens = kProfileTokens;
    std::function<std::unique_ptr<EntryWorth>()> make_worth;
    // How much of what a step attends beside the window are whole pages.
    double recalled_share = 0;
  };

  EvictionPolicy(const Kind& kind, const PolicyOptions& options);

  WeightObserver* weight_observer() override { return this; }
  PutPolicyState SaveState() const override;
  absl::Status RestoreState(const StoredPolicyState& stored) override;
  std::int64_t memory_bytes() const override;
  // Of what SaveState makes, however long the conversation is.
  std::int64_t state_bytes_max() const;

 protected:
  std::vector<std::int64_t> Choose(const SelectionInput& input, std::int32_t head,
                                   std::int64_t count) const override;
  void Keep(const LeavingEntries& leaving) override;

 private:
  struct Head {
    std::vector<std::int64_t> retained;  // ascending
    std::unique_ptr<EntryWorth> worth;
  };
  struct Layer {
    std::vector<Head> heads;
    // Of positions below it is decided which are retained.
    std::int64_t decided_until = 0;
  };

  std::int64_t WeighedTokens(std::int64_t token_count) const override;
  void TakeWeights(const WeighedLayer& weighed) override;

  // Entries that a step may attend beside the window and the sinks, if `token_count` are there.
  std::int64_t RetainedMax(std::int64_t token_count) const;
  void Decide(Head& head, std::span<const std::int64_t> candidates, std::span<const float> worths,
              std::int64_t decided_until) const;
  bool RestoreHead(std::span<const std::int64_t>& numbers, std::int64_t decided_until,
                   std::int64_t token_count, Head& head);
  void Clear();

  // The entries of the pages that are worth most: up to `count`, all below `end`, ascending.
  std::vector<std::int64_t> RecalledPages(const EntryWorth& worth, std::int64_t token_count,
                                          std::int64_t end, std::int64_t count) const;

  const std::int64_t prompt_tokens_;
  const double recalled_share_;
  std::vector<Layer> layers_;
};

}  // namespace cairn::compute
