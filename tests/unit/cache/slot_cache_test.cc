#include "kv-node/cache/slot_cache.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cairn::kv {
namespace {

constexpr std::int64_t kCacheBytes = std::int64_t{1} << 20;
constexpr SessionId kOwner{1};

class SlotCacheTest : public testing::Test {
 protected:
  // A slot whose pages are filled with `fill`.
  SlotRef Add(std::int64_t first, std::int64_t count, char fill = 'x', SessionId owner = kOwner) {
    SlotRef slot = cache_.Load(owner, PageIndex(first), count);
    if (slot == nullptr) return nullptr;
    std::memset(slot->block().bytes().data(), fill, slot->block().bytes().size());
    cache_.Loaded(slot, true);
    return slot;
  }
  using Leases = std::unique_ptr<SlotLeases>;
  static Leases Lease(const SlotRef& slot) {
    auto leases = std::make_unique<SlotLeases>();
    leases->Add(slot);
    return leases;
  }
  char At(const SlotRef& slot, std::int64_t page) {
    return static_cast<char>(*slot->At(PageIndex(page)));
  }
  SlotRef Find(std::int64_t first, std::int64_t count) {
    return cache_.Find(PageIndex(first), count);
  }
  void Write(std::int64_t first, std::int64_t count, char fill) {
    const std::string bytes(static_cast<std::size_t>(count * kPageBytes), fill);
    cache_.OnWrite(PageIndex(first), std::as_bytes(std::span(bytes.data(), bytes.size())));
  }
  // Fills the cache with slots of one page from page 1000 on.
  void Fill(std::int64_t count = 1000) {
    for (std::int64_t i = 0; i < count; ++i) ASSERT_NE(Add(1000 + i, 1), nullptr);
  }

