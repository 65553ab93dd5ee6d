// MemoryShares says what a conversation keeps so that its steps read less: the index, layer by
// layer as far as there is room, and when it is whole the clusters that steps attended last. Room
// is what the window, and what each cluster takes for itself, leave of half of the budget; the
// other half is for what is on its way: the replay buffer, messages, replies, and the KV node's
// arena. Tokens do not depend on it (docs/decisions/0027-*).
//
// Layers have about as many clusters each: every layer asks as if all were like it.
//
// Threading:  one thread.
#pragma once

#include <cstdint>

#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

struct MemoryLimits {
  std::int64_t dram_budget_bytes = 0;
  // Whether there may be anything of an index, and of clusters.
  bool keep_index = true;
  bool keep_clusters = true;
};

class MemoryShares {
 public:
  // Borrows the policy.
  MemoryShares(const MemoryLimits& limits, std::int64_t window_bytes, std::int32_t layer_count,
               const RetrievalPolicy& policy)
      : limits_(limits), window_bytes_(window_bytes), layer_count_(layer_count), policy_(policy) {}

  // Whether the layer's index stays.
  bool KeepsIndex(std::int32_t layer) const;
  // Of the layer's clusters.
  std::int64_t KeptBytes(std::int32_t layer) const;

 private:
  // Of all layers.
  std::int64_t Room(std::int32_t layer) const;

  const MemoryLimits limits_;
  const std::int64_t window_bytes_;
  const std::int32_t layer_count_;
  const RetrievalPolicy& policy_;
};

}  // namespace cairn::compute
