// Which segments stand on which, and what nothing needs any more when a session lets go of its
// chain.
//
// Threading:  run on the metadata thread, while kTreeLock keeps the tree as it is.
// Errors:     NOT_FOUND, DATA_LOSS: those of the rows.
#pragma once

#include <map>
#include <vector>

#include "kv-node/layout/rows.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

struct SegmentTree {
  std::map<SegmentId, SegmentId> parent_of;
  std::map<SegmentId, int> child_count;
};

absl::StatusOr<SegmentTree> LoadSegmentTree(MetaReader& reader);

// What is free with a chain: its open segment and those parents that nothing else needs.
struct UnneededSegments {
  std::vector<SegmentId> segments;
  std::vector<PageIndex> pages;
};

// Of the session whose open segment this is. `tree` is without them afterwards.
absl::StatusOr<UnneededSegments> TakeOffUnneeded(MetaReader& reader, SegmentId open_segment,
                                                 SegmentTree& tree);

}  // namespace cairn::kv
