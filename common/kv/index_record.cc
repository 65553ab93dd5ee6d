#include "common/kv/index_record.h"

#include <algorithm>
#include <iterator>

#include "common/base/check.h"

namespace cairn {
namespace {

template <typename T>
void Put(std::span<std::byte> out, std::size_t at, T value) {
  std::memcpy(out.data() + at, &value, sizeof value);
}

bool IsOfEarlierCluster(const IndexRecord& a, const IndexRecord& b) {
  return a.cluster < b.cluster;
}

void AppendAscending(const IndexRecords& run, std::vector<IndexRecord>& out) {
  const std::size_t first = out.size();
  for (std::int64_t i = 0; i < run.record_count; ++i) {
    const std::optional<IndexRecord> record = run.At(i);
    const bool ascends =
        record.has_value() && (out.size() == first || IsOfEarlierCluster(out.back(), *record));
    if (ascends) out.push_back(*record);
  }
}

}  // namespace

void EncodeIndexRecord(const IndexRow& row, std::span<std::byte> out) {
  CAIRN_CHECK_LE(IndexRecordBytes(row), std::ssize(out));
  CAIRN_CHECK_LE(std::ssize(row.row), kIndexRowBytesMax);
  const auto row_bytes = static_cast<std::uint16_t>(row.row.size());
  Put(out, 0, row.cluster.cluster_id.value());
  Put(out, 8, static_cast<std::uint32_t>(row.entry_count));
  Put(out, 12, static_cast<std::int16_t>(row.cluster.head));
  Put(out, 14, static_cast<std::uint16_t>(std::uint32_t{row_bytes} << 1 | (row.stale ? 1U : 0U)));
  std::memcpy(out.data() + kIndexRecordHeaderBytes, row.row.data(), row.row.size());
}

void FindVisibleRecords(std::span<const IndexRecords> runs, std::vector<IndexRecord>& visible) {
  visible.clear();
  std::int64_t record_count = 0;
  for (const IndexRecords& run : runs) record_count += run.record_count;
  visible.reserve(static_cast<std::size_t>(record_count));
  for (const IndexRecords& run : runs) {
    const std::ptrdiff_t older_count = std::ssize(visible);
    AppendAscending(run, visible);
    const auto newer = visible.begin() + older_count;
    const bool ascends =
        older_count == 0 || newer == visible.end() || IsOfEarlierCluster(*std::prev(newer), *newer);
    // Of one cluster the older record stays in front.
    if (!ascends) std::inplace_merge(visible.begin(), newer, visible.end(), IsOfEarlierCluster);
  }
  std::size_t kept_count = 0;
  for (std::size_t i = 0; i < visible.size(); ++i) {
    const bool is_last = i + 1 == visible.size() || visible[i].cluster != visible[i + 1].cluster;
    if (is_last && visible[i].entry_count > 0) visible[kept_count++] = visible[i];
  }
  visible.resize(kept_count);
}

}  // namespace cairn
