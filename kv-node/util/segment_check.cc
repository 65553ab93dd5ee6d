#include "kv-node/util/segment_check.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <optional>
#include <set>
#include <tuple>

#include "common/base/fail_point.h"
#include "kv-node/layout/index_run.h"
#include "kv-node/layout/superblock.h"
#include "kv-node/util/page_window.h"

namespace cairn::kv {
namespace {

// A part with what its row says about it.
struct Placed {
  ParsedClusterRowKey row;
  Part part;
  std::int64_t entry_bytes = 0;
  ByteRange range;                          // in the extent
  std::optional<std::int32_t> index_layer;  // of a part of this layer's index run
};

std::int64_t EndPage(const Extent& extent) { return extent.first().value() + extent.page_count(); }

class SegmentCheck {
 public:
  SegmentCheck(const StoreView& store, SegmentId segment, const SegmentRow& row, FreeMap& named,
               const FindingSink& sink, StoreSurvey& survey)
      : store_(store), id_(segment), row_(row), named_(named), sink_(sink), survey_(survey) {}

  void Run() {
    ReadRows();
    CheckExtents();
    CheckParts();
    CheckIndexRuns();
    CheckAllocation();
    CheckPages();
    survey_.part_count += static_cast<std::int64_t>(parts_.size());
  }

 private:
  SegmentEntry& entry() { return survey_.segments[id_]; }

  Finding About(FindingKind kind, std::string reason) const {
    return {.kind = kind, .reason = std::move(reason), .segment = id_};
  }
  Finding About(FindingKind kind, const Placed& placed, std::string reason) const {
    Finding finding = About(kind, std::move(reason));
    finding.cluster = placed.row.key;
    finding.part = placed.part.id;
    finding.page = placed.part.extent->first().value();
    finding.page_count = placed.part.extent->page_count();
    return finding;
  }
  // Says what is wrong, and that no session may show this segment.
  void Lose(const Finding& finding) {
    entry().lost = true;
    sink_(finding);
  }

  // If a scan has ended with an error.
  void MissRows(const absl::Status& status) {
    if (status.ok()) return;
    survey_.incomplete = true;
    sink_(About(FindingKind::kMetadata, Message(status)));
  }

  void ReadRows();
  absl::Status ReadClusterRow(std::string_view key_bytes, std::string_view value);
  absl::Status ReadIndexRow(std::string_view key_bytes, std::string_view value) const;
  void LoseIndexRun(std::string_view key);
  absl::Status ReadIndexRun(std::string_view key_bytes, std::string_view value);
  void CheckIndexRuns();
  absl::Status CheckLayerAndHead(const ClusterKey& key) const;
  void Place(const ParsedClusterRowKey& key, StoredPart stored, std::int64_t entry_bytes,
             std::optional<std::int32_t> index_layer = std::nullopt);
  void CheckExtents();
  void CheckParts();
  bool MayName(ClusterRowKind row, ExtentKind extent) const;
  void CheckPart(const Placed& placed);
  void CheckAllocation();
  void CheckPages();
  // Whether a finding is about a page that the disk may give another time.
  bool MayBeReadLater(const Finding& finding);
  // Calls `fn` with what is wrong with each page of the part.
  void ForEachBadPage(const Placed& placed, PageWindow& window,
                      const std::function<void(const Finding&)>& fn);

  const StoreView& store_;
  const SegmentId id_;
  const SegmentRow& row_;
  FreeMap& named_;
  const FindingSink& sink_;
  StoreSurvey& survey_;

