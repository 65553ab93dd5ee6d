// ClusterHeads: the KV heads that a cluster is of, one or all, and where in its entries each one's
// part lies. A head's part of an entry is what an entry of that head alone is: its K row, then its
// V row. An entry of all heads has one part behind the other.
//
// Threading:  plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/kv/messages.h"

namespace cairn::compute {

class ClusterHeads {
 public:
  // `head`: of the cluster; may be kAllHeads.
  ClusterHeads(const EntryLayout& layout, std::int32_t head)
      : first_(head == kAllHeads ? 0 : head),
        end_(head == kAllHeads ? layout.head_count : head + 1),
        part_bytes_(layout.EntryBytes(0)) {}

  // Heads [first, end).
  std::int32_t first() const { return first_; }
  std::int32_t end() const { return end_; }
  std::int64_t count() const { return end_ - first_; }

  // REQUIRES: first() <= head < end().
  const std::byte* PartOf(std::int32_t head, const std::byte* entry) const {
    return entry + (head - first_) * part_bytes_;
  }
  // Appends the head's parts of entries.
  void AppendParts(std::int32_t head, std::span<const std::byte* const> entries,
                   std::vector<const std::byte*>& parts) const {
    for (const std::byte* entry : entries) parts.push_back(PartOf(head, entry));
  }

 private:
  std::int32_t first_;
  std::int32_t end_;
  std::int64_t part_bytes_;
};

// Rows of a table by layer and by the head of a cluster. Of a layer kAllHeads comes first: who goes
// through them counts from there.
inline std::size_t ClusterRowCount(const EntryLayout& layout) {
  return static_cast<std::size_t>(std::int64_t{layout.layer_count} * (layout.head_count + 1));
}
inline std::size_t ClusterRow(const EntryLayout& layout, std::int32_t layer, std::int32_t head) {
  static_assert(kAllHeads == -1);
  return static_cast<std::size_t>(std::int64_t{layer} * (layout.head_count + 1) + head + 1);
}

}  // namespace cairn::compute
