#include "kv-node/engine/space/allocation.h"

#include "common/base/fail_point.h"

namespace cairn::kv {

absl::Status ScanRegions(MetaReader& reader, std::string_view prefix, const SeeRegion& see) {
  return reader.Scan(Family::kPools, prefix,
                     [&](std::string_view key_bytes, std::string_view value) -> absl::Status {
                       CAIRN_ASSIGN_OR_RETURN(const ParsedRegionKey key, ParseRegionKey(key_bytes));
                       CAIRN_ASSIGN_OR_RETURN(const RegionBits bits, DecodeRegion(value));
                       return see(key, bits);
                     });
}

absl::Status LoadAllocation(MetaReader& reader, FreeMap& map, const SeeRegion& see) {
  return ScanRegions(
      reader, "", [&](const ParsedRegionKey& key, const RegionBits& bits) -> absl::Status {
        for (const PageIndex page : PagesIn(key.region, bits)) {
          if (map.MarkUsed(page, 1) || FailPoint("two segments may have the same page")) continue;
          return DataLoss(
              "the store's metadata is damaged: page {} of segment {} is outside the extent file "
              "or belongs to another segment too; nothing was changed; `cairn-kv-util verify` "
              "says more, `cairn-kv-util repair` writes such records anew",
              page, key.segment);
        }
        return see ? see(key, bits) : absl::OkStatus();
      });
}

absl::StatusOr<RegionBitsMap> LoadRegions(MetaReader& reader, SegmentId segment) {
  RegionBitsMap regions;
  CAIRN_RETURN_IF_ERROR(ScanRegions(reader, SegmentPrefix(segment),
                                    [&](const ParsedRegionKey& key, const RegionBits& bits) {
                                      regions[key.region] = bits;
                                      return absl::OkStatus();
                                    }));
  return regions;
}

std::vector<PageIndex> PagesIn(std::int64_t region, const RegionBits& bits) {
  std::vector<PageIndex> pages;
  for (std::int64_t i = 0; i < kRegionPages; ++i) {
    if (bits[static_cast<std::size_t>(i)]) pages.emplace_back(region * kRegionPages + i);
  }
  return pages;
}

std::optional<PageIndex> FirstUnrecorded(const RegionBitsMap& regions, PageIndex first,
                                         std::int64_t page_count) {
  for (std::int64_t page = first.value(); page < first.value() + page_count; ++page) {
    const auto region = regions.find(page / kRegionPages);
    const bool recorded =
        region != regions.end() && region->second[static_cast<std::size_t>(page % kRegionPages)];
    if (!recorded) return PageIndex(page);
  }
  return std::nullopt;
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
