// Replay drives a storage engine with a trace, as a policy of clusters would: the prompt is grouped
// and stored chunk by chunk; then, token by token, each layer's clusters for the queries are
// fetched, entries that leave the window join the nearest cluster, clusters over their cap are
// split, and checkpoints are taken. Every fetched byte is compared with what was stored.
//
// Threading:  one thread drives; the engine has its own.
#pragma once

#include <chrono>
#include <cstdint>

#include "common/base/status.h"
#include "common/kv/messages.h"
#include "common/trace/trace.h"
#include "kv-node/engine/engine.h"
#include "tests/bench/trace/fetch_counts.h"
#include "tests/bench/trace/key_clusters.h"

namespace cairn::bench {

struct ReplayOptions {
  Order order = Order::kCluster;
  std::int64_t cluster_entries = 8;  // on average; twice as many are the cap
  double select_share = 0.03;        // of the stored entries of each layer and KV head, in a step
  std::int64_t chunk_tokens = 4096;  // of the prompt, grouped together and made durable
  std::int64_t checkpoint_tokens = 1024;  // between two checkpoints in decode
  bool index_rows = true;                 // whether changed clusters' centroids are stored, too
  // Whether the segment is sealed at the end and left to the defragmenter, which must be switched
  // on.
  bool rest = false;
};

// What one phase did, from the engine's counters before and after it.
struct Phase {
  std::int64_t token_count = 0;
  std::int64_t entry_bytes = 0;  // of these tokens' entries, each once
  KvStats stats;                 // differences; flash_used_bytes as it is at the end

  // Device bytes written of all causes.
  std::int64_t written_bytes() const;
  // Entries that came with Append, without those that Replace wrote again.
  std::int64_t page_bytes() const { return stats.write_pool_bytes - stats.write_split_bytes; }
  std::int64_t meta_bytes() const {
    return stats.write_meta_log_bytes + stats.write_meta_table_bytes;
  }
  double WriteAmplification() const {
    return entry_bytes == 0
               ? 0
               : static_cast<double>(written_bytes()) / static_cast<double>(entry_bytes);
  }
};

// A segment that was sealed at the end, and what the defragmenter made of it. The same clusters are
// fetched for all steps before and after.
struct RestResult {
  FetchCounts before;
  FetchCounts after;
  std::int64_t flash_used_before_bytes = 0;
  std::int64_t flash_used_after_bytes = 0;
  std::int64_t written_bytes = 0;
};

// The fetches are those of decode.
struct ReplayResult : FetchCounts {
  EntryLayout layout;
  std::int64_t entry_bytes = 0;
  Phase prompt;
  Phase decode;
  std::int64_t checkpoint_count = 0;
  std::int64_t split_count = 0;
  std::int64_t cluster_count = 0;       // at the end
  std::int64_t stored_entry_count = 0;  // in clusters, at the end
  // What a layout without room between clusters would have moved for appends and splits.
  std::int64_t packed_moved_bytes = 0;
  // And what splits would have moved if the child that stays were left where its parent was.
  std::int64_t in_place_moved_bytes = 0;
  RestResult rest;
};

// Errors:     those of the engine; DATA_LOSS when a fetch does not bring what was stored.
absl::StatusOr<ReplayResult> Replay(const Trace& trace, const ReplayOptions& options,
                                    kv::Engine& engine);

}  // namespace cairn::bench
