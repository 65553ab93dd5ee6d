// PartRows: the parts of a segment's clusters, by cluster, as rows of bytes: a part of eight
// scattered entries takes about 39 bytes, where a Part takes 400. In memory only; what a store
// holds is in layout/rows.h.
//
// Threading:  a value type; not synchronised.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "kv-node/engine/space/cluster_map.h"
#include "kv-node/layout/rows.h"

namespace cairn::kv {

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
    const std::optional<std::string_view> row = rows_.Find(key);
    if (row) DecodeEach(*row, detail, fn);
  }
  bool Contains(const ClusterKey& key) const { return rows_.Find(key).has_value(); }
  // REQUIRES: there are parts, and the cluster's id is not negative.
  void Put(const ClusterKey& key, const std::vector<StoredPart>& parts);
  void Erase(const ClusterKey& key) { rows_.Erase(key); }
  // REQUIRES: what is appended has none of the layers that are here.
  void Append(PartRows later) { rows_.Append(std::move(later.rows_)); }

  // In ascending order of keys. `fn` changes nothing here.
  template <typename Fn>
  void ForEachKey(Fn&& fn) const {
    rows_.ForEach([&](const ClusterKey& key, std::string_view) { fn(key); });
  }
  template <typename Fn>
  void ForEachKeyOfLayer(std::int32_t layer, Fn&& fn) const {
    rows_.ForEachOfLayer(layer, [&](const ClusterKey& key, std::string_view) { fn(key); });
  }
  // The largest id of each (layer, head).
  template <typename Fn>
  void ForEachLastKey(Fn&& fn) const {
    rows_.ForEachLastKey(fn);
  }
  template <typename Fn>
  void ForEach(Fn&& fn) const {
    rows_.ForEach([&](const ClusterKey& key, std::string_view row) { fn(key, Decode(row)); });
  }
  // Only rows that name a log run: the others are passed over without a look at their parts.
  template <typename Fn>
  void ForEachLogged(Fn&& fn) const {
    rows_.ForEach([&](const ClusterKey& key, std::string_view row) {
      if (NamesLog(row)) fn(key, Decode(row));
    });
  }
  // Each part with its cluster's key; of positions first and count.
  template <typename Fn>
  void ForEachPart(Fn&& fn) const {
    rows_.ForEach([&](const ClusterKey& key, std::string_view row) {
      DecodeEach(row, PositionDetail::kFirstAndCount,
                 [&](const StoredPart& part) { fn(key, part); });
    });
  }
  // Each cluster's RowPositions with its key.
  template <typename Fn>
  void ForEachPositionsOfLayer(std::int32_t layer, Fn&& fn) const {
    rows_.ForEachOfLayer(
        layer, [&](const ClusterKey& key, std::string_view row) { fn(key, RowPositions(row)); });
  }

  std::int64_t cluster_count() const { return rows_.count(); }
  std::int64_t memory_bytes() const { return rows_.memory_bytes(); }

 private:
  static StoredPart DecodeOne(ByteReader& in, PositionDetail detail);
  template <typename Fn>
  static void DecodeEach(std::string_view row, PositionDetail detail, Fn&& fn) {
    ByteReader in(row.substr(1));
    while (!in.at_end()) fn(DecodeOne(in, detail));
    CAIRN_CHECK(in.ok());
  }
  static std::vector<StoredPart> Decode(std::string_view row);
  static bool NamesLog(std::string_view row) { return row.front() != 0; }

  ClusterMap rows_;
};

}  // namespace cairn::kv
