// AttendedEntries: what one KV head attended in one layer of a pass, and with which weights.
//
// Threading:  a plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cairn::compute {

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

}  // namespace cairn::compute
