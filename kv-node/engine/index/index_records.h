// Index rows of one segment as records, for an answer or a run.
//
// Threading:  none of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv-node/engine/state/session_state.h"

namespace cairn::kv {

// What changed of a segment's rows since its run was written, where asked for with a row of no
// entries for each that is gone.
std::vector<IndexRow> ChangedRows(const SegmentRows& rows, std::int32_t layer, bool with_gone);
// A row of no entries for each row of older segments that it hides.
std::vector<IndexRow> HiddenRows(const SegmentRows& rows, std::int32_t layer);
// As records, each as large as the largest.
std::int64_t RecordBytesOf(std::span<const IndexRow> rows);
PendingChunk EncodeRecords(std::span<const IndexRow> rows);

// RESOURCE_EXHAUSTED: more than one answer may have.
absl::Status CheckIndexBytes(std::int64_t bytes);
// UNAVAILABLE, with what to do.
absl::Status UnreadableIndex(SessionId session, std::int32_t layer);

}  // namespace cairn::kv