  SlotCache cache_{kCacheBytes, ReplacementPolicy::kLru};
};

TEST_F(SlotCacheTest, AFetchUsesASlotOnceHoweverManyPartsItNames) {
  const SlotRef slot = Add(10, 2);
  cache_.NoteFetch(kOwner);
  EXPECT_TRUE(cache_.NoteUse(*slot, kOwner));
  EXPECT_FALSE(cache_.NoteUse(*slot, kOwner));
  EXPECT_TRUE(cache_.NoteUse(*slot, SessionId(2))) << "another session's fetch";
  cache_.NoteFetch(kOwner);
  EXPECT_TRUE(cache_.NoteUse(*slot, kOwner));
  EXPECT_FALSE(cache_.NoteUse(*slot, kOwner));
}

TEST_F(SlotCacheTest, FindsASlotThatHoldsAllPages) {
  const SlotRef slot = Add(10, 4);
  EXPECT_EQ(Find(10, 4), slot);
  EXPECT_EQ(Find(12, 2), slot);
  EXPECT_EQ(Find(12, 3), nullptr);
  EXPECT_EQ(Find(9, 2), nullptr);
}

TEST_F(SlotCacheTest, SlotsMayShareAPageAndTheNewerIsFound) {
  const SlotRef older = Add(10, 4, 'a');
  const SlotRef newer = Add(12, 4, 'b');
  EXPECT_EQ(Find(10, 4), older);
  EXPECT_EQ(Find(12, 4), newer);
  EXPECT_EQ(Find(12, 2), newer);
  Write(12, 1, 'c');
  EXPECT_EQ(At(older, 12), 'c');
  EXPECT_EQ(At(newer, 12), 'c');
  EXPECT_EQ(At(older, 13), 'a');
}

TEST_F(SlotCacheTest, ASlotForgetsThoseWithinIt) {
  Add(10, 4, 'a');
  Add(15, 1, 'a');
  const SlotRef same = Add(15, 1, 'b');
  EXPECT_EQ(Find(15, 1), same);
  EXPECT_EQ(cache_.slot_count(), 2);
  const SlotRef all = Add(9, 16, 'c');
  EXPECT_EQ(Find(10, 4), all);
  EXPECT_EQ(cache_.slot_count(), 1);
}

TEST_F(SlotCacheTest, WaitersRunWhenTheLoadEnds) {
  const SlotRef slot = cache_.Load(kOwner, PageIndex(10), 1);
  int calls = 0;
  EXPECT_TRUE(Find(10, 1)->loading());
  slot->WhenLoaded([&] { ++calls; });
  EXPECT_EQ(calls, 0);
  cache_.Loaded(slot, true);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(Find(10, 1), slot);
}

TEST_F(SlotCacheTest, AFailedLoadIsForgotten) {
  const SlotRef slot = cache_.Load(kOwner, PageIndex(10), 1);
  cache_.Loaded(slot, false);
  EXPECT_EQ(Find(10, 1), nullptr);
}

TEST_F(SlotCacheTest, MemoryIsUsedAgainButNotUnderALease) {
  const SlotRef leased = Add(10, 16, 'l');
  const Leases lease = Lease(leased);
  Fill();
  EXPECT_GT(cache_.stats().evicted_count, 0);
  EXPECT_LE(cache_.arena().size_bytes(), kCacheBytes);
  for (std::int64_t page = 10; page < 26; ++page) EXPECT_EQ(At(leased, page), 'l');
}

TEST_F(SlotCacheTest, WithoutRoomThereIsNoSlot) {
  std::vector<Leases> leases;
  std::int64_t page = 0;
  while (const SlotRef slot = Add(page, 16)) {
    leases.push_back(Lease(slot));
    page += 16;
  }
  EXPECT_EQ(cache_.leased_count(), std::ssize(leases));
  EXPECT_EQ(cache_.stats().no_room_count, 1);
  leases.clear();
  EXPECT_EQ(cache_.leased_count(), 0);
  EXPECT_NE(Add(page, 16), nullptr);
}

TEST_F(SlotCacheTest, AForgottenSlotsMemoryIsFreeWhenItsLeaseEnds) {
  Leases lease;
  {
    const SlotRef slot = Add(10, 16, 'l');
    lease = Lease(slot);
    cache_.Forget(slot);
  }
  EXPECT_EQ(cache_.leased_count(), 1);
  lease.reset();
  cache_.Trim();
  EXPECT_EQ(cache_.arena().size_bytes(), 0);
}

TEST_F(SlotCacheTest, AWriteReachesAnUnleasedSlotAndItsPartsAreCheckedAgain) {
  const SlotRef slot = Add(10, 4, 'a');
  slot->SetChecked(PartId(5), 8);
  EXPECT_TRUE(slot->IsChecked(PartId(5), 8));
  EXPECT_FALSE(slot->IsChecked(PartId(5), 9));
  EXPECT_FALSE(slot->IsChecked(PartId(6), 1));
  Write(9, 2, 'b');
  EXPECT_EQ(Find(10, 4), slot);
  EXPECT_EQ(At(slot, 10), 'b');
  EXPECT_EQ(At(slot, 11), 'a');
  EXPECT_FALSE(slot->IsChecked(PartId(5), 8));
}

// Rule 18.
TEST_F(SlotCacheTest, AWriteDoesNotLandUnderALease) {
  const SlotRef slot = Add(10, 4, 'a');
  const Leases lease = Lease(slot);
  Write(10, 1, 'b');
  EXPECT_EQ(At(slot, 10), 'a');
  EXPECT_EQ(Find(10, 1), nullptr);
}

TEST_F(SlotCacheTest, AWriteUnderALoadForgetsTheSlot) {
  const SlotRef slot = cache_.Load(kOwner, PageIndex(10), 4);
  Write(11, 1, 'b');
  EXPECT_EQ(Find(10, 4), nullptr);
  cache_.Loaded(slot, true);
  EXPECT_EQ(Find(10, 4), nullptr);
}

// Rule 5.
TEST_F(SlotCacheTest, TheEndOfASessionForgetsWhatItLoaded) {
  Add(10, 4, 'a', SessionId(1));
  const SlotRef other = Add(20, 4, 'b', SessionId(2));
  cache_.ForgetAllOf(SessionId(1));
  EXPECT_EQ(Find(10, 4), nullptr);
  EXPECT_EQ(Find(20, 4), other);
}

// Also what another session has written there since.
TEST_F(SlotCacheTest, TheEndOfASessionForgetsWhatWasWritten) {
  Add(10, 4, 'a', SessionId(1));
  Write(10, 1, 'b');
  cache_.ForgetAllOf(SessionId(2));
  EXPECT_EQ(Find(10, 4), nullptr);
}

TEST_F(SlotCacheTest, AWriteStartsANewGeneration) {
  const SlotRef slot = Add(10, 4);
  const std::int64_t generation = slot->generation();
  const ArenaBlock& block = slot->block();
  Write(12, 1, 'b');
  EXPECT_GT(slot->generation(), generation);
  EXPECT_FALSE(
      HasArenaGeneration(block.granule->data(), block.offset_bytes(), kPageBytes, generation));
  EXPECT_TRUE(HasArenaGeneration(block.granule->data(), block.offset_bytes(), 4 * kPageBytes,
                                 slot->generation()));
  EXPECT_EQ(Find(10, 4), slot);
}

TEST_F(SlotCacheTest, WhatCanNeverHaveRoomEvictsNothing) {
  SlotCache small(std::int64_t{1} << 20, ReplacementPolicy::kLru);
  small.Loaded(small.Load(kOwner, PageIndex(1), 1), true);
  ASSERT_LT(small.arena().block_pages_max(), kSlotPagesMax);
  EXPECT_EQ(small.Load(kOwner, PageIndex(100), kSlotPagesMax), nullptr);
  EXPECT_NE(small.Find(PageIndex(1), 1), nullptr);
}

TEST_F(SlotCacheTest, EachUseOfMemoryHasAnotherGeneration) {
  const SlotRef slot = Add(10, 4);
  const std::int64_t generation = slot->generation();
  const ArenaBlock block = slot->block();
  EXPECT_TRUE(
      HasArenaGeneration(block.granule->data(), block.offset_bytes(), 4 * kPageBytes, generation));
  cache_.Forget(slot);
  Fill();
  EXPECT_FALSE(
      HasArenaGeneration(block.granule->data(), block.offset_bytes(), 4 * kPageBytes, generation));
}

TEST(ClusterAlignedCacheTest, UpdatedSlotsHaveAShareOfTheirOwn) {
  const std::string page(kPageBytes, 'u');
  const auto bytes = std::as_bytes(std::span(page.data(), page.size()));
  for (const auto policy : {ReplacementPolicy::kClusterAligned, ReplacementPolicy::kLru}) {
    SlotCache cache(kCacheBytes, policy);
    const auto add = [&](std::int64_t first) {
      cache.Loaded(cache.Load(kOwner, PageIndex(first), 1), true);
    };
    add(10);
    cache.OnWrite(PageIndex(10), bytes);
    for (std::int64_t i = 0; i < 2000; ++i) add(1000 + i);
    EXPECT_EQ(cache.Find(PageIndex(10), 1) != nullptr,
              policy == ReplacementPolicy::kClusterAligned);
  }
}

TEST(ClusterAlignedCacheTest, TheShareOfUpdatedSlotsIsBounded) {
  const std::string page(kPageBytes, 'u');
  const auto bytes = std::as_bytes(std::span(page.data(), page.size()));
  SlotCache cache(kCacheBytes, ReplacementPolicy::kClusterAligned);
  for (std::int64_t i = 0; i < 2000; ++i) {
    cache.Loaded(cache.Load(kOwner, PageIndex(1000 + i), 1), true);
    cache.OnWrite(PageIndex(1000 + i), bytes);
  }
  for (std::int64_t i = 0; i < 2000; ++i) {
    cache.Loaded(cache.Load(kOwner, PageIndex(5000 + i), 1), true);
  }
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < 2000; ++i) {
    kept += cache.Find(PageIndex(1000 + i), 1) != nullptr ? 1 : 0;
  }
  const auto share_pages = static_cast<std::int64_t>(kUpdatedShare * kCacheBytes / kPageBytes);
  EXPECT_EQ(kept, share_pages);
}

}  // namespace
}  // namespace cairn::kv
