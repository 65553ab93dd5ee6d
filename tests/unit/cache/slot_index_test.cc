#include "kv-node/cache/slot_index.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "kv-node/cache/slot_cache.h"
#include "tests/tools/rng.h"
#include "tests/tools/seed.h"

namespace cairn::kv {
namespace {

template <typename Fn>
SlotRef NewestOf(const std::vector<SlotRef>& slots, Fn&& counts) {
  SlotRef newest;
  for (const SlotRef& slot : slots) {
    const bool newer = newest == nullptr || newest->generation() < slot->generation();
    if (newer && counts(*slot)) newest = slot;
  }
  return newest;
}

// By a walk over all slots.
SlotRef FoundAmong(const std::vector<SlotRef>& slots, PageIndex first, std::int64_t count) {
  SlotRef same = NewestOf(slots, [&](const Slot& slot) {
    return slot.first_page() == first && slot.page_count() == count;
  });
  if (same != nullptr) return same;
  return NewestOf(slots, [&](const Slot& slot) { return slot.Holds(first, count); });
}

std::set<SlotRef> TouchedAmong(const std::vector<SlotRef>& slots, std::int64_t first,
                               std::int64_t end) {
  std::set<SlotRef> touched;
  for (const SlotRef& slot : slots) {
    const std::int64_t begin = slot->first_page().value();
    if (begin < end && begin + slot->page_count() > first) touched.insert(slot);
  }
  return touched;
}

TEST(SlotIndexTest, FindsWhatAWalkOverAllSlotsFinds) {
  test::Rng rng(test::TestSeed());
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(rng.Below(static_cast<std::uint64_t>(limit)));
  };
  // Makes the slots; which of them it forgets does not matter here.
  SlotCache cache(std::int64_t{64} << 20, ReplacementPolicy::kLru);
  SlotIndex index;
  std::vector<SlotRef> slots;
  int found_count = 0;
  for (int round = 0; round < 3000; ++round) {
    if (slots.size() > 40) {
      const auto gone = slots.begin() + below(std::ssize(slots));
      index.Erase(*gone);
      slots.erase(gone);
    }
    slots.push_back(cache.Load(SessionId(1), PageIndex(below(200)), 1 + below(kSlotPagesMax)));
    ASSERT_NE(slots.back(), nullptr);
    cache.Loaded(slots.back(), true);
    index.Insert(slots.back());
    const PageIndex first(below(264));
    const std::int64_t count = 1 + below(20);
    const SlotRef found = index.Find(first, count);
    ASSERT_EQ(found, FoundAmong(slots, first, count));
    found_count += found != nullptr ? 1 : 0;
    std::set<SlotRef> touched;
    const std::int64_t end = first.value() + count;
    index.ForEachTouching(first.value(), end, [&](const SlotRef& slot) { touched.insert(slot); });
    ASSERT_EQ(touched, TouchedAmong(slots, first.value(), end));
  }
  EXPECT_GT(found_count, 100);
}

TEST(PartNumbersTest, KeepsOneNumberForEachPart) {
  PartNumbers numbers;
  EXPECT_EQ(numbers.Get(PartId(5)), 0);
  numbers.Set(PartId(5), 8);
  numbers.Set(PartId(3), 2);
  numbers.Set(PartId(9), 1);
  numbers.Set(PartId(5), 9);
  EXPECT_EQ(numbers.Get(PartId(5)), 9);
  EXPECT_EQ(numbers.Get(PartId(4)), 0);
  EXPECT_EQ(numbers.Get(PartId(9)), 1);
  numbers.Clear();
  EXPECT_EQ(numbers.Get(PartId(9)), 0);
}

}  // namespace
}  // namespace cairn::kv
