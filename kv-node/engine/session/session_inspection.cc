// What an attached session tells whoever debugs it.
#include "common/base/status.h"
#include "kv-node/engine/session/attached_session.h"

namespace cairn::kv {

absl::StatusOr<InspectionAnswer> AttachedSession::Inspect(
    const InspectionQuestion& question) const {
  const auto* about = std::get_if<ClusterQuestion>(&question);
  if (about == nullptr) {
    return ProgressAnswer{.epoch = epoch(),
                          .applied = applied_,
                          .queued_count = std::ssize(queue_),
                          .pending_bytes = state_->pending_bytes(),
                          .row_bytes = row_bytes(),
                          .has_channel = bound()};
  }
  const ClusterKey key{about->layer, about->cluster.head, about->cluster.cluster_id};
  if (key.layer < 0 || key.layer >= row_.layout.layer_count || !state_->Exists(key)) {
    return NotFound("session {} has no cluster {} in layer {} head {}", id_, key.cluster_id,
                    key.layer, key.head);
  }
  ClusterAnswer answer;
  answer.pending_count = state_->PendingCount(key);
  for (const Visible<StoredPart>& visible : state_->StoredPartsOf(key)) {
    const StoredPart& part = visible.part;
    answer.parts.push_back({part.kind, part.first_page, part.page_count,
                            part.positions.Slice(0, visible.count), visible.of_open_segment});
  }
  return answer;
}

}  // namespace cairn::kv
