#include "kv-node/engine/defragment/defragmenter.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "common/base/fail_point.h"
#include "common/log/log.h"
#include "kv-node/engine/load/session_loader.h"
#include "kv-node/engine/space/allocation.h"

namespace cairn::kv {

struct Defragmenter::Unit {
  struct Cluster {
    ClusterKey key;
    std::vector<Part> from;
    std::vector<Part> to;
  };
  std::size_t first = 0;  // in the layer's order
  std::vector<Cluster> clusters;
  ExtentRef run;
  SharedBuffer image;  // of the run, until it is written
};

namespace {

std::vector<Part> WithExtents(std::vector<StoredPart> stored) {
  std::vector<Part> parts;
  for (StoredPart& part : stored) {
    // Committed, and freed here by page number.
    auto extent = std::make_shared<Extent>(nullptr, part.kind, part.first_page, part.page_count,
                                           /*committed=*/true);
    parts.emplace_back(std::move(part), std::move(extent));
  }
  return parts;
}

std::set<PageIndex> PagesOf(const std::vector<Part>& parts, std::int64_t entry_bytes) {
  std::vector<PageIndex> pages;
  for (const Part& part : parts) AddPages(part, entry_bytes, part.count(), pages);
  return {pages.begin(), pages.end()};
}

std::int64_t EntryCount(const std::vector<Part>& parts) {
  std::int64_t count = 0;
  for (const Part& part : parts) count += part.count();
  return count;
}

// The entries of a part in ascending order, whatever its direction.
void CopyEntries(const Part& part, std::int64_t entry_bytes, const PageSet& pages, std::byte* out) {
  for (std::int64_t i = 0; i < part.count(); ++i) {
    const std::span<const std::byte> entry =
        pages.Bytes(*part.extent, RangeOf(part, entry_bytes, i, 1));
    std::memcpy(out + i * entry_bytes, entry.data(), entry.size());
  }
}

}  // namespace

template <typename T>
void Defragmenter::LoadThen(std::function<absl::StatusOr<T>(MetaReader&)> read,
                            std::function<void(T)> next) {
  active_ = true;
  context_.LoadToChange<T>(std::move(read),
                           [this, next = std::move(next)](absl::StatusOr<T> loaded) {
                             active_ = false;
                             if (!loaded.ok()) return GiveUp(loaded.status());
                             next(*std::move(loaded));
                           });
}

PageIo::WriteDone Defragmenter::Then(std::function<void()> next) {
  active_ = true;
  return [this, next = std::move(next)](const absl::Status& status) {
    active_ = false;
    if (!status.ok()) return GiveUp(status);
    next();
  };
}

bool Defragmenter::Step() {
  if (active_ || sessions_.is_opening()) return false;
  if (!listed_) {
    listed_ = true;
    LoadThen<std::vector<SegmentId>>(LoadSealedSegments, [this](std::vector<SegmentId> sealed) {
      waiting_.insert(waiting_.begin(), sealed.begin(), sealed.end());
    });
    return true;
  }
  if (segment_ && sessions_.is_attached(segment_->id)) {
    waiting_.push_back(segment_->id);
    EndSegment();
  }
  if (!segment_) return LookAtNextSegment();
  if (layer_ && next_ == layer_->order.size()) layer_.reset();
  if (layer_) {
    StartUnit();
  } else {
    StartLayer();
  }
  return true;
}

bool Defragmenter::LookAtNextSegment() {
  for (std::size_t tries = waiting_.size(); tries > 0; --tries) {
    const SegmentId segment = waiting_.front();
    waiting_.pop_front();
    if (sessions_.is_attached(segment)) {
      waiting_.push_back(segment);
      continue;
    }
    LoadThen<SealedRows>([segment](MetaReader& reader) { return LoadSealedRows(reader, segment); },
                         [this](SealedRows rows) {
                           segment_ = std::move(rows);
                           moved_bytes_ = 0;
                         });
    return true;
  }
  return false;
}

void Defragmenter::StartLayer() {
  if (segment_->layers.empty()) {
    if (moved_bytes_ > 0) {
      LogInfo("defragment segment={} moved_bytes={}", segment_->id, moved_bytes_);
    }
    return EndSegment();
  }
  const std::int32_t layer = segment_->layers.front();
  segment_->layers.erase(segment_->layers.begin());
  LoadThen<SealedLayer>(
      [segment = segment_->id, layout = segment_->layout, layer](MetaReader& reader) {
        return LoadSealedLayer(reader, segment, layout, layer);
      },
      [this](SealedLayer loaded) {
        const absl::Status status = CheckAllocated(loaded, *segment_);
        if (!status.ok()) return GiveUp(status);
        layer_ = std::move(loaded);
        next_ = 0;
      });
}

void Defragmenter::StartUnit() {
  auto unit = std::make_shared<Unit>();
  unit->first = next_;
  std::set<PageIndex> pages;
  for (; next_ < layer_->order.size(); ++next_) {
    const ClusterKey& key = layer_->order[next_];
    std::vector<Part> parts = WithExtents(layer_->parts.Find(key));
    const std::int64_t entry_bytes = segment_->layout.EntryBytes(key.head);
    if (EntryCount(parts) * entry_bytes > kFetchBytesMax) continue;
    const std::set<PageIndex> these = PagesOf(parts, entry_bytes);
    if (!pages.empty() && std::ssize(pages) + std::ssize(these) > kDefragmentPagesMax) break;
    pages.insert(these.begin(), these.end());
    unit->clusters.push_back({key, std::move(parts), {}});
  }
  if (pages.empty()) return;
  active_ = true;
  context_.io->Read({pages.begin(), pages.end()}, ReadCause::kDefragment,
                    [this, unit](const PageSet& read) { WriteUnit(unit, read); });
}

void Defragmenter::WriteUnit(const UnitRef& unit, const PageSet& pages) {
  active_ = false;
  if (sessions_.is_opening() || sessions_.is_attached(segment_->id)) {
    next_ = unit->first;
    return;
  }
  std::erase_if(unit->clusters, [&](const Unit::Cluster& cluster) {
    const std::int64_t entry_bytes = segment_->layout.EntryBytes(cluster.key.head);
    return !std::all_of(cluster.from.begin(), cluster.from.end(), [&](const Part& part) {
      return FailPoint("defragmentation moves what fails its check") ||
             CheckPart(context_.store_id, part, entry_bytes, part.count(), pages) ==
                 PartState::kIntact;
    });
  });
  if (unit->clusters.empty()) return;
  const absl::Status made = MakeRun(*unit, pages);
  if (!made.ok()) return GiveUp(made);
  context_.io->Write(unit->run->first(), std::exchange(unit->image, nullptr),
                     WriteCause::kDefragment, Then([this, unit] { FlushUnit(unit); }));
}

// Writes the clusters' entries, one behind the other, as new parts of a new run.
absl::Status Defragmenter::MakeRun(Unit& unit, const PageSet& pages) {
  const auto entry_bytes_of = [&](const Unit::Cluster& cluster) {
    return segment_->layout.EntryBytes(cluster.key.head);
  };
  std::int64_t bytes = 0;
  std::int64_t part_count = 0;
  for (const Unit::Cluster& cluster : unit.clusters) {
    const std::int64_t count_max = kPartBytesMax / entry_bytes_of(cluster);
    const std::int64_t count = EntryCount(cluster.from);
    bytes += count * entry_bytes_of(cluster);
    part_count += (count + count_max - 1) / count_max;
  }
  const std::int64_t page_count = (bytes + kPageBytes - 1) / kPageBytes;
  // The last pages are for those who have new entries to store.
  const FreeMap& map = *context_.free_map;
  if (map.page_count() - map.used_count() < page_count + kDefragmentPagesMax) {
    return ResourceExhausted("flash is nearly full");
  }
  CAIRN_ASSIGN_OR_RETURN(unit.run, context_.Allocate(ExtentKind::kPackedRun, page_count));
  CAIRN_ASSIGN_OR_RETURN(std::int64_t next_id, context_.ids->Next(part_count));
  unit.image = context_.io->buffers().MakeZeroed(unit.run->size_bytes());
  std::int64_t at = 0;
  for (Unit::Cluster& cluster : unit.clusters) {
    const std::int64_t entry_bytes = entry_bytes_of(cluster);
    Positions positions;
    std::byte* out = unit.image->data() + at;
    for (const Part& part : cluster.from) {
      CopyEntries(part, entry_bytes, pages, out);
      out += part.count() * entry_bytes;
      positions.AppendAll(part.positions);
    }
    const std::int64_t count_max = kPartBytesMax / entry_bytes;
    for (std::int64_t first = 0; first < positions.count(); first += count_max) {
      Part part;
      part.id = PartId(next_id++);
      part.SetExtent(unit.run);
      part.offset_bytes = at;
      part.positions = positions.Slice(first, std::min(count_max, positions.count() - first));
      SetCrcs(context_.store_id, part, entry_bytes, 0, part.count(), *unit.image, 0);
      at += part.count() * entry_bytes;
      cluster.to.push_back(std::move(part));
    }
  }
  return absl::OkStatus();
}

void Defragmenter::FlushUnit(const UnitRef& unit) {
  if (!context_.options.durable || FailPoint("packed runs are not flushed before the commit")) {
    return LockUnit(unit);
  }
  context_.io->Flush(Then([this, unit] { LockUnit(unit); }));
}

// Whether a session still needs the segment is only known while none is deleted.
void Defragmenter::LockUnit(const UnitRef& unit) {
  active_ = true;
  sessions_.with_tree_lock([this, unit](const std::function<void()>& release) {
    context_.LoadToChange<SegmentRow>(
        [segment = segment_->id](MetaReader& reader) { return LoadSegmentRow(reader, segment); },
        [this, unit, release](const absl::StatusOr<SegmentRow>& row) {
          if (row.ok()) return CommitUnit(unit, release);
          active_ = false;
          GiveUp(row.status());
          release();
        });
  });
}

void Defragmenter::CommitUnit(const UnitRef& unit, const std::function<void()>& release) {
  // Rows that are read from here on are read behind the batch.
  if (sessions_.is_opening() || sessions_.is_attached(segment_->id)) {
    next_ = unit->first;
    active_ = false;
    return release();
  }
  const std::vector<FreeMap::Range> unnamed = TakeUnnamed(*unit);
  MetaBatch batch;
  for (const Unit::Cluster& cluster : unit->clusters) {
    batch.Put(Family::kClusters, ClusterRowKey(segment_->id, cluster.key, ClusterRowKind::kParts),
              EncodeParts(cluster.to, segment_->layout.EntryBytes(cluster.key.head)));
  }
  PutRegions(batch, *unit, unnamed);
  context_.Commit(std::move(batch), [this, unit, unnamed, release](const absl::Status& status) {
    active_ = false;
    if (status.ok()) {
      unit->run->set_committed(true);
      for (const FreeMap::Range& range : unnamed) context_.free_map->Free(range.first, range.count);
      moved_bytes_ += unit->run->size_bytes();
    } else {
      // Whether the batch is there is not known yet: until then nobody may write to what it names
      // or ceases to name.
      unit->run->set_committed(true);
      context_.free_map->Doubt(unit->run->first(), unit->run->page_count());
      for (const FreeMap::Range& range : unnamed)
        context_.free_map->Doubt(range.first, range.count);
      GiveUp(status);
    }
    release();
  });
}

std::vector<FreeMap::Range> Defragmenter::TakeUnnamed(const Unit& unit) {
  std::vector<FreeMap::Range> unnamed;
  for (const Unit::Cluster& cluster : unit.clusters) {
    for (const Part& part : cluster.from) {
      std::map<PageIndex, std::int64_t>& named =
          part.kind == ExtentKind::kLogRun ? segment_->log_parts : layer_->pool_parts;
      const bool all = FailPoint("defragmentation frees pools that others lie in");
      if (--named.at(part.first_page) == 0 || all) {
        unnamed.push_back({part.first_page, part.page_count});
      }
    }
  }
  return unnamed;
}

void Defragmenter::PutRegions(MetaBatch& batch, const Unit& unit,
                              const std::vector<FreeMap::Range>& unnamed) {
  AllocationEdit records(segment_->regions);
  records.Mark(unit.run->first(), unit.run->page_count(), true);
  const bool used = FailPoint("defragmented pages stay in the allocation record");
  for (const FreeMap::Range& range : unnamed) records.Mark(range.first, range.count, used);
  records.PutTo(batch, segment_->id);
}

void Defragmenter::GiveUp(const absl::Status& why) {
  if (!absl::IsNotFound(why)) {  // else it was deleted
    LogWarning("defragment segment={} error=\"{}\"", segment_ ? segment_->id : SegmentId(),
               Message(why));
  }
  EndSegment();
}

}  // namespace cairn::kv
