// AttentionObserver is told what a conversation's passes attended, layer by layer: for measuring
// what a policy finds. A conversation without one does nothing for it.
//
// Threading:  called on the thread that computes the pass, while the model's pool is idle.
// Ownership:  what is passed lives during the call.
#pragma once

#include <span>

#include "compute-node/model/forward/forward.h"
#include "compute-node/retrieval/attended_entries.h"

namespace cairn::compute {

class AttentionObserver {
 public:
  virtual ~AttentionObserver() = default;
  // `heads` has one element for each KV head. A pass that failed and is computed again is told
  // again.
  virtual void LayerAttended(const AttentionBatch& batch,
                             std::span<const AttendedEntries> heads) = 0;
};

}  // namespace cairn::compute
