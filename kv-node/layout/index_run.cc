#include "kv-node/layout/index_run.h"

#include <optional>

#include "kv-node/layout/byte_codec.h"

namespace cairn::kv {
namespace {

constexpr std::uint8_t kGoneFlags = 2;
constexpr std::uint8_t kHidesOlder = 1;

absl::Status DamagedIndexRun() {
  return DataLoss("a stored row of an index run is damaged or of a newer version");
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
  ByteWriter out(kRowVersion);
  out.Byte(run.hides_older ? kHidesOlder : 0);
  out.Varint(run.record_bytes);
  out.Varint(run.record_count());
  if (!run.parts.empty()) out.Raw(EncodeParts(run.parts, run.record_bytes));
  return out.Take();
}

absl::StatusOr<StoredIndexRun> DecodeIndexRun(std::string_view bytes) {
  ByteReader in(bytes, kRowVersion);
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

absl::StatusOr<IndexRow> DecodeIndexRecord(std::span<const std::byte> record) {
  const std::optional<IndexRecord> parsed = ParseIndexRecord(record);
  if (!parsed.has_value()) return DataLoss("a record of an index run is damaged");
  IndexRow row;
  row.cluster = parsed->cluster;
  row.row = parsed->row;
  row.stale = parsed->stale;
  row.entry_count = parsed->entry_count;
  return row;
}

std::string GoneIndexRow() {
  ByteWriter out(kRowVersion);
  out.Byte(kGoneFlags);
  return out.Take();
}

absl::Status CheckIndexChange(const ClusterKey& key, std::string_view value) {
  if (value == GoneIndexRow()) return absl::OkStatus();
  return DecodeIndexRow(key, value).status();
}

}  // namespace cairn::kv
