#include "kv-node/engine/session/operation_checks.h"

#include <set>
#include <variant>

namespace cairn::kv {
namespace {

absl::Status CheckCarriedOf(const EntryLayout& layout, std::int32_t layer,
                            const CarriedEntries& entries) {
  CAIRN_RETURN_IF_ERROR(CheckEntries(layout, layer, entries.head, entries.brought_positions,
                                     std::ssize(entries.entries)));
  absl::Status status;
  entries.brought_positions.ForEach([&](std::int64_t position) {
    if (!status.ok() || entries.positions.Contains(position)) return;
    status = InvalidArgument(
        "carried entries of layer {} head {}: position {} is brought and is not one of the "
        "positions that are carried",
        layer, entries.head, position);
  });
  return status;
}

}  // namespace

absl::Status CheckPlace(const EntryLayout& layout, const ChangingOperation& operation) {
  std::int32_t layer = 0;
  std::int32_t head = kAllHeads;
  std::visit(
      [&](const auto& op) {
        if constexpr (requires { op.layer; }) layer = op.layer;
        if constexpr (requires { op.head; }) head = op.head;
      },
      operation);
  if (layer >= 0 && layer < layout.layer_count && head >= kAllHeads && head < layout.head_count) {
    return absl::OkStatus();
  }
  return InvalidArgument("layer {} head {} does not exist: the session has {} layers of {} heads",
                         layer, head, layout.layer_count, layout.head_count);
}

absl::Status CheckEntries(const EntryLayout& layout, std::int32_t layer, std::int32_t head,
                          const Positions& positions, std::int64_t bytes) {
  if (layer < 0 || layer >= layout.layer_count || head < kAllHeads || head >= layout.head_count) {
    return InvalidArgument("layer {} head {} does not exist", layer, head);
  }
  if (layout.EntryBytes(head) > kPartBytesMax) {
    return InvalidArgument("an entry of head {} has {} bytes, more than the largest part, {}", head,
                           layout.EntryBytes(head), kPartBytesMax);
  }
  const std::int64_t want = positions.count() * layout.EntryBytes(head);
  if (bytes == want) return absl::OkStatus();
  return InvalidArgument("layer {} head {}: {} entries have {} bytes, not {}", layer, head,
                         positions.count(), bytes, want);
}

absl::Status CheckAppend(const SessionState& state, const Append& op) {
  if (op.clusters.empty()) {
    return InvalidArgument("append to layer {} names no clusters", op.layer);
  }
  std::set<ClusterRef> seen;
  for (const ClusterEntries& entries : op.clusters) {
    CAIRN_RETURN_IF_ERROR(CheckEntries(state.layout(), op.layer, entries.cluster.head,
                                       entries.positions,
                                       static_cast<std::int64_t>(entries.entries.size())));
    if (entries.positions.empty() || entries.cluster.cluster_id.value() < 1 ||
        !seen.insert(entries.cluster).second) {
      return InvalidArgument(
          "append to layer {}: cluster {} has no positions, no id, or is named twice", op.layer,
          entries.cluster.cluster_id);
    }
    CAIRN_RETURN_IF_ERROR(state.CheckAppend(
        {op.layer, entries.cluster.head, entries.cluster.cluster_id}, entries.positions));
  }
  return absl::OkStatus();
}

absl::Status CheckCarried(const EntryLayout& layout, const StageCarried& op) {
  for (const CarriedEntries& entries : op.carried) {
    CAIRN_RETURN_IF_ERROR(CheckCarriedOf(layout, op.layer, entries));
  }
  return absl::OkStatus();
}

}  // namespace cairn::kv
