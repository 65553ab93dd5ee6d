#include "kv-node/engine/pool_table.h"

#include <algorithm>

#include "common/base/check.h"
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
ByteRange RangeAt(const Extent& pool, Direction direction, std::int64_t bytes) {
  if (direction == Direction::kUp) return {0, bytes};
  return {pool.size_bytes() - bytes, pool.size_bytes()};
}

}  // namespace

std::shared_ptr<PoolTable::End> PoolTable::Other(const Part& part) const {
  return At(*part.extent).ends[Slot(Opposite(part.direction))].lock();
}

absl::Status PoolTable::Adopt(LayerHead owner, std::int64_t entry_bytes, Part& part) {
  Pool& pool = pools_[part.extent->first()];
  const std::int64_t bytes = part.count() * entry_bytes;
  if (pool.extent != nullptr) {
    const std::shared_ptr<End> other = pool.ends[Slot(Opposite(part.direction))].lock();
    const std::int64_t taken = other == nullptr ? 0 : other->bytes;
    if (pool.owner != owner || !pool.ends[Slot(part.direction)].expired() ||
        taken + bytes > part.extent->size_bytes()) {
      return DataLoss("part {} overlaps another part in the pool at page {}", part.id,
                      part.extent->first());
    }
  }
  if (part.offset_bytes != 0 || bytes > part.extent->size_bytes()) {
    return DataLoss("part {} of {} bytes does not lie at an end of the pool at page {}", part.id,
                    bytes, part.extent->first());
  }
  pool.extent = part.extent;
  pool.owner = owner;
  pool.recorded = true;
  Put(pool, entry_bytes, part);
  return absl::OkStatus();
}

void PoolTable::Add(LayerHead owner, std::int64_t entry_bytes, Part& part) {
  Pool& pool = pools_[part.extent->first()];
  if (pool.extent == nullptr) {
    pool.extent = part.extent;
    pool.owner = owner;
  }
  CAIRN_CHECK(pool.extent == part.extent);
  CAIRN_CHECK(pool.owner == owner);
  CAIRN_CHECK(pool.ends[Slot(part.direction)].expired());
  CAIRN_CHECK_LE(part.count() * entry_bytes, RoomBytes(part));
  touched_.insert(part.extent->first());
  Put(pool, entry_bytes, part);
}

void PoolTable::Put(Pool& pool, std::int64_t entry_bytes, Part& part) {
  auto end = std::make_shared<End>();
  pool.ends[Slot(part.direction)] = end;
  part.hold = std::move(end);
  ++pool.live_count;
  UpdateHalfFull(pool);
  NoteGrowth(entry_bytes, part);
}

void PoolTable::NoteGrowth(std::int64_t entry_bytes, const Part& part) {
  const std::shared_ptr<End> end = At(*part.extent).ends[Slot(part.direction)].lock();
  CAIRN_CHECK(end != nullptr && end == part.hold);
  end->part = part.id;
  end->bytes = part.count() * entry_bytes;
  const auto pages = static_cast<std::size_t>((end->bytes + kPageBytes - 1) / kPageBytes);
  end->last_crc.reset();
  if (part.crcs.size() == pages) end->last_crc = part.crcs.back();
}

void PoolTable::Drop(const Part& part) {
  Pool& pool = pools_.at(part.extent->first());
  CAIRN_CHECK(pool.ends[Slot(part.direction)].lock() == part.hold);
  CAIRN_CHECK_GE(pool.live_count, 1);
  --pool.live_count;
  UpdateHalfFull(pool);
  touched_.insert(part.extent->first());
  dropped_.push_back(part.hold);
}

void PoolTable::UpdateHalfFull(const Pool& pool) {
  std::vector<PageIndex>& pools = half_full_[pool.owner];
  const PageIndex first = pool.extent->first();
  if (pool.live_count == 1) {
    pools.push_back(first);
  } else {
    std::erase(pools, first);
  }
}

