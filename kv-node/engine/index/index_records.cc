#include "kv-node/engine/index/index_records.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include "common/base/check.h"
#include "kv-node/layout/rows.h"

namespace cairn::kv {
namespace {

// All rows of an answer.
constexpr std::int64_t kIndexReplyBytesMax = std::int64_t{256} << 20;

IndexRow RowOfNoEntries(const ClusterKey& key) {
  IndexRow row;
  row.cluster = {key.head, key.cluster_id};
  return row;
}

}  // namespace

absl::Status CheckIndexBytes(std::int64_t bytes) {
  if (bytes <= kIndexReplyBytesMax) return absl::OkStatus();
  return ResourceExhausted("the index rows of a layer take {} bytes: at most {} in one answer",
                           bytes, kIndexReplyBytesMax);
}

std::vector<IndexRow> ChangedRows(const SegmentRows& rows, std::int32_t layer, bool with_gone) {
  std::vector<IndexRow> changed;
  rows.index.ForEachOfLayer(layer, [&](const ClusterKey& key, std::string_view value) {
    if (value == GoneIndexRow()) {
      if (with_gone) changed.push_back(RowOfNoEntries(key));
      return;
    }
    absl::StatusOr<IndexRow> row = DecodeIndexRow(key, value);
    CAIRN_CHECK(row.ok());
    changed.push_back(*std::move(row));
  });
  return changed;
}

std::vector<IndexRow> HiddenRows(const SegmentRows& rows, std::int32_t layer) {
  std::vector<IndexRow> hidden;
  const ClusterKey first{layer, kAllHeads, ClusterId(std::numeric_limits<std::int64_t>::min())};
  for (auto mask = rows.masks.lower_bound(first); mask != rows.masks.end() && mask->layer == layer;
       ++mask) {
    hidden.push_back(RowOfNoEntries(*mask));
  }
  return hidden;
}

std::int64_t RecordBytesOf(std::span<const IndexRow> rows) {
  std::int64_t record_bytes = 0;
  for (const IndexRow& row : rows) record_bytes = std::max(record_bytes, IndexRecordBytes(row));
  return record_bytes;
}

PendingChunk EncodeRecords(std::span<const IndexRow> rows) {
  const auto record_bytes = static_cast<std::size_t>(RecordBytesOf(rows));
  auto bytes = std::make_shared<std::string>(rows.size() * record_bytes, '\0');
  std::span<std::byte> left = std::as_writable_bytes(std::span(*bytes));
  for (const IndexRow& row : rows) {
    EncodeIndexRecord(row, left);
    left = left.subspan(record_bytes);
  }
  return {Positions::Range(0, std::ssize(rows)), std::move(bytes)};
}

absl::Status UnreadableIndex(SessionId session, std::int32_t layer) {
  return Unavailable(
      "the index of layer {} of session {} cannot be read now, and nothing is known to be lost: "
      "check the disk of the KV node, whose log says what it answered, and try again",
      layer, session);
}

}  // namespace cairn::kv
