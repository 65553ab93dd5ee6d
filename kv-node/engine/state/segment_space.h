// SegmentSpace is the flash space of a session's open segment: what its last cut named, and the
// extents that came and went since. Of pools PoolTable knows that.
//
// Threading:  the engine thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kv-node/engine/space/allocation.h"
#include "kv-node/engine/space/pool_table.h"
#include "kv-node/engine/state/session_state.h"

namespace cairn::kv {

class SegmentSpace {
 public:
  // What is stored of it: its allocation records, and its log runs.
  SegmentSpace(RegionBitsMap regions, std::vector<ExtentRef> log_extents)
      : regions_(std::move(regions)), log_extents_(std::move(log_extents)) {}

  void AddLogRun(const ExtentRef& extent);
  void AddIndexRun(const ExtentRef& extent) { new_extents_.push_back(extent); }
  // A run that no cut has named yet is nothing that a commit ceases to name.
  void DropIndexRun(const ExtentRef& extent);
  // Log runs that came and went since the last cut: no checkpoint is needed to give them back.
  // `open`: the rows of the segment, here and below.
  void ForgetUnnamedRuns(const SegmentRows& open);

  struct Cut {
    std::vector<ExtentRef> named;     // extents that committed rows begin to name
    std::vector<ExtentRef> released;  // and those that they cease to name
    std::int64_t flash_bytes = 0;     // of all that they name
  };
  // A checkpoint's: puts the changed allocation records into the batch.
  Cut TakeCut(const SegmentRows& open, const PoolTable::Changes& pools, MetaBatch& batch);
  // Behind the cut of one that seals: the next segment has nothing.
  void BeginSegment();

 private:
  RegionBitsMap regions_;
  std::vector<ExtentRef> new_extents_;
  std::vector<ExtentRef> dropped_extents_;
  std::vector<ExtentRef> log_extents_;
};

}  // namespace cairn::kv