std::int64_t PoolTable::RoomBytes(const Part& part) const {
  const std::shared_ptr<End> other = Other(part);
  return part.extent->size_bytes() - (other == nullptr ? 0 : other->bytes);
}

bool PoolTable::IsBusy(const Pool& pool, const ByteRange& range,
                       const WriteCheck& is_being_written) {
  if (pool.held) return true;
  for (std::int64_t i = range.begin / kPageBytes; i * kPageBytes < range.end; ++i) {
    if (is_being_written(PageIndex(pool.extent->first().value() + i))) return true;
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
  const std::shared_ptr<End> other = pool.ends[Slot(Opposite(direction))].lock();
  const std::int64_t taken = other == nullptr ? 0 : other->bytes;
  if (pool.damaged || !pool.ends[Slot(direction)].expired() ||
      taken + bytes > pool.extent->size_bytes()) {
    return EndState::kTaken;
  }
  const ByteRange range = RangeAt(*pool.extent, direction, bytes);
  return IsBusy(pool, range, is_being_written) ? EndState::kBusy : EndState::kFree;
}

PoolTable::EndState PoolTable::StateOf(const ExtentRef& pool, Direction direction,
                                       std::int64_t bytes,
                                       const WriteCheck& is_being_written) const {
  return StateOf(At(*pool), direction, bytes, is_being_written);
}

std::optional<PoolTable::FreeEnd> PoolTable::EndIn(const Place& place, LayerHead owner,
                                                   std::int64_t bytes,
                                                   const WriteCheck& is_being_written) const {
  const auto found = pools_.find(place.pool);
  if (found == pools_.end()) return std::nullopt;
  const Pool& pool = found->second;
  if (pool.owner != owner || pool.live_count != 1) return std::nullopt;
  for (const Direction direction : {Direction::kUp, Direction::kDown}) {
    if (place.end.value_or(direction) != direction || pool.kept[Slot(direction)]) continue;
    if (StateOf(pool, direction, bytes, is_being_written) != EndState::kFree) continue;
    return FreeEnd{pool.extent, direction};
  }
  return std::nullopt;
}

std::vector<PoolTable::Place> PoolTable::PlacesBeside(const Part& part) const {
  std::vector<Place> places;
  const PageIndex first = part.extent->first();
  if (part.direction == Direction::kDown) {
    places.push_back({PageIndex(first.value() + part.extent->page_count()), Direction::kUp});
  } else if (auto before = pools_.lower_bound(first); before != pools_.begin()) {
    --before;
    const Extent& extent = *before->second.extent;
    if (extent.first().value() + extent.page_count() == first.value()) {
      places.push_back({extent.first(), Direction::kDown});
    }
  }
  places.push_back({first, std::nullopt});
  return places;
}

std::optional<PoolTable::FreeEnd> PoolTable::FindEnd(LayerHead owner, std::int64_t bytes,
                                                     std::span<const Place> preferred,
                                                     const WriteCheck& is_being_written) const {
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
  Pool& known = pools_[pool->first()];
  if (known.extent == nullptr) {
    known.extent = pool;
    known.owner = owner;
  }
  CAIRN_CHECK(known.extent == pool && known.owner == owner);
  CAIRN_CHECK(!known.kept[Slot(direction)]);
  known.kept[Slot(direction)] = true;
  return {this, [first = pool->first(), direction](PoolTable* table) {
            const auto found = table->pools_.find(first);
            if (found == table->pools_.end()) return;
            found->second.kept[Slot(direction)] = false;
            table->ForgetUnused(first);
          }};
}

void PoolTable::ForgetUnused(PageIndex first) {
  const auto found = pools_.find(first);
  if (found == pools_.end()) return;
  const Pool& pool = found->second;
  const bool used = pool.live_count > 0 || pool.recorded || pool.held || pool.kept[0] ||
                    pool.kept[1] || touched_.contains(first);
  if (!used) pools_.erase(found);
}

std::shared_ptr<void> PoolTable::Hold(const ExtentRef& pool) {
  bool& held = pools_.at(pool->first()).held;
  CAIRN_CHECK(!held);
  held = true;
  return {this, [first = pool->first()](PoolTable* table) {
            const auto found = table->pools_.find(first);
            if (found == table->pools_.end()) return;
            found->second.held = false;
            table->ForgetUnused(first);
          }};
}

std::vector<PageIndex> PoolTable::PagesToCheck(const Part& part, std::int64_t entry_bytes,
                                               std::int64_t count) const {
  const ByteRange fresh = RangeOf(part, entry_bytes, part.count(), count);
  const ByteRange own = RangeOf(part, entry_bytes, 0, part.count());
  const std::shared_ptr<End> other = Other(part);
  const ByteRange others =
      RangeAt(*part.extent, Opposite(part.direction), other ? other->bytes : 0);
  std::vector<PageIndex> pages;
  for (std::int64_t i = fresh.begin / kPageBytes; i * kPageBytes < fresh.end; ++i) {
    if (!Touches(own, i) && !Touches(others, i)) continue;
    pages.emplace_back(part.extent->first().value() + i);
  }
  return pages;
}

bool PoolTable::AreIntact(const StoreId& store, const Part& part, std::int64_t entry_bytes,
                          std::int64_t count, const PageSet& pages) const {
  const std::shared_ptr<End> other = Other(part);
  const Direction facing = Opposite(part.direction);
  const ByteRange others = RangeAt(*part.extent, facing, other ? other->bytes : 0);
  for (const PageIndex page : PagesToCheck(part, entry_bytes, count)) {
    if (pages.Failed(page)) return false;
    const std::int64_t index = page.value() - part.extent->first().value();
    // New bytes are in this page: what is here of either part is its last page.
    if (Touches(RangeOf(part, entry_bytes, 0, part.count()), index)) {
      const PagePiece last = PiecesOf(part, entry_bytes, part.count() - 1, 1).back();
      if (!PieceIsIntact(store, part, last, pages.Page(page))) return false;
    }
    if (!Touches(others, index)) continue;
    const std::int64_t begin = std::max(others.begin - index * kPageBytes, std::int64_t{0});
    const std::int64_t end = std::min(others.end - index * kPageBytes, kPageBytes);
    const std::int64_t number =
        facing == Direction::kUp ? index : part.extent->page_count() - 1 - index;
    const auto bytes = pages.Page(page).subspan(static_cast<std::size_t>(begin),
                                                static_cast<std::size_t>(end - begin));
    if (other->last_crc != PartCrc(store, other->part, number, bytes)) return false;
  }
  return true;
}

void PoolTable::NoteDamage(const Extent& pool) {
  pools_.at(pool.first()).damaged = true;
  LogWarning("pool at page={} takes no more new parts: a page of it fails its check", pool.first());
}

PoolTable::Changes PoolTable::TakeChanges() {
  Changes out;
  for (const PageIndex first : touched_) {
    Pool& pool = pools_.at(first);
    if (pool.live_count > 0) {
      if (!pool.recorded) out.named.push_back(pool.extent);
      pool.recorded = true;
      continue;
    }
    if (pool.recorded) out.released.push_back(pool.extent);
    pools_.erase(first);
  }
  touched_.clear();
  out.ends = std::exchange(dropped_, {});
  return out;
}

std::int64_t PoolTable::memory_bytes() const {
  constexpr std::int64_t kNodeBytes = 64;  // of a map node and its place among the half full
  constexpr std::int64_t kEndsBytes = 2 * (sizeof(End) + 16);
  return pool_count() * (kNodeBytes + static_cast<std::int64_t>(sizeof(Pool)) + kEndsBytes);
}

void PoolTable::Clear() {
  CAIRN_CHECK(touched_.empty());
  pools_.clear();
  half_full_.clear();
}

}  // namespace cairn::kv
