// The check of one segment: its rows, the extents and parts that they name, and every byte of them.
#pragma once

#include <memory>

#include "kv-node/layout/free_map.h"
#include "kv-node/util/store_check.h"

namespace cairn::kv {

// `named` gets the pages of this segment's extents; it has those of the segments checked before.
// Adds to `survey`: counts, the largest id, and what became of the segment's entry.
void CheckSegment(const StoreView& store, SegmentId segment, const SegmentRow& row, FreeMap& named,
                  const FindingSink& sink, StoreSurvey& survey);

// For extents that only say where they are.
std::shared_ptr<FreeMap> UnusedMap();

}  // namespace cairn::kv
