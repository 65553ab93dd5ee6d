#include "kv-node/engine/state/segment_tree.h"

#include <optional>
#include <string_view>

#include "common/base/fail_point.h"
#include "kv-node/engine/space/allocation.h"

namespace cairn::kv {

absl::StatusOr<SegmentTree> LoadSegmentTree(MetaReader& reader) {
  SegmentTree tree;
  CAIRN_RETURN_IF_ERROR(reader.Scan(
      Family::kSegments, "", [&](std::string_view key, std::string_view value) -> absl::Status {
        CAIRN_ASSIGN_OR_RETURN(const std::optional<SegmentId> id, ParseSegmentHeadKey(key));
        if (!id) return absl::OkStatus();
        CAIRN_ASSIGN_OR_RETURN(const SegmentRow segment, DecodeSegmentRow(value));
        tree.parent_of[*id] = segment.parent;
        ++tree.child_count[segment.parent];
        return absl::OkStatus();
      }));
  return tree;
}

absl::StatusOr<UnneededSegments> TakeOffUnneeded(MetaReader& reader, SegmentId open_segment,
                                                 SegmentTree& tree) {
  UnneededSegments out;
  std::vector<SegmentId> parents;
  for (SegmentId id = open_segment; id.value() != 0; id = parents.back()) {
    out.segments.push_back(id);
    CAIRN_ASSIGN_OR_RETURN(const RegionBitsMap regions, LoadRegions(reader, id));
    for (const auto& [region, bits] : regions) {
      for (const PageIndex page : PagesIn(region, bits)) out.pages.push_back(page);
    }
    const SegmentId parent = tree.parent_of[id];
    parents.push_back(parent);
    // A sealed parent goes when no other segment names it as parent.
    if (tree.child_count[parent] > 1 &&
        !FailPoint("a sealed segment goes while others stand on it (rule 3)")) {
      break;
    }
  }
  for (const SegmentId parent : parents) --tree.child_count[parent];
  return out;
}

}  // namespace cairn::kv
