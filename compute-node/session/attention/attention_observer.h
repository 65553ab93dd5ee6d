// AttentionObserver is told what a conversation's passes attended, layer by layer: for measuring
// what a policy finds. A conversation without one does nothing for it.
//
// Threading:  called on the thread that computes the pass, while the model's pool is idle.
// Ownership:  what is passed lives during the call.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compute-node/model/forward/forward.h"

namespace cairn::compute {

// What one KV head attended; each position is in one place only.
struct AttendedEntries {
  std::vector<std::int64_t> fetched{};  // from the KV node, in the order of attending
  std::vector<std::int64_t> held{};     // waiting for a cluster
  // From here on all, up to the query's own.
  std::int64_t recent_first = 0;
  // Entries that came from the KV node: more than `fetched` has where only some of a cluster were
  // attended.
  std::int64_t arrived_count = 0;
};

class AttentionObserver {
 public:
  virtual ~AttentionObserver() = default;
  // `heads` has one element for each KV head. A pass that failed and is computed again is told
  // again.
  virtual void LayerAttended(const AttentionBatch& batch,
                             std::span<const AttendedEntries> heads) = 0;
};

}  // namespace cairn::compute
