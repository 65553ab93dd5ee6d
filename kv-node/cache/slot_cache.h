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

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "common/kv/messages.h"
#include "kv-node/cache/arena.h"
#include "kv-node/cache/replacement.h"
#include "kv-node/cache/slot.h"
#include "kv-node/cache/slot_index.h"

namespace cairn::kv {

// Of the arena, for slots that were updated lately; ReplacementPolicy::kClusterAligned only.
inline constexpr double kUpdatedShare = 0.25;

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
  SlotCache(std::int64_t bytes_max, ReplacementPolicy policy, GranuleWatch watch = {});
  ~SlotCache() = default;
  SlotCache(const SlotCache&) = delete;
  SlotCache& operator=(const SlotCache&) = delete;

  // The slot that holds all of the pages, loading or not; null if none does.
  SlotRef Find(PageIndex first, std::int64_t count) const { return index_.Find(first, count); }
  // A new slot for pages that are about to be read, found from now on. Older slots within these
  // pages are forgotten, others that share some of them stay. Null when there is no room: too much
  // is leased or loading, or what may leave lies too scattered; fewer pages may still have room.
  // REQUIRES: page_count <= kSlotPagesMax.
  SlotRef Load(SessionId owner, PageIndex first, std::int64_t page_count);
  // The read has ended: runs the waiters. A slot whose read failed is forgotten.
  void Loaded(const SlotRef& slot, bool ok);
  void Touch(Slot& slot);
  // The session has made one fetch more.
  void NoteFetch(SessionId session) { ++fetch_counts_[session]; }
  // The session has used the slot. Returns whether that was the first time
  // since it has made a fetch: a fetch is one use, however many parts of the slot it names.
  bool NoteUse(Slot& slot, SessionId session) const;
  // The slot is the first to leave, unless it is used again.
  void LeaveFirst(Slot& slot);
  // Not found any more; its memory is free when its leases have ended.
  void Forget(const SlotRef& slot);
  // Also what was written to: by which session, a slot does not know.
  void ForgetAllOf(SessionId owner);
  // Pages from `first` on are being written with `bytes`.
  void OnWrite(PageIndex first, std::span<const std::byte> bytes);
  // Gives memory back where nothing is cached or leased.
  void Trim();

  const Arena& arena() const { return arena_; }
  std::int64_t leased_count() const;
  std::int64_t slot_count() const { return static_cast<std::int64_t>(slots_.size()); }
  SlotCacheStats& stats() { return stats_; }
  const SlotCacheStats& stats() const { return stats_; }

 private:
  void Remove(const SlotRef& slot);
  // A new generation, told to readers before other bytes are in the memory.
  void StartGeneration(const SlotRef& slot);
  void Overwrite(const SlotRef& slot, PageIndex first, std::span<const std::byte> bytes);
  std::optional<ArenaBlock> MakeRoom(std::int64_t page_count);
  SlotRef Victim();
  // Older slots within these pages.
  std::vector<SlotRef> CoveredBy(PageIndex first, std::int64_t page_count) const;
  // Frees the memory of forgotten slots whose leases have ended.
  void Reap();
  void MarkUpdated(const SlotRef& slot);
  static bool InUse(const Slot& slot) { return slot.loading_ || slot.leased(); }

  Arena arena_;
  Replacement replacement_;
  const std::int64_t updated_pages_max_;
  std::int64_t updated_pages_ = 0;
  std::int64_t last_generation_ = 0;
  std::map<std::uint64_t, SlotRef> slots_;          // by generation: all that can be found
  SlotIndex index_;                                 // the same
  std::vector<SlotRef> updated_;                    // oldest first; within updated_pages_max_
  std::vector<SlotRef> forgotten_;                  // leased or loading still
  std::map<SessionId, std::int64_t> fetch_counts_;  // of attached sessions
  SlotCacheStats stats_;
};

}  // namespace cairn::kv
