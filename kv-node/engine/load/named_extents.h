// Which extents stored rows name: collected while rows are read, in several threads, and checked
// and counted when all are there.
//
// Threading:  value types; not synchronised.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "kv-node/engine/state/segment_parts.h"

namespace cairn::kv {

class NamedExtents {
 public:
  struct Other {
    PageIndex first_page;
    std::int64_t page_count = 0;
    ExtentKind kind = ExtentKind::kPool;
    friend auto operator<=>(const Other&, const Other&) = default;
  };
  struct Run {
    std::int64_t page_count = 0;
    std::int64_t cluster_bytes = 0;  // of entries that rows of clusters name
    bool differs = false;            // rows name it with several page counts
  };

  // `cluster_bytes`: of the part's entries, in a row of a cluster.
  void Add(const StoredPart& part, std::int64_t cluster_bytes = 0);
  void Append(NamedExtents later);

  const std::map<PageIndex, Run>& runs() const { return runs_; }  // log runs
  // What is named again behind itself is here once, as parts in one packed run are.
  const std::vector<Other>& others() const { return others_; }

 private:
  std::map<PageIndex, Run> runs_;
  std::vector<Other> others_;
};

// The extents that some segments' rows name. Runs are shared by all parts in them, and exist as
// long as one does; they are committed: their pages are in use already.
//
// Errors:     DATA_LOSS an extent lies beyond the extent file, or rows mean two by one page.
class ExtentTable {
 public:
  explicit ExtentTable(std::shared_ptr<FreeMap> free_map) : free_map_(std::move(free_map)) {}

  absl::Status Add(const NamedExtents& named);
  // A run whose parts one row names, all of them.
  absl::Status AddRunOfOne(const StoredPart& part);
  // REQUIRES: all were added.
  absl::Status Check();

  // Of a part of an index run. Its pages stay in use until a commit ceases to name them.
  ExtentRef Committed(const StoredPart& part) const {
    return std::make_shared<Extent>(free_map_, part.kind, part.first_page, part.page_count, true);
  }
  // REQUIRES: `named` was added.
  std::map<PageIndex, SegmentParts::LogRun> LogRunsOf(const NamedExtents& named) const;
  const std::map<PageIndex, ExtentRef>& runs() const { return runs_; }
  std::vector<ExtentRef> LogExtents() const;

 private:
  absl::Status AddOther(const NamedExtents::Other& other);
  absl::Status CheckPlace(PageIndex first_page, std::int64_t page_count) const;

  const std::shared_ptr<FreeMap> free_map_;
  std::map<PageIndex, ExtentRef> runs_;  // log runs
  std::set<PageIndex> runs_of_one_;
  std::vector<NamedExtents::Other> others_;
};

}  // namespace cairn::kv
