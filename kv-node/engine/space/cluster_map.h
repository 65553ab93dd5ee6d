// ClusterMap: short byte strings by cluster, in little more memory than they take: a PackedMap for
// each (layer, head).
//
// Threading:  a value type; not synchronised.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "kv-node/engine/space/packed_map.h"
#include "kv-node/layout/rows.h"

namespace cairn::kv {

using LayerHead = std::pair<std::int32_t, std::int32_t>;

class ClusterMap {
 public:
  // Valid until the next change.
  std::optional<std::string_view> Find(const ClusterKey& key) const {
    const auto map = maps_.find({key.layer, key.head});
    if (map == maps_.end()) return std::nullopt;
    return map->second.Find(key.cluster_id.value());
  }
  // REQUIRES: the cluster's id is not negative.
  void Put(const ClusterKey& key, std::string_view value) {
    maps_[{key.layer, key.head}].Put(key.cluster_id.value(), value);
  }
  // Returns whether it was there.
  bool Erase(const ClusterKey& key) {
    const auto map = maps_.find({key.layer, key.head});
    if (map == maps_.end() || !map->second.Erase(key.cluster_id.value())) return false;
    if (map->second.empty()) maps_.erase(map);
    return true;
  }
  void EraseLayer(std::int32_t layer) { maps_.erase(LayerBegin(layer), LayerBegin(layer + 1)); }
  // REQUIRES: what is appended has none of the layers that are here.
  void Append(ClusterMap later) {
    maps_.merge(later.maps_);
    CAIRN_CHECK(later.maps_.empty());
  }

  // Calls `fn` with each key and value, in ascending order of keys. `fn` changes nothing here.
  template <typename Fn>
  void ForEach(Fn&& fn) const {
    ForEachIn(maps_.begin(), maps_.end(), fn);
  }
  template <typename Fn>
  void ForEachOfLayer(std::int32_t layer, Fn&& fn) const {
    ForEachIn(LayerBegin(layer), LayerBegin(layer + 1), fn);
  }
  // The largest id of each (layer, head).
  template <typename Fn>
  void ForEachLastKey(Fn&& fn) const {
    for (const auto& [owner, map] : maps_) fn(KeyOf(owner, map.last_key()));
  }

  std::int64_t count() const {
    std::int64_t count = 0;
    for (const auto& [owner, map] : maps_) count += map.count();
    return count;
  }
  std::int64_t CountOfLayer(std::int32_t layer) const {
    std::int64_t count = 0;
    for (auto it = LayerBegin(layer); it != LayerBegin(layer + 1); ++it)
      count += it->second.count();
    return count;
  }
  std::int64_t memory_bytes() const {
    std::int64_t bytes = 0;
    for (const auto& [owner, map] : maps_) {
      bytes += static_cast<std::int64_t>(sizeof(owner) + sizeof(map)) + map.memory_bytes();
    }
    return bytes;
  }

 private:
  using Maps = std::map<LayerHead, PackedMap>;  // by cluster id; none is empty

  Maps::const_iterator LayerBegin(std::int32_t layer) const {
    return maps_.lower_bound({layer, kAllHeads});
  }
  static ClusterKey KeyOf(LayerHead owner, std::int64_t id) {
    return {owner.first, owner.second, ClusterId(id)};
  }
  template <typename Fn>
  static void ForEachIn(Maps::const_iterator begin, Maps::const_iterator end, Fn&& fn) {
    for (; begin != end; ++begin) {
      begin->second.ForEach([&, owner = begin->first](std::int64_t id, std::string_view value) {
        fn(KeyOf(owner, id), value);
      });
    }
  }

  Maps maps_;
};

}  // namespace cairn::kv
