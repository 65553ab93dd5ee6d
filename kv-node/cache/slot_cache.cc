#include "kv-node/cache/slot_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/fail_point.h"

namespace cairn::kv {
namespace {

// Pages that may leave for one page that comes.
constexpr std::int64_t kEvictedTimesMax = 8;

}  // namespace

SlotCache::SlotCache(std::int64_t bytes_max, ReplacementPolicy policy, GranuleWatch watch)
    : arena_(bytes_max, std::move(watch)),
      replacement_(policy),
      updated_pages_max_(policy == ReplacementPolicy::kClusterAligned
                             ? static_cast<std::int64_t>(static_cast<double>(bytes_max) *
                                                         kUpdatedShare / kPageBytes)
                             : 0) {}

std::vector<SlotRef> SlotCache::CoveredBy(PageIndex first, std::int64_t page_count) const {
  std::vector<SlotRef> covered;
  index_.ForEachTouching(first.value(), first.value() + page_count, [&](const SlotRef& slot) {
    const bool within =
        slot->first_page_ >= first &&
        slot->first_page_.value() + slot->page_count() <= first.value() + page_count;
    if (within) covered.push_back(slot);
  });
  return covered;
}

SlotRef SlotCache::Load(SessionId owner, PageIndex first, std::int64_t page_count) {
  CAIRN_CHECK_LE(page_count, kSlotPagesMax);
  std::optional<ArenaBlock> block = MakeRoom(page_count);
  if (!block) {
    ++stats_.no_room_count;
    return nullptr;
  }
  auto slot = std::make_shared<Slot>();
  slot->first_page_ = first;
  slot->block_ = *std::move(block);
  slot->owner_ = owner;
  for (const SlotRef& older : CoveredBy(first, page_count)) Forget(older);
  index_.Insert(slot);
  slot->indexed_ = true;
  StartGeneration(slot);
  return slot;
}

void SlotCache::StartGeneration(const SlotRef& slot) {
  if (!FailPoint("a write keeps the generation")) slot->generation_ = ++last_generation_;
  slot->block_.SetGeneration(slot->generation_);
  const auto key = static_cast<std::uint64_t>(slot->generation_);
  slots_.emplace(key, slot);
  replacement_.Insert(key, slot->page_count(), slot->rank_);
}

void SlotCache::Loaded(const SlotRef& slot, bool ok) {
  CAIRN_CHECK(slot->loading_);
  slot->loading_ = false;
  if (!ok) Forget(slot);
  for (const std::function<void()>& run : std::exchange(slot->waiters_, {})) run();
}

bool SlotCache::NoteUse(Slot& slot, SessionId session) const {
  const auto count = fetch_counts_.find(session);
  const std::int64_t now = count == fetch_counts_.end() ? 0 : count->second;
  const bool first = slot.user_ != session || slot.used_at_ != now;
  slot.user_ = session;
  slot.used_at_ = now;
  return first;
}

void SlotCache::Touch(Slot& slot) {
  if (!slot.indexed_) return;
  replacement_.Touch(static_cast<std::uint64_t>(slot.generation_), slot.page_count(), slot.rank_);
}

void SlotCache::LeaveFirst(Slot& slot) {
  if (!slot.indexed_) return;
  replacement_.MoveToFront(static_cast<std::uint64_t>(slot.generation_), slot.rank_);
}

void SlotCache::Remove(const SlotRef& slot) {
  if (!slot->indexed_) return;
  slot->indexed_ = false;
  index_.Erase(slot);
  if (std::exchange(slot->updated_, false)) {
    updated_pages_ -= slot->page_count();
    std::erase(updated_, slot);
  }
  const auto key = static_cast<std::uint64_t>(slot->generation_);
  replacement_.Erase(key, slot->rank_);
  slots_.erase(key);
}

void SlotCache::Forget(const SlotRef& slot) {
  if (!slot->indexed_) return;
  forgotten_.push_back(slot);  // `slot` may be a reference into what Remove erases
  Remove(forgotten_.back());
  if (InUse(*forgotten_.back())) return;
  arena_.Free(forgotten_.back()->block_);
  forgotten_.pop_back();
}

void SlotCache::ForgetAllOf(SessionId owner) {
  std::vector<SlotRef> gone;
  for (const auto& [generation, slot] : slots_) {
    if (slot->owner_ == owner || slot->written_) gone.push_back(slot);
    if (slot->user_ == owner) slot->user_ = SessionId();
  }
  for (const SlotRef& slot : gone) Forget(slot);
  fetch_counts_.erase(owner);
}

void SlotCache::Reap() {
  std::erase_if(forgotten_, [&](const SlotRef& slot) {
    if (InUse(*slot)) return false;
    arena_.Free(slot->block_);
    return true;
  });
}

std::optional<ArenaBlock> SlotCache::MakeRoom(std::int64_t page_count) {
  if (page_count > arena_.block_pages_max()) return std::nullopt;
  if (!forgotten_.empty()) Reap();
  if (std::optional<ArenaBlock> block = arena_.Allocate(page_count)) return block;
  // Slots of other sizes leave holes: a block that still finds no room behind so many of them is
  // not worth the cache. Its caller asks for smaller ones.
  std::int64_t pages_left = page_count * kEvictedTimesMax;
  while (pages_left > 0) {
    const SlotRef victim = Victim();
    if (victim == nullptr) break;
    pages_left -= victim->page_count();
    replacement_.Evicted(victim->rank_);
    ++stats_.evicted_count;
    Forget(victim);
    if (std::optional<ArenaBlock> block = arena_.AllocateNear(victim->block_, page_count)) {
      return block;
    }
  }
  return std::nullopt;
}

// The share of updated slots is left alone until nothing else may leave.
SlotRef SlotCache::Victim() {
  for (const bool spare_updated : {true, false}) {
    const Replacement::Key key = replacement_.Victim([&](Replacement::Key candidate) {
      const Slot& slot = *slots_.at(candidate);
      return !InUse(slot) && !(spare_updated && slot.updated_);
    });
    if (key != 0) return slots_.at(key);
  }
  return nullptr;
}

void SlotCache::MarkUpdated(const SlotRef& slot) {
  if (updated_pages_max_ < slot->page_count()) return;
  if (std::exchange(slot->updated_, true)) {
    std::erase(updated_, slot);
  } else {
    updated_pages_ += slot->page_count();
  }
  updated_.push_back(slot);
  while (updated_pages_ > updated_pages_max_) {
    const SlotRef oldest = updated_.front();
    updated_.erase(updated_.begin());
    oldest->updated_ = false;
    updated_pages_ -= oldest->page_count();
  }
}

void SlotCache::OnWrite(PageIndex first, std::span<const std::byte> bytes) {
  const std::int64_t end = first.value() + std::ssize(bytes) / kPageBytes;
  std::vector<SlotRef> touched;
  index_.ForEachTouching(first.value(), end, [&](const SlotRef& slot) { touched.push_back(slot); });
  for (const SlotRef& slot : touched) {
    // New bytes land only where nobody reads (rule 18), and not under a read of the device.
    const bool loading = slot->loading_ && !FailPoint("a write lands under a load");
    const bool leased = slot->leased() && !FailPoint("a write lands under a lease");
    if (loading || leased) {
      Forget(slot);
    } else {
      Overwrite(slot, first, bytes);
    }
  }
}

void SlotCache::Overwrite(const SlotRef& slot, PageIndex first, std::span<const std::byte> bytes) {
  const auto key = static_cast<std::uint64_t>(slot->generation_);
  replacement_.Erase(key, slot->rank_);
  slots_.erase(key);
  // A reader whose lease ended under it must find out.
  StartGeneration(slot);
  const std::int64_t end = first.value() + std::ssize(bytes) / kPageBytes;
  const std::int64_t from = std::max(first, slot->first_page_).value();
  const std::int64_t to = std::min(end, slot->first_page_.value() + slot->page_count());
  std::memcpy(slot->block_.bytes().data() + (from - slot->first_page_.value()) * kPageBytes,
              bytes.data() + (from - first.value()) * kPageBytes,
              static_cast<std::size_t>((to - from) * kPageBytes));
  if (!FailPoint("a written slot keeps its checks")) slot->checked_.Clear();
  slot->written_ = true;
  MarkUpdated(slot);
}

void SlotCache::Trim() {
  Reap();
  arena_.Trim();
}

std::int64_t SlotCache::leased_count() const {
  const auto leased = [](const SlotRef& slot) { return slot->leased(); };
  std::int64_t count = std::count_if(forgotten_.begin(), forgotten_.end(), leased);
  for (const auto& [generation, slot] : slots_) count += leased(slot) ? 1 : 0;
  return count;
}

}  // namespace cairn::kv
