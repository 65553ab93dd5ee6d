// Which parts a session shows: those of its chain of segments, as far as each one counts.
#include <utility>

#include "kv-node/engine/state/session_state.h"

namespace cairn::kv {
std::vector<VisiblePart> SessionState::PartsOf(const ClusterKey& key) const {
  std::vector<VisiblePart> parts;
  for (const SegmentRows& rows : chain_) {
    if (rows.masks.contains(key)) parts.clear();
    for (Part& part : rows.parts.Find(key)) {
      AddVisible(std::move(part), rows, &rows == &chain_.back(), parts);
    }
  }
  SortByPosition(parts);
  return parts;
}

std::vector<Visible<StoredPart>> SessionState::StoredPartsOf(const ClusterKey& key) const {
  std::vector<Visible<StoredPart>> parts;
  FindStoredParts(key, PositionDetail::kAll, parts);
  return parts;
}

void SessionState::FindStoredParts(const ClusterKey& key, PositionDetail detail,
                                   std::vector<Visible<StoredPart>>& parts) const {
  parts.clear();
  for (const SegmentRows& rows : chain_) {
    if (rows.masks.contains(key)) parts.clear();
    const bool whole = rows.limit == kNoLimit;
    rows.parts.ForEachStored(key, whole ? detail : PositionDetail::kAll, [&](StoredPart part) {
      AddVisible(std::move(part), rows, &rows == &chain_.back(), parts);
    });
  }
  if (parts.size() > 1) SortByPosition(parts);
}

}  // namespace cairn::kv
