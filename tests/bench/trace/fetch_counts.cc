#include "tests/bench/trace/fetch_counts.h"

#include <numeric>
#include <set>

namespace cairn::bench {

void FetchCounts::Count(const FetchReply& reply) {
  ++fetch_count;
  std::map<const void*, std::int64_t> entries;
  for (const FetchedCluster& cluster : reply.clusters) {
    ++fetched_cluster_count;
    std::set<const void*> pieces;
    for (const Span& span : cluster.spans) {
      fetched_entry_count += span.entry_count;
      if (span.part_id.value() == 0) {
        pending_entry_count += span.entry_count;
        continue;
      }
      entries[span.owner.get()] += span.entry_count;
      pieces.insert(span.owner.get());
    }
    if (pieces.empty()) continue;
    ++flash_cluster_count;
    extra_read_count += std::ssize(pieces) - 1;
  }
  for (const auto& [owner, count] : entries) ++reads[count];
}

std::int64_t FetchCounts::read_count() const {
  return std::accumulate(reads.begin(), reads.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& item) { return sum + item.second; });
}

std::int64_t FetchCounts::read_entry_count() const {
  return std::accumulate(
      reads.begin(), reads.end(), std::int64_t{0},
      [](std::int64_t sum, const auto& item) { return sum + item.first * item.second; });
}

}  // namespace cairn::bench
