#include "kv-node/engine/space/pool_table.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "common/log/log.h"

namespace cairn::kv {
namespace {

// Bytes of `range` in page `index` of an extent.
bool Touches(const ByteRange& range, std::int64_t index) {
  return range.begin < range.end && range.begin < (index + 1) * kPageBytes &&
         range.end > index * kPageBytes;
}

Direction Opposite(Direction direction) {
  return direction == Direction::kUp ? Direction::kDown : Direction::kUp;
}

// `bytes` at one end of a pool.
ByteRange RangeAt(std::int64_t size_bytes, Direction direction, std::int64_t bytes) {
  if (direction == Direction::kUp) return {0, bytes};
  return {size_bytes - bytes, size_bytes};
}

enum PoolFlag : std::uint8_t { kRecorded = 1, kCommitted = 2, kDamaged = 4 };
enum EndFlag : std::uint8_t { kUsed = 1, kByRow = 2, kHasCrc = 4 };
constexpr int kEndFlagBits = 3;

}  // namespace

// ---- the packed form ----

std::optional<PoolTable::Pool> PoolTable::Find(PageIndex first) const {
  const std::optional<std::string_view> bytes = packed_.Find(first.value());
  if (!bytes) return std::nullopt;
  ByteReader in(*bytes);
  Pool pool;
  pool.first = first;
  pool.page_count = in.Varint();
  pool.owner.first = static_cast<std::int32_t>(in.Varint());
  pool.owner.second = static_cast<std::int32_t>(in.Varint()) - 1;  // kAllHeads is -1
  const std::int64_t flags = in.Varint();
  pool.recorded = (flags & kRecorded) != 0;
  pool.committed = (flags & kCommitted) != 0;
  pool.damaged = (flags & kDamaged) != 0;
  for (End& end : pool.ends) {
    const std::uint8_t end_flags = in.Byte();
    if ((end_flags & kUsed) == 0) continue;
    end.by_row = (end_flags & kByRow) != 0;
    end.part = PartId(in.Varint());
    end.bytes = in.Varint();
    if ((end_flags & kHasCrc) != 0) end.last_crc = in.Fixed32();
  }
  CAIRN_CHECK(in.ok() && in.at_end());
  return pool;
}

void PoolTable::Store(const Pool& pool) {
  ByteWriter out;
  out.Varint(pool.page_count);
  out.Varint(pool.owner.first);
  out.Varint(pool.owner.second + 1);
  out.Varint((pool.recorded ? kRecorded : 0) | (pool.committed ? kCommitted : 0) |
             (pool.damaged ? kDamaged : 0));
  for (const End& end : pool.ends) {
    out.Byte(static_cast<std::uint8_t>((end.used() ? kUsed : 0) | (end.by_row ? kByRow : 0) |
                                       (end.last_crc ? kHasCrc : 0)));
    if (!end.used()) continue;
    out.Varint(end.part.value());
    out.Varint(end.bytes);
    if (end.last_crc) out.Fixed32(*end.last_crc);
  }
  packed_.Put(pool.first.value(), out.Take());
}

PoolTable::Pool PoolTable::At(const Extent& extent) const {
  std::optional<Pool> pool = Find(extent.first());
  CAIRN_CHECK(pool.has_value());
  return *std::move(pool);
}

// ---- what exists of pools outside of the table ----

const PoolTable::Live* PoolTable::FindLive(PageIndex first) const {
  const auto found = live_.find(first);
  return found == live_.end() ? nullptr : &found->second;
}

void PoolTable::ForgetLiveIfNothing(PageIndex first) {
  const auto found = live_.find(first);
  if (found == live_.end()) return;
  const Live& live = found->second;
  if (live.extent.expired() && !live.held && !live.kept[0] && !live.kept[1]) live_.erase(found);
}

// An Extent that is made here says that it is committed, so that it frees nothing, until the table
// ceases to own its pages. Reads make one for each part, so it costs no look at the pool.
ExtentRef PoolTable::ExtentOf(PageIndex first, std::int64_t page_count) {
  std::weak_ptr<Extent>& known = live_[first].extent;
  ExtentRef extent = known.lock();
  if (extent != nullptr) return extent;
  extent = std::make_shared<Extent>(map_, ExtentKind::kPool, first, page_count,
                                    /*committed=*/true);
  extent->set_keeper(weak_from_this());
  known = extent;
  return extent;
}

bool PoolTable::TakeBack(const Extent& extent) {
  ForgetLiveIfNothing(extent.first());
  const bool has_dropped_end = with_dropped_end_.erase(extent.first()) > 0;
  if (extent.committed() && !extent.changed() && !has_dropped_end) return true;
  std::optional<Pool> pool = Find(extent.first());
  if (!pool) return false;
  if (extent.changed() && !FailPoint("a pool forgets that it was committed")) {
    pool->committed = extent.committed();
  }
  for (End& end : pool->ends) {
    if (!end.by_row && !FailPoint("an end that was dropped is never free")) end = End();
  }
  Store(*pool);
  return true;
}

void PoolTable::FreeIfOwned(const Pool& pool) {
  const Live* live = FindLive(pool.first);
  const ExtentRef extent = live == nullptr ? nullptr : live->extent.lock();
  if (extent != nullptr) {
    if (!extent->changed()) extent->set_committed(pool.committed);
  } else if (!pool.committed) {
    if (!FailPoint("pools without a checkpoint are never free")) {
      map_->Free(pool.first, pool.page_count);
    }
  }
}

void PoolTable::Remove(const Pool& pool) {
  packed_.Erase(pool.first.value());
  FreeIfOwned(pool);
}

void PoolTable::FreeUncommitted() {
  packed_.ForEach(
      [this](std::int64_t first, std::string_view) { FreeIfOwned(*Find(PageIndex(first))); });
}

// ---- parts come, grow and go ----

PoolTable::End PoolTable::EndOf(std::int64_t entry_bytes, const StoredPart& part) {
  End end;
  end.part = part.id;
  end.bytes = part.positions.count() * entry_bytes;
  const auto pages = static_cast<std::size_t>((end.bytes + kPageBytes - 1) / kPageBytes);
  if (part.crcs.size() == pages && pages > 0) end.last_crc = part.crcs.back();
  end.by_row = true;
  return end;
}

absl::Status PoolTable::Adopt(LayerHead owner, std::int64_t entry_bytes, const StoredPart& part) {
  const std::int64_t size_bytes = part.page_count * kPageBytes;
  const End end = EndOf(entry_bytes, part);
  Pool pool;
  if (const std::optional<Pool> known = Find(part.first_page)) {
    pool = *known;
    if (pool.owner != owner || pool.ends[Slot(part.direction)].used() ||
        pool.ends[Slot(Opposite(part.direction))].bytes + end.bytes > size_bytes) {
      return DataLoss("part {} overlaps another part in the pool at page {}", part.id,
                      part.first_page);
    }
  }
  if (part.offset_bytes != 0 || end.bytes > size_bytes) {
    return DataLoss("part {} of {} bytes does not lie at an end of the pool at page {}", part.id,
                    end.bytes, part.first_page);
  }
  pool.first = part.first_page;
  pool.page_count = part.page_count;
  pool.owner = owner;
  pool.recorded = true;
  pool.committed = true;
  pool.ends[Slot(part.direction)] = end;
  Store(pool);
  UpdateHalfFull(pool);
  return absl::OkStatus();
}

PoolTable::Pool PoolTable::Enter(LayerHead owner, const ExtentRef& extent) {
  if (std::optional<Pool> known = Find(extent->first())) {
    CAIRN_CHECK(ExtentOf(known->first, known->page_count) == extent);
    CAIRN_CHECK(known->owner == owner);
    return *std::move(known);
  }
  Pool pool;
  pool.first = extent->first();
  pool.page_count = extent->page_count();
  pool.owner = owner;
  pool.committed = extent->committed();
  extent->set_keeper(weak_from_this());
  live_[pool.first].extent = extent;
  Store(pool);
  return pool;
}

void PoolTable::Add(LayerHead owner, std::int64_t entry_bytes, Part& part) {
  Pool pool = Enter(owner, part.extent);
  CAIRN_CHECK(!pool.ends[Slot(part.direction)].used());
  CAIRN_CHECK_LE(part.count() * entry_bytes, RoomBytes(part));
  pool.ends[Slot(part.direction)] = EndOf(entry_bytes, part);
  Store(pool);
  touched_.insert(pool.first);
  UpdateHalfFull(pool);
}

void PoolTable::NoteGrowth(std::int64_t entry_bytes, const Part& part) {
  Pool pool = At(*part.extent);
  End& end = pool.ends[Slot(part.direction)];
  CAIRN_CHECK(end.by_row && end.part == part.id);
  end = EndOf(entry_bytes, part);
  Store(pool);
}

void PoolTable::Drop(const Part& part) {
  Pool pool = At(*part.extent);
  End& end = pool.ends[Slot(part.direction)];
  CAIRN_CHECK(end.by_row && end.part == part.id);
  end.by_row = false;
  Store(pool);
  UpdateHalfFull(pool);
  touched_.insert(pool.first);
  if (!FailPoint("an end that a commit still names is free")) dropped_.push_back(part.extent);
  with_dropped_end_.insert(pool.first);
}

void PoolTable::UpdateHalfFull(const Pool& pool) {
  std::vector<PageIndex>& pools = half_full_[pool.owner];
  if (pool.row_count() == 1) {
    pools.push_back(pool.first);
  } else {
    std::erase(pools, pool.first);
  }
}

// ---- where entries may go ----

std::int64_t PoolTable::RoomBytes(const Part& part) const {
  const End other = At(*part.extent).ends[Slot(Opposite(part.direction))];
  const bool counts = other.by_row || !FailPoint("a part grows over what a commit names (rule 15)");
  return part.extent->size_bytes() - (counts ? other.bytes : 0);
}

bool PoolTable::IsBusy(const Pool& pool, const ByteRange& range,
                       const WriteCheck& is_being_written) const {
  const Live* live = FindLive(pool.first);
  if (live != nullptr && live->held && !FailPoint("two writers of a pool's page")) return true;
  for (std::int64_t i = range.begin / kPageBytes; i * kPageBytes < range.end; ++i) {
    const PageIndex page(pool.first.value() + i);
    if (is_being_written(page) &&
        !FailPoint("a page that is being written is written again (rule 6)")) {
      return true;
    }
  }
  return false;
}

bool PoolTable::IsBusy(const Part& part, std::int64_t entry_bytes, std::int64_t count,
                       const WriteCheck& is_being_written) const {
  return IsBusy(At(*part.extent), RangeOf(part, entry_bytes, part.count(), count),
                is_being_written);
}

PoolTable::EndState PoolTable::StateOf(const Pool& pool, Direction direction, std::int64_t bytes,
                                       const WriteCheck& is_being_written) const {
  if (pool.damaged || pool.ends[Slot(direction)].used() ||
      pool.ends[Slot(Opposite(direction))].bytes + bytes > pool.size_bytes()) {
    return EndState::kTaken;
  }
  const ByteRange range = RangeAt(pool.size_bytes(), direction, bytes);
  return IsBusy(pool, range, is_being_written) ? EndState::kBusy : EndState::kFree;
}

PoolTable::EndState PoolTable::StateOf(const ExtentRef& pool, Direction direction,
                                       std::int64_t bytes,
                                       const WriteCheck& is_being_written) const {
  return StateOf(At(*pool), direction, bytes, is_being_written);
}

std::optional<PoolTable::FreeEnd> PoolTable::EndIn(const Place& place, LayerHead owner,
                                                   std::int64_t bytes,
                                                   const WriteCheck& is_being_written) {
  const std::optional<Pool> pool = Find(place.pool);
  if (!pool || pool->owner != owner || pool->row_count() != 1) return std::nullopt;
  const Live* live = FindLive(place.pool);
  for (const Direction direction : {Direction::kUp, Direction::kDown}) {
    if (place.end.value_or(direction) != direction) continue;
    if (live != nullptr && live->kept[Slot(direction)] && !FailPoint("others take a kept end")) {
      continue;
    }
    if (StateOf(*pool, direction, bytes, is_being_written) != EndState::kFree) continue;
    return FreeEnd{ExtentOf(pool->first, pool->page_count), direction};
  }
  return std::nullopt;
}

std::vector<PoolTable::Place> PoolTable::PlacesBeside(const Part& part) const {
  std::vector<Place> places;
  const PageIndex first = part.extent->first();
  if (part.direction == Direction::kDown) {
    places.push_back({PageIndex(first.value() + part.extent->page_count()), Direction::kUp});
  } else if (const std::optional<std::int64_t> below = packed_.KeyBelow(first.value())) {
    const std::optional<Pool> before = Find(PageIndex(*below));
    if (*below + before->page_count == first.value()) {
      places.push_back({before->first, Direction::kDown});
    }
  }
  places.push_back({first, std::nullopt});
  return places;
}

std::optional<PoolTable::FreeEnd> PoolTable::FindEnd(LayerHead owner, std::int64_t bytes,
                                                     std::span<const Place> preferred,
                                                     const WriteCheck& is_being_written) {
  for (const Place& place : preferred) {
    if (auto end = EndIn(place, owner, bytes, is_being_written)) return end;
  }
  const auto found = half_full_.find(owner);
  if (found == half_full_.end()) return std::nullopt;
  const std::vector<PageIndex>& pools = found->second;
  int tries = 0;
  for (auto first = pools.rbegin(); first != pools.rend() && tries < kFreeEndTriesMax; ++first) {
    if (auto end = EndIn({*first, std::nullopt}, owner, bytes, is_being_written)) return end;
    ++tries;
  }
  return std::nullopt;
}

std::shared_ptr<void> PoolTable::Keep(LayerHead owner, const ExtentRef& pool, Direction direction) {
  const PageIndex first = Enter(owner, pool).first;
  bool& kept = live_[first].kept[Slot(direction)];
  CAIRN_CHECK(!kept);
  kept = true;
  return {this, [table = weak_from_this(), first, direction](void*) {
            const auto alive = table.lock();
            if (alive == nullptr) return;
            alive->live_[first].kept[Slot(direction)] = false;
            alive->ForgetUnused(first);
          }};
}

void PoolTable::ForgetUnused(PageIndex first) {
  const std::optional<Pool> pool = Find(first);
  const Live* live = FindLive(first);
  const bool wanted = live != nullptr && (live->held || live->kept[0] || live->kept[1]);
  if (pool && !wanted && pool->row_count() == 0 && !pool->recorded && !touched_.contains(first)) {
    Remove(*pool);
  }
  ForgetLiveIfNothing(first);
}

std::shared_ptr<void> PoolTable::HoldForPlacing(const ExtentRef& pool) {
  const PageIndex first = At(*pool).first;
  bool& held = live_[first].held;
  CAIRN_CHECK(!held);
  held = true;
  return {this, [table = weak_from_this(), first](void*) {
            const auto alive = table.lock();
            if (alive == nullptr) return;
            alive->live_[first].held = false;
            alive->ForgetUnused(first);
          }};
}

std::vector<PageIndex> PoolTable::PagesToCheck(const Part& part, std::int64_t entry_bytes,
                                               std::int64_t count) const {
  const ByteRange fresh = RangeOf(part, entry_bytes, part.count(), count);
  const ByteRange own = RangeOf(part, entry_bytes, 0, part.count());
  const Direction facing = Opposite(part.direction);
  const End other = At(*part.extent).ends[Slot(facing)];
  const bool counts =
      other.by_row || !FailPoint("a page is read for what memory names only (rule 6)");
  const ByteRange others = RangeAt(part.extent->size_bytes(), facing, counts ? other.bytes : 0);
  std::vector<PageIndex> pages;
  for (std::int64_t i = fresh.begin / kPageBytes; i * kPageBytes < fresh.end; ++i) {
    if (!Touches(own, i) && !Touches(others, i)) continue;
    pages.emplace_back(part.extent->first().value() + i);
  }
  return pages;
}

bool PoolTable::AreIntact(const StoreId& store, const Part& part, std::int64_t entry_bytes,
                          std::int64_t count, const PageSet& pages) const {
  const Direction facing = Opposite(part.direction);
  const End other = At(*part.extent).ends[Slot(facing)];
  const ByteRange others = RangeAt(part.extent->size_bytes(), facing, other.bytes);
  for (const PageIndex page : PagesToCheck(part, entry_bytes, count)) {
    if (pages.Failed(page)) return false;
    const std::int64_t index = page.value() - part.extent->first().value();
    // New bytes are in this page: what is here of either part is its last page.
    if (Touches(RangeOf(part, entry_bytes, 0, part.count()), index)) {
      const PagePiece last = PiecesOf(part, entry_bytes, part.count() - 1, 1).back();
      if (!PieceIsIntact(store, part, last, pages.Page(page)) &&
          !FailPoint("the growing part of a page is not checked (rule 6)")) {
        return false;
      }
    }
    if (!Touches(others, index)) continue;
    const std::int64_t begin = std::max(others.begin - index * kPageBytes, std::int64_t{0});
    const std::int64_t end = std::min(others.end - index * kPageBytes, kPageBytes);
    const std::int64_t number =
        facing == Direction::kUp ? index : part.extent->page_count() - 1 - index;
    const auto bytes = pages.Page(page).subspan(static_cast<std::size_t>(begin),
                                                static_cast<std::size_t>(end - begin));
    if (other.last_crc != PartCrc(store, other.part, number, bytes) &&
        !FailPoint("the other part of a page is not checked")) {
      return false;
    }
  }
  return true;
}

void PoolTable::NoteDamage(const Extent& extent) {
  Pool pool = At(extent);
  pool.damaged = true;
  Store(pool);
  LogWarning("pool at page={} takes no more new parts: a page of it fails its check", pool.first);
}

// ---- checkpoints ----

PoolTable::Changes PoolTable::TakeChanges() {
  Changes out;
  for (const PageIndex first : touched_) {
    std::optional<Pool> pool = Find(first);
    CAIRN_CHECK(pool.has_value());
    if (pool->row_count() > 0) {
      if (pool->recorded) continue;
      out.named.push_back(ExtentOf(first, pool->page_count));
      pool->recorded = true;
      Store(*pool);
      continue;
    }
    if (pool->recorded) out.released.push_back(ExtentOf(first, pool->page_count));
    Remove(*pool);
  }
  touched_.clear();
  out.dropped = std::exchange(dropped_, {});
  return out;
}

std::int64_t PoolTable::memory_bytes() const {
  constexpr std::int64_t kLiveBytes = 192;  // of a map node and an extent
  std::int64_t bytes =
      packed_.memory_bytes() + static_cast<std::int64_t>(live_.size()) * kLiveBytes;
  for (const auto& [owner, pools] : half_full_) {
    bytes += static_cast<std::int64_t>(pools.capacity() * sizeof(PageIndex));
  }
  return bytes;
}

void PoolTable::Clear() {
  CAIRN_CHECK(touched_.empty());
  FreeUncommitted();
  packed_ = PackedMap();
  live_.clear();
  with_dropped_end_.clear();
  half_full_.clear();
}

}  // namespace cairn::kv
