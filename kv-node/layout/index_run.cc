#include "kv-node/layout/index_run.h"

#include <cstring>

#include "common/base/check.h"
#include "kv-node/layout/byte_codec.h"

namespace cairn::kv {
namespace {

constexpr std::uint16_t kStaleBit = 1;
constexpr std::uint8_t kGoneFlags = 2;
constexpr std::uint8_t kHidesOlder = 1;

absl::Status DamagedIndexRun() {
  return DataLoss("a stored row of an index run is damaged or of a newer version");
}

// Little-endian, as all that is on flash.
template <typename T>
void Put(std::span<std::byte> out, std::size_t at, T value) {
  std::memcpy(out.data() + at, &value, sizeof value);
}
template <typename T>
T Get(std::span<const std::byte> in, std::size_t at) {
  T value;
  std::memcpy(&value, in.data() + at, sizeof value);
  return value;
}

// Parts of a run lie behind each other from its first byte on, and so do their records.
bool IsNext(const StoredIndexRun& run, const StoredPart& part, std::int64_t record) {
  const StoredPart& first = run.parts.front();
  return part.kind == ExtentKind::kIndexRun && part.direction == Direction::kUp &&
         part.first_page == first.first_page && part.page_count == first.page_count &&
         part.offset_bytes == record * run.record_bytes && part.positions.first() == record &&
         part.positions.runs().size() == 1;
}

}  // namespace

std::string IndexRunKey(SegmentId segment, std::int32_t layer) {
  return SegmentLayerPrefix(segment, layer);
}

absl::StatusOr<std::int32_t> ParseIndexRunKey(std::string_view key) {
  constexpr std::size_t kBytes = 10;
  if (key.size() != kBytes || static_cast<std::uint8_t>(key[0]) >= 0x80) {
    return DataLoss("a key of family runs with {} bytes is damaged", key.size());
  }
  return static_cast<std::int32_t>(static_cast<std::uint8_t>(key[kBytes - 2])) << 8 |
         static_cast<std::int32_t>(static_cast<std::uint8_t>(key[kBytes - 1]));
}

std::string EncodeIndexRun(const IndexRun& run) {
  ByteWriter out;
  out.Byte(kRowVersion);
  out.Byte(run.hides_older ? kHidesOlder : 0);
  out.Varint(run.record_bytes);
  out.Varint(run.record_count());
  if (!run.parts.empty()) out.Raw(EncodeParts(run.parts, run.record_bytes));
  return out.Take();
}

absl::StatusOr<StoredIndexRun> DecodeIndexRun(std::string_view bytes) {
  ByteReader in(bytes);
  if (in.Byte() != kRowVersion) return DamagedIndexRun();
  StoredIndexRun run;
  const std::uint8_t flags = in.Byte();
  run.hides_older = flags == kHidesOlder;
  run.record_bytes = in.Count(kIndexRecordBytesMax);
  const std::int64_t record_count = in.Count(kPositionMax);
  if (!in.ok() || flags > kHidesOlder) return DamagedIndexRun();
  if (run.hides_older && run.record_bytes == 0 && record_count == 0 && in.remaining() == 0) {
    return run;
  }
  if (run.record_bytes < kIndexRecordHeaderBytes) return DamagedIndexRun();
  CAIRN_ASSIGN_OR_RETURN(run.parts, DecodeParts(in.Raw(in.remaining()), run.record_bytes));
  if (run.parts.empty()) return DamagedIndexRun();
  std::int64_t record = 0;
  for (const StoredPart& part : run.parts) {
    if (!IsNext(run, part, record)) return DamagedIndexRun();
    record += part.count();
  }
  if (record != record_count) return DamagedIndexRun();
  return run;
}

std::int64_t IndexRecordBytes(const IndexRow& row) {
  return kIndexRecordHeaderBytes + std::ssize(row.row);
}

void EncodeIndexRecord(const IndexRow& row, std::span<std::byte> out) {
  CAIRN_CHECK_LE(IndexRecordBytes(row), std::ssize(out));
  const auto row_bytes = static_cast<std::uint16_t>(row.row.size());
  Put(out, 0, row.cluster.cluster_id.value());
  Put(out, 8, static_cast<std::uint32_t>(row.entry_count));
  Put(out, 12, static_cast<std::int16_t>(row.cluster.head));
  Put(out, 14, static_cast<std::uint16_t>(row_bytes << 1 | (row.stale ? kStaleBit : 0)));
  std::memcpy(out.data() + kIndexRecordHeaderBytes, row.row.data(), row.row.size());
}

absl::StatusOr<IndexRow> DecodeIndexRecord(std::span<const std::byte> record) {
  IndexRow row;
  const auto size_and_stale = Get<std::uint16_t>(record, 14);
  const std::size_t row_bytes = size_and_stale >> 1;
  row.cluster.head = Get<std::int16_t>(record, 12);
  row.cluster.cluster_id = ClusterId(Get<std::int64_t>(record, 0));
  row.entry_count = Get<std::uint32_t>(record, 8);
  row.stale = (size_and_stale & kStaleBit) != 0;
  if (kIndexRecordHeaderBytes + row_bytes > record.size() || row.cluster.head < kAllHeads ||
      row.cluster.cluster_id.value() < 1) {
    return DataLoss("a record of an index run is damaged");
  }
  row.row.assign(reinterpret_cast<const char*>(record.data()) + kIndexRecordHeaderBytes, row_bytes);
  return row;
}

std::string GoneIndexRow() {
  ByteWriter out;
  out.Byte(kRowVersion);
  out.Byte(kGoneFlags);
  return out.Take();
}

absl::Status CheckIndexChange(const ClusterKey& key, std::string_view value) {
  if (value == GoneIndexRow()) return absl::OkStatus();
  return DecodeIndexRow(key, value).status();
}

}  // namespace cairn::kv
