// SlotCache keeps pages of pools and runs in the arena. A slot holds consecutive pages as they were
// read or written last, with the parts that were checked there. Who reads a slot's bytes holds a
// lease on it; the memory of a leased slot is neither given out again nor written to (rule 18).
//
// Flash is the truth: a slot only holds what a read of its pages gave. What is written to a page
// goes to its slot too, or the slot is forgotten; a part that was not checked in a slot is checked
// before it is served from there. Slots carry the session that loaded them: its end forgets them,
// because what comes behind a rollback has the same part ids and other bytes (rule 5).
//
// Units:      pages of kPageBytes.
// Threading:  the engine thread. Leases end on any thread.
// Ownership:  a lease keeps the memory mapped, also behind the cache's end.
// Limits:     the arena's size. A slot has at most kSlotPagesMax pages.
// Errors:     none: no slot is an answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/kv/messages.h"
#include "kv-node/cache/arena.h"
#include "kv-node/cache/replacement.h"

namespace cairn::kv {

// As large as a device request: larger ones gain nothing.
inline constexpr std::int64_t kSlotPagesMax = 64;
// Of the arena, for slots that were updated lately; ReplacementPolicy::kClusterAligned only.
inline constexpr double kUpdatedShare = 0.25;

class Slot {
 public:
  PageIndex first_page() const { return first_page_; }
  std::int64_t page_count() const { return block_.page_count; }
  const ArenaBlock& block() const { return block_; }
  // Of this use of the memory: another use has another one.
  std::int64_t generation() const { return generation_; }
  bool Holds(PageIndex first, std::int64_t count) const {
    return first >= first_page_ && first.value() + count <= first_page_.value() + page_count();
  }
  const std::byte* At(PageIndex page) const {
    return block_.bytes().data() + (page.value() - first_page_.value()) * kPageBytes;
  }
  std::int64_t OffsetInArena(const std::byte* bytes) const {
    return block_.offset_bytes() + (bytes - block_.bytes().data());
  }

  bool loading() const { return loading_; }
  // Called on the engine thread when the load has ended. REQUIRES: loading().
  void WhenLoaded(std::function<void()> then) { waiters_.push_back(std::move(then)); }
  // The first `count` entries of the part passed their check here.
  bool IsChecked(PartId part, std::int64_t count) const;
  void SetChecked(PartId part, std::int64_t count) { checked_[part] = count; }

 private:
  friend class SlotCache;
  PageIndex first_page_;
  ArenaBlock block_;
  std::int64_t generation_ = 0;
  SessionId owner_;
  bool loading_ = true;
  bool indexed_ = false;
  bool updated_ = false;  // has a place in the share of updated slots
  bool written_ = false;
  ReplacementRank rank_;
  std::atomic<std::int32_t> lease_count_{0};
  std::map<PartId, std::int64_t> checked_;
  std::vector<std::function<void()>> waiters_;
};
using SlotRef = std::shared_ptr<Slot>;
// Bytes of a slot may be read as long as it lives.
using SlotLease = std::shared_ptr<const void>;

struct SlotCacheStats {
  std::int64_t hit_count = 0;  // parts that were served without a read
  std::int64_t hit_bytes = 0;
  std::int64_t miss_count = 0;
  std::int64_t miss_bytes = 0;
  std::int64_t evicted_count = 0;
  std::int64_t no_room_count = 0;  // loads that found every slot leased
};

class SlotCache {
 public:
  SlotCache(std::int64_t bytes_max, ReplacementPolicy policy);
  ~SlotCache() = default;
  SlotCache(const SlotCache&) = delete;
  SlotCache& operator=(const SlotCache&) = delete;

  // The slot that holds all of the pages, loading or not; null if none does.
  SlotRef Find(PageIndex first, std::int64_t count) const;
  // A new slot for pages that are about to be read, found from now on. Older slots within these
  // pages are forgotten, others that share some of them stay. Null when there is no room: too much
  // is leased or loading, or what may leave lies too scattered; fewer pages may still have room.
  // REQUIRES: page_count <= kSlotPagesMax.
  SlotRef Load(SessionId owner, PageIndex first, std::int64_t page_count);
  // The read has ended: runs the waiters. A slot whose read failed is forgotten.
  void Loaded(const SlotRef& slot, bool ok);
  void Touch(Slot& slot);
  SlotLease Lease(const SlotRef& slot);
  // Not found any more; its memory is free when its leases have ended.
  void Forget(const SlotRef& slot);
  // Also what was written to: by which session, a slot does not know.
  void ForgetAllOf(SessionId owner);
  // Pages from `first` on are being written with `bytes`.
  void OnWrite(PageIndex first, std::span<const std::byte> bytes);
  // Gives memory back where nothing is cached or leased.
  void Trim();

  const Arena& arena() const { return arena_; }
  void SetWatch(GranuleWatch watch) { arena_.SetWatch(std::move(watch)); }
  std::int64_t leased_count() const;
  std::int64_t slot_count() const { return static_cast<std::int64_t>(slots_.size()); }
  SlotCacheStats& stats() { return stats_; }
  const SlotCacheStats& stats() const { return stats_; }

 private:
  void Remove(const SlotRef& slot);
  // A new generation, told to readers before other bytes are in the memory.
  void StartGeneration(const SlotRef& slot);
  // Slots that hold at least one of the pages [first, end).
  template <typename Fn>
  void ForEachTouching(std::int64_t first, std::int64_t end, Fn&& fn) const;
  void Overwrite(const SlotRef& slot, PageIndex first, std::span<const std::byte> bytes);
  std::optional<ArenaBlock> MakeRoom(std::int64_t page_count);
  SlotRef Victim();
  // Frees the memory of forgotten slots whose leases have ended.
  void Reap();
  void MarkUpdated(const SlotRef& slot);
  static bool InUse(const Slot& slot) {
    return slot.loading_ || slot.lease_count_.load(std::memory_order_acquire) != 0;
  }

  Arena arena_;
  Replacement replacement_;
  const std::int64_t updated_pages_max_;
  std::int64_t updated_pages_ = 0;
  std::int64_t last_generation_ = 0;
  std::map<std::uint64_t, SlotRef> slots_;              // by generation: all that can be found
  std::multimap<std::int64_t, SlotRef> by_first_page_;  // the same
  std::vector<SlotRef> updated_;                        // oldest first; within updated_pages_max_
  std::vector<SlotRef> forgotten_;                      // leased or loading still
  SlotCacheStats stats_;
};

}  // namespace cairn::kv
