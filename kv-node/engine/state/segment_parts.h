// SegmentParts: the parts of a segment's clusters. Rows are kept packed; a part that is asked for
// is made of its row then, and holds its extent, so that its pages are given to nothing else while
// the part is in use.
//
// Threading:  the engine thread.
// Ownership:  the log runs that rows name. Pools belong to the PoolTable as long as the segment is
//             open; a sealed segment's pages are in use by what is committed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "kv-node/engine/space/part_rows.h"
#include "kv-node/engine/space/pool_table.h"

namespace cairn::kv {

class SegmentParts {
 public:
  struct LogRun {
    ExtentRef extent;
    std::int64_t named_bytes = 0;  // of entries that rows name
  };

  SegmentParts() = default;
  // An open segment without parts.
  SegmentParts(EntryLayout layout, std::shared_ptr<PoolTable> pools)
      : layout_(layout), pools_(std::move(pools)) {}
  // What a store holds. `runs` has the log runs that the rows name; `pools` adopted the parts in
  // pools, and is null for a sealed segment.
  SegmentParts(EntryLayout layout, std::shared_ptr<PoolTable> pools, PartRows rows,
               std::map<PageIndex, LogRun> runs)
      : layout_(layout),
        pools_(std::move(pools)),
        rows_(std::move(rows)),
        log_runs_(std::move(runs)) {}

  // In ascending order of positions; none: the cluster has no row.
  std::vector<Part> Find(const ClusterKey& key) const;
  // Keeps the pages of a part in use as long as the result exists. REQUIRES: a row names it.
  ExtentRef Hold(const StoredPart& part) const;
  // None: the row goes. What becomes of pools is told to the PoolTable, by whoever calls this.
  void Put(const ClusterKey& key, const std::vector<Part>& parts);
  // Reading them without a hold on anything is cheaper.
  const PartRows& rows() const { return rows_; }
  const std::map<PageIndex, LogRun>& log_runs() const { return log_runs_; }

  // The segment is sealed. Returns what is to hold the parts of the one that follows it.
  SegmentParts Seal();

  std::int64_t memory_bytes() const;

 private:
  // Of a log part of a row that comes, or goes.
  void CountLog(const ClusterKey& key, const StoredPart& part, const ExtentRef& extent);
  void UncountLogs(const ClusterKey& key);

  EntryLayout layout_;
  std::shared_ptr<PoolTable> pools_;  // null in a sealed segment
  PartRows rows_;
  std::map<PageIndex, LogRun> log_runs_;
};

}  // namespace cairn::kv
