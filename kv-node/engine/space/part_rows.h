// PartRows: the parts of a segment's clusters, by cluster, as rows of bytes: a part of eight
// scattered entries takes about 39 bytes, where a Part takes 400. In memory only; what a store
// holds is in layout/rows.h.
//
// Threading:  a value type; not synchronised.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "kv-node/engine/space/packed_map.h"
#include "kv-node/layout/rows.h"

namespace cairn::kv {

using LayerHead = std::pair<std::int32_t, std::int32_t>;

// What a part that is made of its row has of its positions.
enum class PositionDetail : std::uint8_t {
  kAll,
  // The first one and their number, as one run, which takes no memory of its own: for who looks at
  // the bytes only.
  kFirstAndCount,
};

// The positions of a row's parts where they lie.
class RowPositions {
 public:
  // The view is of a row that PartRows made.
  explicit RowPositions(std::string_view row) : parts_(row.substr(1)) {}

  // Calls `fn` with each run, the parts in the order of the row.
  template <typename Fn>
  void ForEachRun(Fn&& fn) const {
    ByteReader in(parts_);
    while (!in.at_end()) {
      SkipPlace(in);
      std::int64_t end = 0;
      for (std::int64_t left = in.Varint(); left > 0; --left) {
        const Positions::Run run = NextRun(in, end);
        end = run.start + run.length;
        fn(run);
      }
      SkipCrcs(in);
    }
    CAIRN_CHECK(in.ok());
  }

  // The run behind one that ends at `end`.
  static Positions::Run NextRun(ByteReader& in, std::int64_t end) {
    const std::int64_t head = in.Varint();
    return {end + (head >> 1), (head & 1) != 0 ? in.Varint() : 1};
  }

 private:
  static void SkipPlace(ByteReader& in);
  static void SkipCrcs(ByteReader& in);

  std::string_view parts_;
};

class PartRows {
 public:
  // None: the cluster has no row.
  std::vector<StoredPart> Find(const ClusterKey& key) const;
  // The same, one after the other.
  template <typename Fn>
  void ForEachPart(const ClusterKey& key, PositionDetail detail, Fn&& fn) const {
    const std::optional<std::string_view> bytes = Bytes(key);
    if (bytes) DecodeEach(*bytes, detail, fn);
  }
  bool Contains(const ClusterKey& key) const { return Bytes(key).has_value(); }
  // REQUIRES: there are parts, and the cluster's id is not negative.
  void Put(const ClusterKey& key, const std::vector<StoredPart>& parts);
  void Erase(const ClusterKey& key);
  // REQUIRES: what is appended has none of the layers that are here.
  void Append(PartRows later);

  // In ascending order of keys. `fn` changes nothing here.
  template <typename Fn>
  void ForEachKey(Fn&& fn) const {
    for (const auto& [owner, rows] : rows_) ForEachKeyIn(owner, rows, fn);
  }
  // The largest id of each (layer, head).
  template <typename Fn>
  void ForEachLastKey(Fn&& fn) const {
    for (const auto& [owner, rows] : rows_) {
      if (!rows.empty()) fn(KeyOf(owner, rows.last_key()));
    }
  }
  template <typename Fn>
  void ForEachKeyOfLayer(std::int32_t layer, Fn&& fn) const {
    for (auto it = rows_.lower_bound({layer, kAllHeads}); it != rows_.end(); ++it) {
      if (it->first.first != layer) return;
      ForEachKeyIn(it->first, it->second, fn);
    }
  }
  template <typename Fn>
  void ForEach(Fn&& fn) const {
    Walk(false, fn);
  }
  // Each part with its cluster's key; of positions first and count.
  template <typename Fn>
  void ForEachPart(Fn&& fn) const {
    for (const auto& [owner, rows] : rows_) {
      rows.ForEach([&, owner = owner](std::int64_t id, std::string_view bytes) {
        DecodeEach(bytes, PositionDetail::kFirstAndCount,
                   [&](const StoredPart& part) { fn(KeyOf(owner, id), part); });
      });
    }
  }
  // Each cluster's RowPositions with its key.
  template <typename Fn>
  void ForEachPositionsOfLayer(std::int32_t layer, Fn&& fn) const {
    for (auto it = rows_.lower_bound({layer, kAllHeads}); it != rows_.end(); ++it) {
      if (it->first.first != layer) return;
      it->second.ForEach([&, owner = it->first](std::int64_t id, std::string_view bytes) {
        fn(KeyOf(owner, id), RowPositions(bytes));
      });
    }
  }
  std::int64_t cluster_count() const {
    std::int64_t count = 0;
    for (const auto& [owner, rows] : rows_) count += rows.count();
    return count;
  }
  // Only rows that name a log run: the others are passed over without a look at their parts.
  template <typename Fn>
  void ForEachLogged(Fn&& fn) const {
    Walk(true, fn);
  }

  std::int64_t memory_bytes() const;

 private:
  static ClusterKey KeyOf(LayerHead owner, std::int64_t id) {
    return {owner.first, owner.second, ClusterId(id)};
  }
  static StoredPart DecodeOne(ByteReader& in, PositionDetail detail);
  template <typename Fn>
  static void DecodeEach(std::string_view bytes, PositionDetail detail, Fn&& fn) {
    ByteReader in(bytes.substr(1));
    while (!in.at_end()) fn(DecodeOne(in, detail));
    CAIRN_CHECK(in.ok());
  }
  static std::vector<StoredPart> Decode(std::string_view bytes);
  static bool NamesLog(std::string_view bytes) { return bytes.front() != 0; }
  std::optional<std::string_view> Bytes(const ClusterKey& key) const;

  template <typename Fn>
  static void ForEachKeyIn(LayerHead owner, const PackedMap& rows, Fn&& fn) {
    rows.ForEach([&](std::int64_t id, std::string_view) { fn(KeyOf(owner, id)); });
  }
  template <typename Fn>
  void Walk(bool logged_only, Fn&& fn) const {
    for (const auto& [owner, rows] : rows_) {
      rows.ForEach([&, owner = owner](std::int64_t id, std::string_view bytes) {
        if (logged_only && !NamesLog(bytes)) return;
        fn(KeyOf(owner, id), Decode(bytes));
      });
    }
  }

  std::map<LayerHead, PackedMap> rows_;  // by cluster id
};

}  // namespace cairn::kv