  const std::shared_ptr<FreeMap> unused_map_ = UnusedMap();
  std::vector<Placed> parts_;
  std::map<PageIndex, ExtentRef> extents_;
};

void SegmentCheck::ReadRows() {
  const auto read_all = [&](Family family, auto read, auto lose) {
    MissRows(store_.meta->Scan(family, SegmentPrefix(id_),
                               [&](std::string_view key, std::string_view value) {
                                 const absl::Status status = (this->*read)(key, value);
                                 if (status.ok()) return absl::OkStatus();
                                 Finding finding = About(FindingKind::kRow, Message(status));
                                 finding.row = RowName(family, key);
                                 lose(finding, key);
                                 return absl::OkStatus();
                               }));
  };
  const auto lose = [this](const Finding& finding, std::string_view) { Lose(finding); };
  read_all(Family::kClusters, &SegmentCheck::ReadClusterRow, lose);
  read_all(Family::kIndex, &SegmentCheck::ReadIndexRow, lose);
  // Clusters may be without index rows: a damaged run goes, and its segment stays.
  read_all(Family::kRuns, &SegmentCheck::ReadIndexRun,
           [this](const Finding& finding, std::string_view key) {
             sink_(finding);
             LoseIndexRun(key);
             entry().drops_rows = true;
           });
}

absl::Status SegmentCheck::CheckLayerAndHead(const ClusterKey& key) const {
  if (key.layer < row_.layout.layer_count && key.head < row_.layout.head_count) {
    return absl::OkStatus();
  }
  return DataLoss("layer {} head {} of a segment with {} layers and {} heads", key.layer, key.head,
                  row_.layout.layer_count, row_.layout.head_count);
}

absl::Status SegmentCheck::ReadClusterRow(std::string_view key_bytes, std::string_view value) {
  CAIRN_ASSIGN_OR_RETURN(const ParsedClusterRowKey key, ParseClusterRowKey(key_bytes));
  CAIRN_RETURN_IF_ERROR(CheckLayerAndHead(key.key));
  switch (key.kind) {
    case ClusterRowKind::kMask:
      return value.empty() ? absl::OkStatus() : DataLoss("a mask has {} bytes", value.size());
    case ClusterRowKind::kEvicted:
      return DecodePositions(value).status();
    case ClusterRowKind::kParts:
    case ClusterRowKind::kCarried: {
      const std::int64_t entry_bytes = row_.layout.EntryBytes(key.key.head);
      CAIRN_ASSIGN_OR_RETURN(std::vector<StoredPart> parts, DecodeParts(value, entry_bytes));
      if (parts.empty()) return DataLoss("the row names no part");
      for (StoredPart& part : parts) Place(key, std::move(part), entry_bytes);
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

absl::Status SegmentCheck::ReadIndexRow(std::string_view key_bytes, std::string_view value) const {
  CAIRN_ASSIGN_OR_RETURN(const ClusterKey key, ParseIndexRowKey(key_bytes));
  CAIRN_RETURN_IF_ERROR(CheckLayerAndHead(key));
  return CheckIndexChange(key, value);
}

absl::Status SegmentCheck::ReadIndexRun(std::string_view key_bytes, std::string_view value) {
  CAIRN_ASSIGN_OR_RETURN(const std::int32_t layer, ParseIndexRunKey(key_bytes));
  CAIRN_RETURN_IF_ERROR(CheckLayerAndHead({layer, 0, ClusterId()}));
  CAIRN_ASSIGN_OR_RETURN(StoredIndexRun run, DecodeIndexRun(value));
  for (StoredPart& part : run.parts) {
    Place({{layer, 0, ClusterId()}, ClusterRowKind::kParts}, std::move(part), run.record_bytes,
          layer);
  }
  return absl::OkStatus();
}

void SegmentCheck::CheckIndexRuns() {
  PageWindow window(store_);
  std::set<std::int32_t> damaged;
  std::set<const Extent*> dropped;
  for (const Placed& placed : parts_) {
    if (!placed.index_layer) continue;
    ForEachBadPage(placed, window, [&](Finding finding) {
      if (MayBeReadLater(finding)) return sink_(finding);
      finding.kind = FindingKind::kIndexRun;
      sink_(finding);
      damaged.insert(*placed.index_layer);
      dropped.insert(placed.part.extent.get());
    });
  }
  for (const std::int32_t layer : damaged) {
    LoseIndexRun(IndexRunKey(id_, layer));
  }
  std::erase_if(parts_, [&](const Placed& p) { return dropped.contains(p.part.extent.get()); });
  std::erase_if(extents_, [&](const auto& e) { return dropped.contains(e.second.get()); });
}

void SegmentCheck::LoseIndexRun(std::string_view key) {
  const absl::StatusOr<std::int32_t> layer = ParseIndexRunKey(key);
  if (layer.ok() && CheckLayerAndHead({*layer, 0, ClusterId()}).ok()) {
    survey_.lost_index_runs.emplace_back(key);
  } else {
    survey_.stray_rows.emplace_back(Family::kRuns, std::string(key));
  }
}

void SegmentCheck::Place(const ParsedClusterRowKey& key, StoredPart stored,
                         std::int64_t entry_bytes, std::optional<std::int32_t> index_layer) {
  survey_.largest_id = std::max(survey_.largest_id, stored.id.value());
  ExtentRef& extent = extents_[stored.first_page];
  const bool known = extent != nullptr;
  if (!known) {
    extent = std::make_shared<Extent>(unused_map_, stored.kind, stored.first_page,
                                      stored.page_count, /*committed=*/true);
  }
  Placed placed;
  placed.row = key;
  placed.entry_bytes = entry_bytes;
  placed.index_layer = index_layer;
  placed.part.id = stored.id;
  placed.part.SetExtent(extent);
  placed.part.offset_bytes = stored.offset_bytes;
  placed.part.direction = stored.direction;
  placed.part.positions = std::move(stored.positions);
  placed.part.crcs = std::move(stored.crcs);
  if (known && (extent->page_count() != stored.page_count || extent->kind() != stored.kind)) {
    return Lose(About(FindingKind::kExtent, placed,
                      fmt::format("the part's row gives it {} pages, another row {}, or another "
                                  "kind",
                                  stored.page_count, extent->page_count())));
  }
  placed.range = RangeOf(placed.part, entry_bytes, 0, placed.part.count());
  parts_.push_back(std::move(placed));
}

// Extents inside the file, and none over another; what is wrong is forgotten, with its parts.
void SegmentCheck::CheckExtents() {
  std::set<const Extent*> wrong;
  const auto refuse = [&](const Extent& extent, const char* reason) {
    wrong.insert(&extent);
    Finding finding = About(FindingKind::kExtent, reason);
    finding.page = extent.first().value();
    finding.page_count = extent.page_count();
    Lose(finding);
  };
  for (const auto& [first, extent] : extents_) {
    if (first.value() < kFirstDataPage || EndPage(*extent) > store_.page_count) {
      refuse(*extent, "the extent does not lie inside the extent file");
    } else if (!named_.MarkUsed(first, extent->page_count())) {
      refuse(*extent, "rows of this or an older segment name pages of the extent as another's");
    }
  }
  std::erase_if(parts_, [&](const Placed& p) { return wrong.contains(p.part.extent.get()); });
  std::erase_if(extents_, [&](const auto& e) { return wrong.contains(e.second.get()); });
}

void SegmentCheck::CheckParts() {
  // By place, so that what overlaps are neighbours, and pages are read in order.
  std::sort(parts_.begin(), parts_.end(), [](const Placed& a, const Placed& b) {
    return std::tuple(a.part.extent->first(), a.range.begin, a.part.id) <
           std::tuple(b.part.extent->first(), b.range.begin, b.part.id);
  });
  std::set<PartId> ids;
  for (const Placed& placed : parts_) {
    CheckPart(placed);
    if (!ids.insert(placed.part.id).second) {
      Lose(About(FindingKind::kPart, placed, "the segment has two parts of this id"));
    }
  }
  // The part that reaches farthest of those before.
  const Placed* farthest = nullptr;
  for (const Placed& placed : parts_) {
    const bool same = farthest != nullptr && farthest->part.extent == placed.part.extent;
    if (same && placed.range.begin < farthest->range.end &&
        !FailPoint("verify: overlapping parts pass")) {
      Lose(About(FindingKind::kPartOverlap, placed,
                 fmt::format("bytes {} to {} of the extent; part {} has {} to {}",
                             placed.range.begin, placed.range.end, farthest->part.id,
                             farthest->range.begin, farthest->range.end)));
    }
    if (!same || placed.range.end > farthest->range.end) farthest = &placed;
  }
}

// Carried entries stay where a checkpoint has logged them, and only what is sealed is packed.
bool SegmentCheck::MayName(ClusterRowKind row, ExtentKind extent) const {
  if (extent == ExtentKind::kLogRun) return true;
  if (row == ClusterRowKind::kCarried) return false;
  return extent == ExtentKind::kPool ||
         (extent == ExtentKind::kPackedRun &&
          (row_.sealed || FailPoint("verify: kinds of extents pass")));
}

void SegmentCheck::CheckPart(const Placed& placed) {
  const Part& part = placed.part;
  const Extent& extent = *part.extent;
  if (extent.kind() == ExtentKind::kPool) {
    const bool is_class = extent.page_count() <= kPoolPagesMax &&
                          std::has_single_bit(static_cast<std::uint64_t>(extent.page_count()));
    if (!is_class || part.offset_bytes != 0) {
      Lose(About(
          FindingKind::kPart, placed,
          fmt::format("offset {} in a pool of {} pages", part.offset_bytes, extent.page_count())));
    }
  } else if (part.direction != Direction::kUp) {
    Lose(About(FindingKind::kPart, placed, "a part in a run that grows downwards"));
  }
  if (!placed.index_layer && !MayName(placed.row.kind, extent.kind())) {
    Lose(About(FindingKind::kPart, placed, "such a row names no extent of this kind"));
  }
  const auto piece_count = PiecesOf(part, placed.entry_bytes, 0, part.count()).size();
  if (part.crcs.size() != piece_count) {
    Lose(About(FindingKind::kPart, placed,
               fmt::format("{} checksums for {} pages", part.crcs.size(), piece_count)));
  }
}

// The free map, segment by segment: the pages of the allocation records are those of the extents.
void SegmentCheck::CheckAllocation() {
  Regions stored;
  bool readable = true;
  const absl::Status scanned = store_.meta->Scan(
      Family::kPools, SegmentPrefix(id_), [&](std::string_view key, std::string_view value) {
        const absl::StatusOr<ParsedRegionKey> parsed = ParseRegionKey(key);
        const absl::StatusOr<RegionBits> bits = DecodeRegion(value);
        // The scan of all records has told of one that is damaged.
        readable = readable && parsed.ok() && bits.ok();
        if (parsed.ok() && bits.ok()) stored[parsed->region] = *bits;
        return absl::OkStatus();
      });
  if (!scanned.ok()) return MissRows(scanned);
  Regions right;
  for (const auto& [first, extent] : extents_) {
    for (std::int64_t page = first.value(); page < EndPage(*extent); ++page) {
      right[page / kRegionPages].set(static_cast<std::size_t>(page % kRegionPages));
    }
    survey_.named_page_count += extent->page_count();
  }
  std::set<std::int64_t> regions;
  for (const Regions* both : {&stored, &right}) {
    for (const auto& region : *both) regions.insert(region.first);
  }
  for (const std::int64_t region : regions) {
    const RegionBits was = stored.contains(region) ? stored[region] : RegionBits();
    const RegionBits is = right.contains(region) ? right[region] : RegionBits();
    const auto tell = [&](const RegionBits& bits, FindingKind kind, const char* reason) {
      for (std::int64_t i = 0; i < kRegionPages; ++i) {
        if (!bits[static_cast<std::size_t>(i)]) continue;
        Finding finding = About(kind, reason);
        finding.page = region * kRegionPages + i;
        while (i + 1 < kRegionPages && bits[static_cast<std::size_t>(i + 1)]) {
          ++i;
          ++finding.page_count;
        }
        sink_(finding);
      }
    };
    tell(is & ~was, FindingKind::kPageUnallocated,
         "the extent of a part, and not in the segment's allocation record");
    tell(FailPoint("verify: leaked pages pass") ? RegionBits() : was & ~is,
         FindingKind::kPageUnreferenced,
         "in the segment's allocation record, and in no part's extent");
  }
  if (stored != right || !readable) entry().right_regions = std::move(right);
}

void SegmentCheck::CheckPages() {
  PageWindow window(store_);
  for (const Placed& placed : parts_) {
    if (placed.index_layer) continue;
    ForEachBadPage(placed, window, [this](const Finding& finding) {
      MayBeReadLater(finding) ? sink_(finding) : Lose(finding);
    });
  }
}

bool SegmentCheck::MayBeReadLater(const Finding& finding) {
  if (finding.kind != FindingKind::kPageUnreadable || store_.unreadable_is_lost) return false;
  ++survey_.unreadable_page_count;
  return true;
}

void SegmentCheck::ForEachBadPage(const Placed& placed, PageWindow& window,
                                  const std::function<void(const Finding&)>& fn) {
  const Part& part = placed.part;
  const PageIndex end(EndPage(*part.extent));
  PagePieces pieces = PiecesOf(part, placed.entry_bytes, 0, part.count());
  std::sort(pieces.begin(), pieces.end(),
            [](const PagePiece& a, const PagePiece& b) { return a.page < b.page; });
  for (const PagePiece& piece : pieces) {
    ++survey_.checked_page_count;
    absl::StatusOr<PageBytes> bytes = window.Page(piece.page, end);
    const bool intact = bytes.ok() && PieceIsIntact(store_.store_id, part, piece, *bytes);
    if (intact || (bytes.ok() && FailPoint("verify: checksums are not compared"))) continue;
    // Only what fails twice is damaged: bytes may come wrong from a disk that has them right.
    bytes = window.ReadAgain(piece.page);
    if (bytes.ok() && PieceIsIntact(store_.store_id, part, piece, *bytes)) continue;
    Finding finding =
        bytes.ok() ? About(FindingKind::kPageDamaged, placed,
                           fmt::format("bytes {} to {} of the page fail the part's checksum {}",
                                       piece.begin, piece.end, piece.page_number))
                   : About(FindingKind::kPageUnreadable, placed, Message(bytes.status()));
    finding.page = piece.page.value();
    finding.page_count = 1;
    fn(finding);
  }
}

}  // namespace

void CheckSegment(const StoreView& store, SegmentId segment, const SegmentRow& row, FreeMap& named,
                  const FindingSink& sink, StoreSurvey& survey) {
  SegmentCheck(store, segment, row, named, sink, survey).Run();
}

std::shared_ptr<FreeMap> UnusedMap() { return std::make_shared<FreeMap>(0, 0); }

}  // namespace cairn::kv
