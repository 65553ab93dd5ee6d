// MemoryShares says how much a conversation keeps of the clusters that its steps attended last, so
// that the next ones read less: what the window, and what all clusters take for themselves, leave
// of half of the budget. The other half is for what is on its way: the replay buffer, messages,
// replies, and the KV node's arena. Tokens do not depend on it (docs/decisions/0027-*).
//
// Layers have about as many clusters each: every layer asks as if all were like it.
//
// Threading:  one thread.
#pragma once

#include <cstdint>

#include "compute-node/retrieval/paged_index.h"

namespace cairn::compute {

struct MemoryLimits {
  std::int64_t dram_budget_bytes = 0;
  // Whether there may be any.
  bool keep_clusters = true;
};

class MemoryShares {
 public:
  // Borrows the index; null: a policy without one, whose clusters are few.
  MemoryShares(const MemoryLimits& limits, std::int64_t window_bytes, std::int32_t layer_count,
               const PagedIndex* index)
      : limits_(limits), window_bytes_(window_bytes), layer_count_(layer_count), index_(index) {}

  // Of the layer's clusters.
  std::int64_t KeptBytes(std::int32_t layer) const;

 private:
  const MemoryLimits limits_;
  const std::int64_t window_bytes_;
  const std::int32_t layer_count_;
  const PagedIndex* const index_;
};

}  // namespace cairn::compute
