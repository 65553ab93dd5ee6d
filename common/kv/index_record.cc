#include "common/kv/index_record.h"

#include "common/base/check.h"

namespace cairn {
namespace {

template <typename T>
void Put(std::span<std::byte> out, std::size_t at, T value) {
  std::memcpy(out.data() + at, &value, sizeof value);
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

}  // namespace cairn
