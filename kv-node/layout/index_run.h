// Index runs: the index rows of one layer of a segment, packed as records of one size behind each
// other, in ascending order of (head, cluster id). Rows that change later lie in the family `index`
// until the run is written anew. docs/on-disk-format.md has the bytes.
//
// Units:      bytes; records are numbered from 0, and a part's positions are such numbers.
// Threading:  values and pure functions.
// Errors:     every Decode answers DATA_LOSS for bytes that no Encode makes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/kv/index_record.h"
#include "common/kv/messages.h"
#include "kv-node/layout/part.h"
#include "kv-node/layout/rows.h"

namespace cairn::kv {

// P: Part, or StoredPart as the rows have it.
template <typename P>
struct PartsOfIndex {
  std::int64_t record_bytes = 0;
  // Rows of older segments do not show: what this run had to say of their clusters is lost. Such a
  // run may be without records.
  bool hides_older = false;
  std::vector<P> parts;  // side by side in one extent

  std::int64_t record_count() const {
    return parts.empty() ? 0 : parts.back().positions.last() + 1;
  }
};
using IndexRun = PartsOfIndex<Part>;
using StoredIndexRun = PartsOfIndex<StoredPart>;

// Of family `runs`.
std::string IndexRunKey(SegmentId segment, std::int32_t layer);
absl::StatusOr<std::int32_t> ParseIndexRunKey(std::string_view key);  // the layer
std::string EncodeIndexRun(const IndexRun& run);
absl::StatusOr<StoredIndexRun> DecodeIndexRun(std::string_view bytes);

absl::StatusOr<IndexRow> DecodeIndexRecord(std::span<const std::byte> record);

// The value, in family `index`, of a cluster whose record in the run counts no more.
std::string GoneIndexRow();
// DATA_LOSS unless the value is that, or a row.
absl::Status CheckIndexChange(const ClusterKey& key, std::string_view value);

}  // namespace cairn::kv
