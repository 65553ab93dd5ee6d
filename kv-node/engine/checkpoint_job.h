// What a checkpoint holds between its cut and its acknowledgement, and the plan of its log run.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "common/io/aligned_buffer.h"
#include "kv-node/engine/attached_session.h"

namespace cairn::kv {

// Log runs of one size class that a segment may have (rule 19).
inline constexpr int kLogRunsMax = 8;

// Entries of one row that get a record in the new run, or keep the one that they have.
struct LogItem {
  static LogItem Existing(Part part) { return {std::move(part), false, {}, {}}; }
  static LogItem New(Positions positions, std::string_view entries) {
    return {std::nullopt, false, std::move(positions), entries};
  }

  std::optional<Part> existing;  // keeps its record, or is written again when `again` is set
  bool again = false;
  Positions positions;       // of new records
  std::string_view entries;  // of new records
};

struct AttachedSession::LogPlan {
  // Rows of the open segment as they will be; a row that is not here stays.
  std::map<ClusterKey, std::vector<LogItem>> parts;
  std::map<ClusterKey, std::vector<LogItem>> carried;
  std::map<ClusterKey, std::vector<PendingChunk>> pending;  // keeps `entries` of parts alive
  std::vector<PageIndex> pages_to_read;                     // of records that are written again
  std::int64_t new_bytes = 0;
  std::int64_t again_bytes = 0;
};

// The run that a checkpoint writes, while it is filled.
struct AttachedSession::LogRun {
  ExtentRef extent;
  SharedBuffer image;
  std::int64_t used_bytes = 0;
  std::int64_t next_id = 0;
};

struct AttachedSession::CheckpointJob {
  OpSeq op_seq;
  Checkpoint op;
  std::uint64_t write_seq = 0;  // all writes up to it must have ended
  bool flushing = false;
  MetaBatch batch;
  // What the session becomes once the batch is committed.
  SessionRow row;
  SegmentRow segment_row;
  SegmentId sealed;
  std::vector<ExtentRef> named;     // extents that committed rows begin to name
  std::vector<ExtentRef> released;  // and those that they cease to name
};

// Recomputes the checksums of the pages that entries first .. first + count - 1 of a part touch.
// `image` begins at byte `image_begin` of the extent and holds all of the part's bytes in those
// pages.
void SetCrcs(const StoreId& store, Part& part, std::int64_t entry_bytes, std::int64_t first,
             std::int64_t count, const AlignedBuffer& image, std::int64_t image_begin);

}  // namespace cairn::kv
