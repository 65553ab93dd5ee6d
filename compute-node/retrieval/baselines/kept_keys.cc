#include "compute-node/retrieval/baselines/kept_keys.h"

#include <cmath>

#include "common/base/check.h"

namespace cairn::compute {

void AppendFinite(std::span<const float> from, std::vector<float>& to) {
  for (const float value : from) to.push_back(std::isfinite(value) ? value : 0.0F);
}

KeptKeys::KeptKeys(const EntryLayout& layout)
    : layout_(layout),
      keys_(static_cast<std::size_t>(std::int64_t{layout.layer_count} * layout.head_count)) {}

void KeptKeys::Clear() {
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) ClearLayer(layer);
}

void KeptKeys::ClearLayer(std::int32_t layer) {
  for (std::int32_t head = 0; head < layout_.head_count; ++head) {
    keys_[Row(layer, head)] = std::vector<float>();
  }
}

void KeptKeys::Append(const LeavingEntries& leaving) {
  const std::size_t floats = static_cast<std::size_t>(leaving.token_count * layout_.head_dim);
  CAIRN_CHECK_EQ(leaving.keys.size(), floats * static_cast<std::size_t>(layout_.head_count));
  for (std::int32_t head = 0; head < layout_.head_count; ++head) {
    CAIRN_CHECK_EQ(count(leaving.layer, head), leaving.first_position);
    AppendFinite(leaving.keys.subspan(static_cast<std::size_t>(head) * floats, floats),
                 keys_[Row(leaving.layer, head)]);
  }
}

absl::Status KeptKeys::Rebuild(std::int32_t layer, std::span<const LoadedCluster> clusters) {
  ClearLayer(layer);
  for (const LoadedCluster& cluster : clusters) {
    const std::int32_t head = cluster.cluster.head;
    const std::int64_t floats = cluster.positions.count() * layout_.head_dim;
    const bool follows =
        head >= 0 && head < layout_.head_count && std::ssize(cluster.keys) == floats &&
        cluster.positions == Positions::Range(count(layer, head), cluster.positions.count());
    if (!follows) {
      return DataLoss("layer {} head {} cluster {}: its {} entries do not follow those before it",
                      layer, head, cluster.cluster.cluster_id, cluster.positions.count());
    }
    AppendFinite(cluster.keys, keys_[Row(layer, head)]);
  }
  for (std::int32_t head = 1; head < layout_.head_count; ++head) {
    if (count(layer, head) == count(layer, 0)) continue;
    return DataLoss("layer {}: head {} has {} entries, head 0 has {}", layer, head,
                    count(layer, head), count(layer, 0));
  }
  return absl::OkStatus();
}

std::int64_t KeptKeys::size_bytes() const {
  std::int64_t bytes = 0;
  for (const std::vector<float>& keys : keys_) {
    bytes += std::ssize(keys) * static_cast<std::int64_t>(sizeof(float));
  }
  return bytes;
}

}  // namespace cairn::compute
