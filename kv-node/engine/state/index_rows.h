// IndexRows: the index rows of a segment that changed since its index runs were written, in memory
// as the family `index` stores them. What is packed in a run is on flash only.
//
// Threading:  a value type; not synchronised.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "kv-node/engine/space/packed_map.h"
#include "kv-node/engine/space/part_rows.h"
#include "kv-node/layout/rows.h"

namespace cairn::kv {

class IndexRows {
 public:
  // Valid until the next change.
  std::optional<std::string_view> Find(const ClusterKey& key) const;
  // REQUIRES: the cluster's id is not negative.
  void Put(const ClusterKey& key, std::string_view value);
  // Returns whether it was there.
  bool Erase(const ClusterKey& key);
  void EraseLayer(std::int32_t layer);
  std::int64_t CountOfLayer(std::int32_t layer) const;

  // In ascending order of keys. `fn` changes nothing here.
  template <typename Fn>
  void ForEachOfLayer(std::int32_t layer, Fn&& fn) const {
    for (auto it = rows_.lower_bound({layer, kAllHeads});
         it != rows_.end() && it->first.first == layer; ++it) {
      it->second.ForEach([&, owner = it->first](std::int64_t id, std::string_view value) {
        fn(ClusterKey{owner.first, owner.second, ClusterId(id)}, value);
      });
    }
  }

  std::int64_t memory_bytes() const;

 private:
  std::map<LayerHead, PackedMap> rows_;  // by cluster id
};

}  // namespace cairn::kv
