// Slot is one piece of the cache: consecutive pages in the arena, with what is known of them.
// SlotLeases keeps the slots of one answer from being given out again.
//
// Units:      pages of kPageBytes.
// Threading:  the engine thread; leases end on any thread.
// Ownership:  a slot keeps its memory mapped, leases keep their slots.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <absl/container/inlined_vector.h>

#include "common/kv/messages.h"
#include "kv-node/cache/arena.h"
#include "kv-node/cache/replacement.h"

namespace cairn::kv {

// As large as a device request: larger ones gain nothing.
inline constexpr std::int64_t kSlotPagesMax = 64;

// A number above 0 for each of a few parts. Most slots hold one part.
class PartNumbers {
 public:
  using Item = std::pair<PartId, std::int64_t>;

  // 0: none.
  std::int64_t Get(PartId part) const {
    const auto found = std::lower_bound(items_.begin(), items_.end(), Item{part, 0});
    return found != items_.end() && found->first == part ? found->second : 0;
  }
  void Set(PartId part, std::int64_t number) {
    const auto found = std::lower_bound(items_.begin(), items_.end(), Item{part, 0});
    if (found != items_.end() && found->first == part) {
      found->second = number;
    } else {
      items_.insert(found, {part, number});
    }
  }
  void Clear() { items_.clear(); }

 private:
  absl::InlinedVector<Item, 1> items_;  // by part
};

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
  bool IsChecked(PartId part, std::int64_t count) const { return checked_.Get(part) >= count; }
  void SetChecked(PartId part, std::int64_t count) { checked_.Set(part, count); }

  // Whether somebody may read it. What they read is behind them when this says no.
  bool leased() const { return lease_count_.load(std::memory_order_acquire) != 0; }

 private:
  friend class SlotCache;
  friend class SlotLeases;
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
  PartNumbers checked_;       // entries
  SessionId user_;            // who used it last
  std::int64_t used_at_ = 0;  // the user's fetches by then
  std::vector<std::function<void()>> waiters_;
};
using SlotRef = std::shared_ptr<Slot>;

// One for all slots of a fetch: a fetch reads hundreds.
class SlotLeases {
 public:
  SlotLeases() = default;
  ~SlotLeases() {
    // What the holder read is behind it when the memory is given out again.
    for (const SlotRef& slot : slots_) slot->lease_count_.fetch_sub(1, std::memory_order_release);
  }
  SlotLeases(const SlotLeases&) = delete;
  SlotLeases& operator=(const SlotLeases&) = delete;

  // On the engine thread, before the leases are handed on.
  void Add(const SlotRef& slot) {
    // Parts of one slot mostly come behind one another.
    if (!slots_.empty() && slots_.back() == slot) return;
    slot->lease_count_.fetch_add(1, std::memory_order_relaxed);
    slots_.push_back(slot);
  }

 private:
  std::vector<SlotRef> slots_;
};

}  // namespace cairn::kv
