// IndexRecord: an index row as packed records have it, on flash and in shared memory. Records of
// one size lie behind each other, in ascending order of (head, cluster id).
//
// Layout:     little-endian: cluster id (8 bytes), entry count (4), head (2), twice the row's bytes
//             plus 1 if it is stale (2), the row; what is behind it counts for nothing.
//             docs/on-disk-format.md has its bytes.
// Threading:  values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/kv/messages.h"

namespace cairn {

inline constexpr std::int64_t kIndexRecordHeaderBytes = 16;
inline constexpr std::int64_t kIndexRecordBytesMax = kIndexRecordHeaderBytes + kIndexRowBytesMax;

// A row where its record lies.
struct IndexRecord {
  ClusterRef cluster;
  std::int64_t entry_count = 0;
  bool stale = false;
  std::string_view row;
};

// Bytes of the record of a row, at least; records that lie together are as large as the largest.
inline std::int64_t IndexRecordBytes(const IndexRow& row) {
  return kIndexRecordHeaderBytes + std::ssize(row.row);
}

// REQUIRES: out.size() >= IndexRecordBytes(row). What is behind the row stays.
void EncodeIndexRecord(const IndexRow& row, std::span<std::byte> out);

// Nullopt for bytes that no Encode makes. Thousands of them are read for each layer.
inline std::optional<IndexRecord> ParseIndexRecord(std::span<const std::byte> bytes) {
  if (std::ssize(bytes) < kIndexRecordHeaderBytes) return std::nullopt;
  std::int64_t cluster_id = 0;
  std::uint32_t entry_count = 0;
  std::int16_t head = 0;
  std::uint16_t size_and_stale = 0;
  std::memcpy(&cluster_id, bytes.data(), sizeof cluster_id);
  std::memcpy(&entry_count, bytes.data() + 8, sizeof entry_count);
  std::memcpy(&head, bytes.data() + 12, sizeof head);
  std::memcpy(&size_and_stale, bytes.data() + 14, sizeof size_and_stale);
  const std::int64_t row_bytes = size_and_stale >> 1;
  const bool makes_sense = kIndexRecordHeaderBytes + row_bytes <= std::ssize(bytes) &&
                           head >= kAllHeads && cluster_id >= 1;
  if (!makes_sense) return std::nullopt;
  return IndexRecord{.cluster = {head, ClusterId(cluster_id)},
                     .entry_count = entry_count,
                     .stale = (size_and_stale & 1) != 0,
                     .row = {reinterpret_cast<const char*>(bytes.data()) + kIndexRecordHeaderBytes,
                             static_cast<std::size_t>(row_bytes)}};
}

// Records of one size behind each other, ascending. One of no entries says that older ones of its
// cluster count for nothing.
struct IndexRecords {
  std::span<const std::byte> bytes;
  std::int64_t record_count = 0;

  // Calls fn(const IndexRecord&) for those of a head; what is no record is left out.
  template <typename Fn>
  void ForEachOfHead(std::int32_t head, Fn&& fn) const {
    std::int64_t first = 0;
    for (std::int64_t end = record_count; first < end;) {
      const std::int64_t middle = first + (end - first) / 2;
      const std::optional<IndexRecord> record = At(middle);
      if (record.has_value() && record->cluster.head < head) {
        first = middle + 1;
      } else {
        end = middle;
      }
    }
    for (; first < record_count; ++first) {
      const std::optional<IndexRecord> record = At(first);
      if (!record.has_value()) continue;
      if (record->cluster.head > head) break;
      if (record->cluster.head == head) fn(*record);
    }
  }

  // REQUIRES: 0 <= i < record_count.
  std::optional<IndexRecord> At(std::int64_t i) const {
    const std::size_t record_bytes = bytes.size() / static_cast<std::size_t>(record_count);
    return ParseIndexRecord(
        bytes.subspan(static_cast<std::size_t>(i) * record_bytes, record_bytes));
  }
};

// Fills `visible` with what runs, the oldest first, show together: of each cluster the last record,
// unless that has no entries; ascending. What does not ascend within its run is left out.
void FindVisibleRecords(std::span<const IndexRecords> runs, std::vector<IndexRecord>& visible);

}  // namespace cairn
