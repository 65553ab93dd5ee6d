#include "kv-node/engine/state/index_rows.h"

namespace cairn::kv {

std::optional<std::string_view> IndexRows::Find(const ClusterKey& key) const {
  const auto rows = rows_.find({key.layer, key.head});
  if (rows == rows_.end()) return std::nullopt;
  return rows->second.Find(key.cluster_id.value());
}

void IndexRows::Put(const ClusterKey& key, std::string_view value) {
  rows_[{key.layer, key.head}].Put(key.cluster_id.value(), value);
}

bool IndexRows::Erase(const ClusterKey& key) {
  const auto rows = rows_.find({key.layer, key.head});
  return rows != rows_.end() && rows->second.Erase(key.cluster_id.value());
}

void IndexRows::EraseLayer(std::int32_t layer) {
  rows_.erase(rows_.lower_bound({layer, kAllHeads}), rows_.lower_bound({layer + 1, kAllHeads}));
}

std::int64_t IndexRows::CountOfLayer(std::int32_t layer) const {
  std::int64_t count = 0;
  for (auto it = rows_.lower_bound({layer, kAllHeads});
       it != rows_.end() && it->first.first == layer; ++it) {
    count += it->second.count();
  }
  return count;
}

std::int64_t IndexRows::memory_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [owner, rows] : rows_) {
    bytes += static_cast<std::int64_t>(sizeof(owner) + sizeof(rows)) + rows.memory_bytes();
  }
  return bytes;
}

}  // namespace cairn::kv
