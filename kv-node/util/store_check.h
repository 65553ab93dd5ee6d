// CheckStore reads everything of a stopped store and tells what contradicts the rules by which the
// engine writes: rows, references, allocation, the bytes of every part, positions of every session.
//
// Threading:  one thread.
// Blocking:   reads all rows twice and every page that a part names once.
// Memory:     for each page of the extent file two bits; for each segment and session about 100
//             bytes, at most kSegmentsMax of them; kWindowBytes; and the rows of one segment or of
//             one session's chain, as an attached session has them.
// Errors:     of the call itself: RESOURCE_EXHAUSTED more segments than kSegmentsMax. All that is
//             wrong with the store is a finding.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "kv-node/util/finding.h"

namespace cairn::kv {

// Segments and sessions together.
inline constexpr std::int64_t kSegmentsMax = std::int64_t{1} << 20;
// Pages are read in pieces of this size.
inline constexpr std::int64_t kWindowBytes = std::int64_t{1} << 20;
// Rows that nobody can name, kept for a repair; a store with more is repaired in several rounds.
inline constexpr std::size_t kStrayRowsMax = 65536;

// A store that is open for reading.
struct StoreView {
  StoreId store_id{};
  int fd = -1;  // of the extent file
  std::string path;
  std::int64_t page_count = 0;
  MetaReader* meta = nullptr;
  // Pages that the disk cannot read count as lost. Otherwise they are findings that nothing is done
  // about: the disk may read them another time.
  bool unreadable_is_lost = false;
};

using Regions = std::map<std::int64_t, RegionBits>;

// What is known of a segment after the check.
struct SegmentEntry {
  bool has_head = false;  // a head row that decodes
  SegmentId parent;
  std::int64_t start = 0;
  std::int64_t token_count = 0;
  bool sealed = false;
  bool has_checkpoint = false;
  bool has_policy = false;
  bool needed = false;      // by a session
  bool lost = false;        // something of it is damaged: no session may show it
  bool drops_rows = false;  // that it can do without, and that keep it from being opened
  // Its allocation records are wrong, and these would be right. Empty records: nothing to say.
  std::optional<Regions> right_regions;
};

struct SessionEntry {
  bool readable = false;
  SegmentId segment;
  std::int64_t token_count = 0;
  bool lost = false;  // its segments are whole, and yet it cannot be shown
};

struct StoreSurvey {
  std::map<SegmentId, SegmentEntry> segments;
  std::map<SessionId, SessionEntry> sessions;
  std::vector<std::pair<Family, std::string>> stray_rows;
  std::vector<std::string> lost_index_runs;  // keys of the family `runs`
  std::int64_t unreadable_page_count = 0;    // and not given up
  bool incomplete = false;  // RocksDB could not read some rows: what is not seen may be whole
  std::optional<std::int64_t> next_id;
  std::int64_t largest_id = 0;  // of a session, segment or part
  std::int64_t part_count = 0;
  std::int64_t checked_page_count = 0;  // a page that two parts share counts twice
  std::int64_t allocated_page_count = 0;
  std::int64_t named_page_count = 0;  // in extents that parts name

  // The chain of segments from `segment` to its root, as far as the parents are there and older.
  std::vector<SegmentId> ChainOf(SegmentId segment) const;
  // True when the chain ends with a segment that has no parent.
  bool ReachesRoot(const std::vector<SegmentId>& chain) const;
};

absl::StatusOr<StoreSurvey> CheckStore(const StoreView& store, const FindingSink& sink);

}  // namespace cairn::kv
