#include "kv-node/engine/space/allocation.h"

#include "common/base/fail_point.h"

namespace cairn::kv {

absl::Status LoadAllocation(
    MetaReader& reader, FreeMap& map,
    const std::function<void(const ParsedRegionKey&, const RegionBits&)>& see) {
  return reader.Scan(
      Family::kPools, "", [&](std::string_view key_bytes, std::string_view value) -> absl::Status {
        CAIRN_ASSIGN_OR_RETURN(const ParsedRegionKey key, ParseRegionKey(key_bytes));
        CAIRN_ASSIGN_OR_RETURN(const RegionBits bits, DecodeRegion(value));
        for (std::int64_t i = 0; i < kRegionPages; ++i) {
          if (!bits[static_cast<std::size_t>(i)]) continue;
          const PageIndex page(key.region * kRegionPages + i);
          if (map.MarkUsed(page, 1) || FailPoint("two segments may have the same page")) continue;
          return DataLoss(
              "the store's metadata is damaged: page {} of segment {} is outside the extent file "
              "or belongs to another segment too; nothing was changed; `cairn-kv-util verify` "
              "says more, `cairn-kv-util repair` writes such records anew",
              page, key.segment);
        }
        see(key, bits);
        return absl::OkStatus();
      });
}

absl::StatusOr<RegionBitsMap> LoadRegions(MetaReader& reader, SegmentId segment) {
  RegionBitsMap regions;
  CAIRN_RETURN_IF_ERROR(
      reader.Scan(Family::kPools, SegmentPrefix(segment),
                  [&](std::string_view key_bytes, std::string_view value) -> absl::Status {
                    CAIRN_ASSIGN_OR_RETURN(const ParsedRegionKey key, ParseRegionKey(key_bytes));
                    CAIRN_ASSIGN_OR_RETURN(regions[key.region], DecodeRegion(value));
                    return absl::OkStatus();
                  }));
  return regions;
}

void AllocationEdit::Mark(PageIndex first, std::int64_t page_count, bool used) {
  for (std::int64_t page = first.value(); page < first.value() + page_count; ++page) {
    regions_[page / kRegionPages].set(static_cast<std::size_t>(page % kRegionPages), used);
    changed_.insert(page / kRegionPages);
  }
}

void AllocationEdit::PutTo(MetaBatch& batch, SegmentId segment) {
  for (const std::int64_t region : changed_) {
    const RegionBits& bits = regions_[region];
    if (bits.any()) {
      batch.Put(Family::kPools, RegionKey(segment, region), EncodeRegion(bits));
    } else {
      batch.Delete(Family::kPools, RegionKey(segment, region));
      regions_.erase(region);
    }
  }
  changed_.clear();
}

}  // namespace cairn::kv
