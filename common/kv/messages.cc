#include "common/kv/messages.h"

#include <cmath>

#include "common/base/range.h"
#include "common/kv/arena_layout.h"

namespace cairn {
namespace {

std::int64_t PositionsBytes(const Positions& positions) {
  return static_cast<std::int64_t>(positions.runs().size() * sizeof(Positions::Run));
}

std::int64_t Size(const std::string& bytes) { return static_cast<std::int64_t>(bytes.size()); }

struct BytesOf {
  std::int64_t operator()(const Append& op) const {
    std::int64_t bytes = 0;
    for (const ClusterEntries& c : op.clusters) {
      bytes += Size(c.entries) + PositionsBytes(c.positions);
    }
    return bytes;
  }
  std::int64_t operator()(const Replace& op) const {
    std::int64_t bytes = Size(op.brought_entries) + PositionsBytes(op.brought_positions) +
                         PositionsBytes(op.evicted_positions);
    for (const ChildCluster& child : op.children) bytes += PositionsBytes(child.positions);
    return bytes;
  }
  std::int64_t operator()(const Evict& op) const { return PositionsBytes(op.positions); }
  std::int64_t operator()(const PutIndexRows& op) const {
    std::int64_t bytes = 0;
    for (const IndexRow& row : op.rows) bytes += Size(row.row);
    return bytes;
  }
  std::int64_t operator()(const PutPolicyState& op) const { return Size(op.state); }
  std::int64_t operator()(const StageCarried& op) const {
    std::int64_t bytes = 0;
    for (const CarriedEntries& c : op.carried) {
      bytes += Size(c.entries) + PositionsBytes(c.positions);
    }
    return bytes;
  }
  std::int64_t operator()(const Checkpoint& op) const {
    return static_cast<std::int64_t>(op.token_ids.size() * sizeof(std::int32_t) +
                                     op.next_cluster_ids.size() * sizeof(std::int64_t));
  }
};

}  // namespace

bool Span::WasIntact() const {
  return arena.granule == nullptr ||
         HasArenaGeneration(arena.granule, arena.offset_bytes, std::ssize(bytes), arena.generation);
}

absl::Status EntryLayout::Validate() const {
  CAIRN_RETURN_IF_ERROR(CheckBetween("layer_count", layer_count, 1, kLayerCountMax));
  CAIRN_RETURN_IF_ERROR(CheckBetween("head_count", head_count, 1, kHeadCountMax));
  CAIRN_RETURN_IF_ERROR(CheckBetween("head_dim", head_dim, 1, kHeadDimMax));
  return absl::OkStatus();
}

absl::Status SegmentKey::Validate() const {
  if (Size(model_digest) != kDigestBytes) {
    return InvalidArgument("model_digest has {} bytes, not {}", model_digest.size(), kDigestBytes);
  }
  if (!adapter_digest.empty() && Size(adapter_digest) != kDigestBytes) {
    return InvalidArgument("adapter_digest has {} bytes, not {}", adapter_digest.size(),
                           kDigestBytes);
  }
  if (!std::isfinite(adapter_scale)) {
    return InvalidArgument("adapter_scale is {}: it must be a finite number", adapter_scale);
  }
  if (rope_parameters.empty() || Size(rope_parameters) > kRopeParametersBytesMax) {
    return InvalidArgument("rope_parameters has {} bytes: it must have 1 to {}",
                           rope_parameters.size(), kRopeParametersBytesMax);
  }
  if (Size(sharing_domain) > kLabelBytesMax) {
    return InvalidArgument("sharing_domain has {} bytes, more than {}", sharing_domain.size(),
                           kLabelBytesMax);
  }
  return absl::OkStatus();
}

std::int64_t OperationBytes(const ChangingOperation& operation) {
  constexpr std::int64_t kFixedBytes = 64;  // of the variant and its vectors
  return kFixedBytes + std::visit(BytesOf{}, operation);
}

}  // namespace cairn
