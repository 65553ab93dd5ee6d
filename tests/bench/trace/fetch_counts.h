// FetchCounts: how many device reads fetches took, and how much of what was wanted each brought.
//
// Threading:  a value type; not synchronised.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/kv/messages.h"

namespace cairn::bench {

struct FetchCounts {
  std::int64_t fetch_count = 0;
  std::int64_t fetched_cluster_count = 0;
  std::int64_t fetched_entry_count = 0;
  std::int64_t pending_entry_count = 0;        // of them, that had no place on flash
  std::int64_t flash_cluster_count = 0;        // clusters of which something lay on flash
  std::int64_t extra_read_count = 0;           // pieces of such clusters beyond the first
  std::map<std::int64_t, std::int64_t> reads;  // entries in one piece -> pieces
  // What a layout in order of positions would have: runs of neighbours among the selected.
  std::int64_t sequence_run_count = 0;
  std::vector<double> fetch_us;

  // Adds an answer. Spans of one device read (or one slot of the cache) have one owner.
  void Count(const FetchReply& reply);

  std::int64_t read_count() const;
  std::int64_t read_entry_count() const;
};

}  // namespace cairn::bench
