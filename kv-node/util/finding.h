// What a check of a store found: one finding is one line of the output of cairn-kv-util.
// docs/on-disk-format.md, "Checking and repairing a stopped store", says what each kind means.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "kv-node/layout/rows.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

enum class FindingKind : std::uint8_t {
  kSuperblock,        // a copy is damaged
  kMetadata,          // RocksDB's files are damaged, missing, older, or another store's
  kRow,               // a row that no writer makes, or of a family that has none
  kNextId,            // missing, or not above an id that is in use
  kMissing,           // a session or segment names a segment that is not there
  kChain,             // two neighbours of a chain do not fit, or a session and its segment
  kOrphanSegment,     // no session needs it
  kOrphanRows,        // rows of a segment that has no head
  kAllocation,        // an allocation record names a page twice or outside the file
  kPageUnallocated,   // a part lies there, and its segment's records do not say so
  kPageUnreferenced,  // allocated, and no part's extent holds it
  kExtent,            // outside the file, or two extents that contradict or overlap each other
  kPart,              // at a place where no part can be, an id twice, or too few checksums
  kPartOverlap,       // two parts share bytes
  kPageDamaged,       // a part's bytes there fail their check
  kPageUnreadable,    // the disk cannot read it
  kIndexRun,          // index rows of a layer are damaged: clusters of it have none
  kSession,           // the engine would not open it
  kPositions,         // some layer and head do not show each of 0 .. T-1 once
  kTokens,            // token ids are missing
};

struct Finding {
  FindingKind kind = FindingKind::kRow;
  std::string reason{};
  SessionId session{};  // 0: none, like the ids below
  SegmentId segment{};
  std::optional<ClusterKey> cluster{};
  PartId part{};
  std::int64_t page = -1;       // -1: none
  std::int64_t page_count = 1;  // from `page` on
  std::string row{};            // family/key in hexadecimal digits; empty: none
};

// "finding kind=page_damaged segment=9 ... reason="..."", without a line end.
std::string FormatFinding(const Finding& finding);
std::string RowName(Family family, std::string_view key);

using FindingSink = std::function<void(const Finding&)>;

}  // namespace cairn::kv
