// SlotIndex finds slots of the cache by the pages that they hold. Slots may share pages: clusters
// that lie side by side share the page between them.
//
// A slot may begin up to its own length before a page that it holds. Slots are kept apart by the
// power of two of their length, so that a look-up passes few that end before the page.
//
// Units:      pages of kPageBytes.
// Threading:  not synchronised.
// Ownership:  shares the slots.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <map>

#include "common/base/check.h"
#include "kv-node/cache/slot.h"

namespace cairn::kv {

class SlotIndex {
 public:
  void Insert(const SlotRef& slot) {
    ClassOf(slot->page_count()).emplace(slot->first_page().value(), slot);
  }
  // REQUIRES: it was inserted.
  void Erase(const SlotRef& slot) {
    Class& slots = ClassOf(slot->page_count());
    auto found = slots.lower_bound(slot->first_page().value());
    while (found->second != slot) ++found;
    slots.erase(found);
  }
  // The newest slot with exactly these pages if there is one, else the newest that holds them all;
  // null if none does.
  SlotRef Find(PageIndex first, std::int64_t count) const {
    // A cluster is mostly fetched again as it was before.
    const Class& same = by_class_[NumberOf(count)];
    const SlotRef* newest = nullptr;
    const auto [begin, end] = same.equal_range(first.value());
    for (auto it = begin; it != end; ++it) {
      if (it->second->page_count() == count) TakeNewer(it->second, newest);
    }
    if (newest != nullptr) return *newest;
    ForEachTouching(first.value(), first.value() + 1, NumberOf(count), [&](const SlotRef& slot) {
      if (slot->Holds(first, count)) TakeNewer(slot, newest);
    });
    return newest == nullptr ? nullptr : *newest;
  }
  // Slots that hold at least one of the pages [first, end). `fn` changes nothing here.
  template <typename Fn>
  void ForEachTouching(std::int64_t first, std::int64_t end, Fn&& fn) const {
    ForEachTouching(first, end, 0, fn);
  }

 private:
  using Class = std::multimap<std::int64_t, SlotRef>;  // by first page

  static std::size_t NumberOf(std::int64_t page_count) {
    CAIRN_CHECK(page_count >= 1 && page_count <= kSlotPagesMax);
    return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(page_count)) - 1);
  }
  Class& ClassOf(std::int64_t page_count) { return by_class_[NumberOf(page_count)]; }
  static void TakeNewer(const SlotRef& slot, const SlotRef*& newest) {
    if (newest == nullptr || (*newest)->generation() < slot->generation()) newest = &slot;
  }
  template <typename Fn>
  void ForEachTouching(std::int64_t first, std::int64_t end, std::size_t from_class,
                       Fn&& fn) const {
    for (std::size_t number = from_class; number < by_class_.size(); ++number) {
      const Class& slots = by_class_[number];
      if (slots.empty()) continue;
      const std::int64_t longest = (std::int64_t{2} << number) - 1;
      for (auto it = slots.upper_bound(first - longest); it != slots.end() && it->first < end;
           ++it) {
        if (it->first + it->second->page_count() > first) fn(it->second);
      }
    }
  }

  std::array<Class, 7> by_class_;
  static_assert(kSlotPagesMax < (std::int64_t{1} << 7));
};

}  // namespace cairn::kv
