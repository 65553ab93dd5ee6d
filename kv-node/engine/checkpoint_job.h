// What a checkpoint holds between its cut and its acknowledgement, and the plan of its log runs.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "common/io/aligned_buffer.h"
#include "kv-node/engine/attached_session.h"

namespace cairn::kv {

inline bool IsLog(const StoredPart& part) { return part.kind == ExtentKind::kLogRun; }

// Log runs of one size class that a segment may have, beside those that are full of clusters which
// lie nowhere else (rule 19).
inline constexpr int kLogRunsMax = 8;

// Bytes of runs whose records are written again in one, because those are read into memory for it;
// a single run may be longer. Classes of longer runs have more than kLogRunsMax, and each of those
// is written again once half of it is free.
inline constexpr std::int64_t kRelogReadBytesMax = std::int64_t{4} << 20;

// Entries of one row that get a record in a new run, or keep the one that they have.
struct LogItem {
  static LogItem Existing(Part part) { return {std::move(part), false, false, {}, {}}; }
  static LogItem New(Positions positions, std::string_view entries) {
    return {std::nullopt, false, false, std::move(positions), entries};
  }

  bool needs_record() const { return again || !existing.has_value(); }

  std::optional<Part> existing;  // keeps its record, or is written again when `again` is set
  bool again = false;
  bool rest_of_again = false;  // was cut from one that is written again
  Positions positions;         // of new records
  std::string_view entries;    // of new records
};

struct AttachedSession::LogPlan {
  // Rows of the open segment as they will be; a row that is not here stays.
  std::map<ClusterKey, std::vector<LogItem>> parts;
  std::vector<ClusterKey> order;  // of `parts`: what is fetched together is next to each other
  std::map<ClusterKey, std::vector<LogItem>> carried;
  std::map<ClusterKey, std::vector<PendingChunk>> pending;  // keeps `entries` of parts alive
  std::vector<PageIndex> pages_to_read;                     // of records that are written again
  std::int64_t new_bytes = 0;
  std::int64_t again_bytes = 0;
  bool is_spill = false;  // else a checkpoint's
  // What is carried goes to runs of its own. In a segment that is sealed no cluster will name these
  // records, and while they lie elsewhere the clusters' runs can go when those are packed.
  bool carried_apart = false;

  // Calls `fn` with the key and the items of every row, always in the same order. REQUIRES: `order`
  // has been set.
  void ForEachRow(const std::function<void(const ClusterKey&, std::vector<LogItem>&)>& fn) {
    for (const ClusterKey& key : order) fn(key, parts.at(key));
    for (auto& [key, items] : carried) fn(key, items);
  }
};

// The runs that a checkpoint writes, while they are filled: one, or several where flash has no
// range of free pages that is long enough.
struct AttachedSession::LogRuns {
  struct Run {
    ExtentRef extent;
    SharedBuffer image;
    std::int64_t used_bytes = 0;

    std::int64_t room_bytes() const { return extent->size_bytes() - used_bytes; }
  };
  // Where the next record goes. REQUIRES: there is a run with room for it.
  Run& RunFor(std::int64_t record_bytes);
  // What comes from here on is carried.
  void BeginCarried() { current = std::max(current, first_of_carried); }

  std::vector<Run> runs;
  std::size_t current = 0;
  std::size_t first_of_carried = 0;  // the first run that is for carried rows only; 0: none
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
  std::vector<ExtentRef> dropped;   // with an end that they cease to name: in use until then
};

// Recomputes the checksums of the pages that entries first .. first + count - 1 of a part touch.
// `image` begins at byte `image_begin` of the extent and holds all of the part's bytes in those
// pages.
void SetCrcs(const StoreId& store, Part& part, std::int64_t entry_bytes, std::int64_t first,
             std::int64_t count, const AlignedBuffer& image, std::int64_t image_begin);

}  // namespace cairn::kv
