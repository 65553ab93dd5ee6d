// The allocation records of all segments, from which the free map is made.
//
// Threading:  pure functions of a reader.
// Errors:     DATA_LOSS a record is damaged, or two of them contradict each other or the file.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "kv-node/layout/free_map.h"
#include "kv-node/layout/rows.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

using RegionBitsMap = std::map<std::int64_t, RegionBits>;  // by region

// Calls `see` for each record with a key of this prefix.
using SeeRegion = std::function<absl::Status(const ParsedRegionKey&, const RegionBits&)>;
absl::Status ScanRegions(MetaReader& reader, std::string_view prefix, const SeeRegion& see);
// Marks the pages of all records in `map`, which has none but the superblock's, and calls `see` for
// each record.
absl::Status LoadAllocation(MetaReader& reader, FreeMap& map, const SeeRegion& see = nullptr);
absl::StatusOr<RegionBitsMap> LoadRegions(MetaReader& reader, SegmentId segment);

// The pages that a record has.
std::vector<PageIndex> PagesIn(std::int64_t region, const RegionBits& bits);
// The first of some pages that a segment's records do not have, which may be another segment's.
std::optional<PageIndex> FirstUnrecorded(const RegionBitsMap& regions, PageIndex first,
                                         std::int64_t page_count);

// Changes of one segment's records: first in memory, then in a batch.
class AllocationEdit {
 public:
  explicit AllocationEdit(RegionBitsMap& regions) : regions_(regions) {}

  void Mark(PageIndex first, std::int64_t page_count, bool used);
  // Puts the records that were changed. One without a page is none.
  void PutTo(MetaBatch& batch, SegmentId segment);

 private:
  RegionBitsMap& regions_;
  std::set<std::int64_t> changed_;
};

}  // namespace cairn::kv
