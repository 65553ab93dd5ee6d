// WeightObserver is the part of a retrieval policy that learns from attention weights: which
// entries the newest tokens looked at, and how much.
//
// Threading:  one thread at a time, as the conversation that owns it; nothing else of the policy is
//             called meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn::compute {

// What one KV head attended in one layer of a pass, and with which weights.
// Each position is in one place only. In the order of attending: what was fetched, what is held,
// and what is recent.
struct AttendedEntries {
  std::vector<std::int64_t> fetched{};  // from the KV node, in the order of attending
  std::vector<std::int64_t> held{};     // waiting for a cluster
  // From here on all, up to the query's own.
  std::int64_t recent_first = 0;
  // Entries that came from the KV node: more than `fetched` has where only some of a cluster were
  // attended.
  std::int64_t arrived_count = 0;
  // (weighed token, entry), the entries in that order up to the pass's last: attention weights,
  // summed over the query heads that share the KV head, so that a token's add up to as many as
  // there are; less what means of clusters have (EntrySelector::Estimate). 0: not visible to the
  // token. Empty unless the policy observes weights.
  std::vector<float> weights{};

  // Of an entry, counted in that order.
  std::int64_t PositionOf(std::int64_t entry) const {
    const std::int64_t fetched_count = std::ssize(fetched);
    if (entry < fetched_count) return fetched[static_cast<std::size_t>(entry)];
    entry -= fetched_count;
    const std::int64_t held_count = std::ssize(held);
    return entry < held_count ? held[static_cast<std::size_t>(entry)]
                              : recent_first + entry - held_count;
  }
};

// Of one layer of a pass. Lives during the call.
struct WeighedLayer {
  std::int32_t layer = 0;
  // Of the pass: what was told of later positions before is no longer so.
  std::int64_t pass_first_position = 0;
  // Of the weighed tokens, which are the pass's last ones.
  std::int64_t first_position = 0;
  std::int64_t token_count = 0;
  std::span<const AttendedEntries> heads{};  // by KV head
};

class WeightObserver {
 public:
  virtual ~WeightObserver() = default;

  // How many of the last tokens of a pass of so many are weighed: 0, none, to `token_count`. While
  // a layer is attended each takes 4 bytes for every entry and query head, counted as memory of
  // keys and values.
  virtual std::int64_t WeighedTokens(std::int64_t token_count) const = 0;

  // Behind the attention of each layer of such a pass, and before its entries leave the window. A
  // pass that failed and is computed again is told again: what is told of a layer and a position
  // takes the place of what was told before.
  virtual void TakeWeights(const WeighedLayer& layer) = 0;
};

}  // namespace cairn::compute
