// What a pool table says of ends, room and pages: rules 6 and 15 of docs/kv-node.md without an
// engine. Entries have 512 bytes, eight to a page.
#include "kv-node/engine/space/pool_table.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "kv-node/engine/io/page_io.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kEntryBytes = 512;
constexpr LayerHead kOwner{3, 1};

class PoolTableTest : public ::testing::Test {
 protected:
  ExtentRef MakePool(std::int64_t page_count) {
    const auto first = map_->Allocate(page_count);
    EXPECT_TRUE(first.ok());
    return std::make_shared<Extent>(map_, ExtentKind::kPool, *first, page_count, false);
  }
  Part MakePart(ExtentRef pool, Direction direction, std::int64_t count) {
    Part part;
    part.id = PartId(next_id_++);
    part.SetExtent(std::move(pool));
    part.direction = direction;
    part.positions = Positions::Range(0, count);
    return part;
  }
  Part Add(const ExtentRef& pool, Direction direction, std::int64_t count,
           LayerHead owner = kOwner) {
    Part part = MakePart(pool, direction, count);
    table_->Add(owner, kEntryBytes, part);
    return part;
  }
  std::optional<PoolTable::FreeEnd> Find(std::int64_t count, LayerHead owner = kOwner,
                                         const std::vector<PoolTable::Place>& preferred = {}) {
    return table_->FindEnd(owner, count * kEntryBytes, preferred, check_);
  }
  static std::vector<PoolTable::Place> In(const ExtentRef& pool) {
    return {{pool->first(), std::nullopt}};
  }
  Part Bound(const StoredPart& row) { return {row, table_->Hold(row)}; }
  // The rows cease to name it, and a checkpoint commits that.
  void Remove(Part part) {
    table_->Drop(part);
    part = Part();
    table_->TakeChanges();
  }

  const std::shared_ptr<FreeMap> map_ = std::make_shared<FreeMap>(1000, 2);
  std::set<PageIndex> writing_;
  const PoolTable::WriteCheck check_ = [this](PageIndex page) { return writing_.contains(page); };
  std::int64_t next_id_ = 1;
  const std::shared_ptr<PoolTable> table_ = std::make_shared<PoolTable>(map_);
};

TEST_F(PoolTableTest, RoomEndsAtTheOtherPart) {
  const ExtentRef pool = MakePool(2);
  Part low = Add(pool, Direction::kUp, 3);
  EXPECT_EQ(table_->RoomBytes(low), pool->size_bytes());
  Part high = Add(pool, Direction::kDown, 5);
  EXPECT_EQ(table_->RoomBytes(low), pool->size_bytes() - 5 * kEntryBytes);
  low.positions = Positions::Range(0, 7);
  table_->NoteGrowth(kEntryBytes, low);
  EXPECT_EQ(table_->RoomBytes(high), pool->size_bytes() - 7 * kEntryBytes);
}

TEST_F(PoolTableTest, AnEndIsInUseAsLongAsSomethingHoldsThePool) {
  ExtentRef pool = MakePool(1);
  const StoredPart low = Add(pool, Direction::kUp, 2);
  Part high = Add(pool, Direction::kDown, 3);
  pool = nullptr;
  auto read = std::make_unique<Part>(high);  // a read in flight
  table_->Drop(high);
  high = Part();
  EXPECT_FALSE(Find(1)) << "dropped, and no checkpoint has been taken";
  PoolTable::Changes changes = table_->TakeChanges();
  EXPECT_FALSE(Find(1)) << "the checkpoint is in progress";
  changes = PoolTable::Changes();
  EXPECT_FALSE(Find(1)) << "the read is in flight";
  EXPECT_EQ(table_->RoomBytes(Bound(low)), kPageBytes - 3 * kEntryBytes);
  read.reset();
  const auto end = Find(1);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->extent->first(), low.first_page);
  EXPECT_EQ(end->direction, Direction::kDown);
  EXPECT_EQ(table_->RoomBytes(Bound(low)), kPageBytes);
}

TEST_F(PoolTableTest, RoomCountsTheLongestThatAPartWas) {
  const ExtentRef pool = MakePool(1);
  const Part low = Add(pool, Direction::kUp, 1);
  Part high = Add(pool, Direction::kDown, 2);
  const Part then = high;  // a read began here
  high.positions = Positions::Range(0, 4);
  table_->NoteGrowth(kEntryBytes, high);
  table_->Drop(high);
  EXPECT_EQ(table_->RoomBytes(low), pool->size_bytes() - 4 * kEntryBytes);
}

TEST_F(PoolTableTest, PreferredPoolsComeFirstThenTheNewest) {
  const ExtentRef first = MakePool(1);
  const ExtentRef second = MakePool(1);
  const ExtentRef third = MakePool(1);
  std::vector<Part> parts = {Add(first, Direction::kUp, 2), Add(second, Direction::kUp, 2),
                             Add(third, Direction::kUp, 7)};
  EXPECT_EQ(Find(1)->extent, third);
  EXPECT_EQ(Find(2)->extent, second) << "the third has no room for it";
  EXPECT_EQ(Find(2, kOwner, In(first))->extent, first);
  EXPECT_EQ(Find(7, kOwner, In(first)), std::nullopt);
  parts.push_back(Add(second, Direction::kDown, 2));
  EXPECT_EQ(Find(2)->extent, first) << "the second is taken on both ends";
}

TEST_F(PoolTableTest, AnEndIsGivenToTheSameLayerAndHeadOnly) {
  const ExtentRef pool = MakePool(1);
  const Part part = Add(pool, Direction::kUp, 2);
  EXPECT_FALSE(Find(1, {3, 0}));
  EXPECT_FALSE(Find(1, {2, 1}));
  EXPECT_FALSE(Find(1, {3, 0}, In(pool)));
  EXPECT_TRUE(Find(1));
}

TEST_F(PoolTableTest, SearchEndsAfterTheNewestPools) {
  std::vector<Part> parts = {Add(MakePool(1), Direction::kUp, 1)};
  for (int i = 0; i < kFreeEndTriesMax; ++i) parts.push_back(Add(MakePool(1), Direction::kUp, 6));
  EXPECT_FALSE(Find(5));
  EXPECT_TRUE(Find(2));
}

TEST_F(PoolTableTest, PagesThatAreWrittenOrHeldMustWait) {
  const ExtentRef pool = MakePool(2);
  const Part low = Add(pool, Direction::kUp, 2);
  const PageIndex first = pool->first();
  const PageIndex second(first.value() + 1);
  writing_ = {first};
  EXPECT_TRUE(table_->IsBusy(low, kEntryBytes, 1, check_));
  EXPECT_TRUE(Find(8)) << "it goes to the other page";
  EXPECT_FALSE(Find(9)) << "it would share the page that is being written";
  writing_ = {second};
  EXPECT_FALSE(table_->IsBusy(low, kEntryBytes, 6, check_));
  EXPECT_TRUE(table_->IsBusy(low, kEntryBytes, 7, check_));
  EXPECT_FALSE(Find(1));
  writing_ = {};
  std::shared_ptr<void> hold = table_->HoldForPlacing(pool);
  EXPECT_TRUE(table_->IsBusy(low, kEntryBytes, 1, check_));
  EXPECT_FALSE(Find(1));
  hold.reset();
  EXPECT_FALSE(table_->IsBusy(low, kEntryBytes, 1, check_));
  EXPECT_TRUE(Find(1));
}

TEST_F(PoolTableTest, PagesWithNamedBytesAreReadAndBothPartsChecked) {
  const StoreId store{};
  const ExtentRef pool = MakePool(2);
  const PageIndex first = pool->first();
  const PageIndex second(first.value() + 1);
  auto image = std::make_shared<AlignedBuffer>(2 * kPageBytes);
  for (std::int64_t i = 0; i < image->size_bytes(); ++i) {
    image->data()[i] = static_cast<std::byte>(i * 7);
  }
  Part low = MakePart(pool, Direction::kUp, 3);
  Part high = MakePart(pool, Direction::kDown, 10);  // two entries in the first page
  SetCrcs(store, low, kEntryBytes, 0, 3, *image, 0);
  SetCrcs(store, high, kEntryBytes, 0, 10, *image, 0);
  table_->Add(kOwner, kEntryBytes, low);
  EXPECT_TRUE(table_->PagesToCheck(MakePart(pool, Direction::kDown, 0), kEntryBytes, 8).empty());
  table_->Add(kOwner, kEntryBytes, high);
  EXPECT_EQ(table_->PagesToCheck(low, kEntryBytes, 1), std::vector{first});
  EXPECT_EQ(table_->PagesToCheck(high, kEntryBytes, 1), std::vector{first});

  const auto intact = [&](const Part& part) {
    const PageSet pages({first, second}, image);
    return table_->AreIntact(store, part, kEntryBytes, 1, pages);
  };
  EXPECT_TRUE(intact(low));
  EXPECT_TRUE(intact(high));
  image->data()[4 * kEntryBytes] ^= std::byte{1};  // between the parts: nobody's
  EXPECT_TRUE(intact(low));
  for (const std::int64_t at : {std::int64_t{5}, kPageBytes - 5}) {  // the low part's, the high's
    image->data()[at] ^= std::byte{1};
    EXPECT_FALSE(intact(low));
    EXPECT_FALSE(intact(high));
    image->data()[at] ^= std::byte{1};
  }
  PageSet failed({first, second}, image);
  failed.MarkFailed(first);
  EXPECT_FALSE(table_->AreIntact(store, low, kEntryBytes, 1, failed));
}

// Rule 6. The rows have dropped what lies in the second page, and a commit may still name it.
TEST_F(PoolTableTest, PagesWithDroppedBytesAreReadToo) {
  const ExtentRef pool = MakePool(2);
  const Part low = Add(pool, Direction::kUp, 8);
  const Part high = Add(pool, Direction::kDown, 2);
  table_->Drop(high);
  const std::vector second{PageIndex(pool->first().value() + 1)};
  EXPECT_EQ(table_->PagesToCheck(low, kEntryBytes, 1), second);
}

TEST_F(PoolTableTest, ADamagedPoolTakesNoNewPart) {
  const ExtentRef pool = MakePool(1);
  const Part low = Add(pool, Direction::kUp, 2);
  table_->NoteDamage(*pool);
  EXPECT_FALSE(Find(1));
  EXPECT_FALSE(Find(1, kOwner, In(pool)));
}

TEST_F(PoolTableTest, ChangesNameWholePoolsOnce) {
  const ExtentRef pool = MakePool(1);
  Part low = Add(pool, Direction::kUp, 2);
  PoolTable::Changes changes = table_->TakeChanges();
  EXPECT_EQ(changes.named, std::vector{pool});
  Part high = Add(pool, Direction::kDown, 2);
  changes = table_->TakeChanges();
  EXPECT_TRUE(changes.named.empty());
  table_->Drop(low);
  changes = table_->TakeChanges();
  EXPECT_TRUE(changes.released.empty());
  table_->Drop(high);
  changes = table_->TakeChanges();
  EXPECT_EQ(changes.released, std::vector{pool});
  EXPECT_EQ(changes.dropped.size(), 1U);
  EXPECT_EQ(table_->pool_count(), 0);
}

TEST_F(PoolTableTest, APoolThatCameAndWentBetweenTwoCutsIsInNoRecord) {
  Part low = Add(MakePool(1), Direction::kUp, 2);
  table_->Drop(low);
  const PoolTable::Changes changes = table_->TakeChanges();
  EXPECT_TRUE(changes.named.empty());
  EXPECT_TRUE(changes.released.empty());
}

TEST_F(PoolTableTest, RowsWhosePartsOverlapAreDataLoss) {
  const ExtentRef pool = MakePool(1);
  Part low = MakePart(pool, Direction::kUp, 4);
  Part high = MakePart(pool, Direction::kDown, 4);
  EXPECT_TRUE(table_->Adopt(kOwner, kEntryBytes, low).ok());
  EXPECT_TRUE(table_->Adopt(kOwner, kEntryBytes, high).ok());

  const auto adopt_second = [&](const Part& first, const Part& second, LayerHead owner) {
    const std::shared_ptr<PoolTable> table = std::make_shared<PoolTable>(map_);
    EXPECT_TRUE(table->Adopt(kOwner, kEntryBytes, first).ok());
    return table->Adopt(owner, kEntryBytes, second).code();
  };
  EXPECT_EQ(adopt_second(low, MakePart(pool, Direction::kUp, 1), kOwner),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(adopt_second(low, MakePart(pool, Direction::kDown, 5), kOwner),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(adopt_second(low, MakePart(pool, Direction::kDown, 1), {3, 0}),
            absl::StatusCode::kDataLoss);
  Part inside = MakePart(pool, Direction::kUp, 1);
  inside.offset_bytes = kEntryBytes;
  EXPECT_EQ(std::make_shared<PoolTable>(map_)->Adopt(kOwner, kEntryBytes, inside).code(),
            absl::StatusCode::kDataLoss);
}

TEST_F(PoolTableTest, AdoptedPoolsHaveFreeEnds) {
  const ExtentRef pool = MakePool(1);
  const StoredPart row = MakePart(pool, Direction::kDown, 4);
  ASSERT_TRUE(table_->Adopt(kOwner, kEntryBytes, row).ok());
  EXPECT_EQ(Find(4)->direction, Direction::kUp);
  EXPECT_FALSE(Find(5));
  EXPECT_TRUE(table_->TakeChanges().named.empty());  // the records have it
  Remove(Bound(row));
  EXPECT_EQ(table_->pool_count(), 0);
}

TEST_F(PoolTableTest, WhatARowNamesIsBoundToOneExtent) {
  const ExtentRef pool = MakePool(1);
  StoredPart row;
  {
    const Part part = Add(pool, Direction::kDown, 4);
    row = part;
  }
  EXPECT_FALSE(Find(5)) << "the row names it, though no Part exists";
  const Part first = Bound(row);
  const Part second = Bound(row);
  EXPECT_EQ(first.extent, pool);
  EXPECT_EQ(second.extent, pool);
  EXPECT_EQ(first.positions, Positions::Range(0, 4));
}

TEST_F(PoolTableTest, PagesOfUncommittedPoolsAreFreedOnceNothingIsInFlight) {
  const std::int64_t used = map_->used_count();
  std::shared_ptr<PoolTable> table = std::make_shared<PoolTable>(map_);
  ExtentRef in_flight = MakePool(1);
  for (const ExtentRef& pool : {in_flight, MakePool(2), MakePool(4), MakePool(8)}) {
    Part part = MakePart(pool, Direction::kUp, 1);
    table->Add(kOwner, kEntryBytes, part);
    if (pool->page_count() == 4) pool->set_committed(true);
    EXPECT_EQ(map_->used_count() - used, 15) << "parts and extents come and go, the table has them";
  }
  table.reset();  // the attachment ends without a checkpoint
  EXPECT_EQ(map_->used_count() - used, 4 + 1) << "what is committed, and what is in flight";
  in_flight.reset();
  EXPECT_EQ(map_->used_count() - used, 4);
}

TEST_F(PoolTableTest, AnExtentThatWasMadeAgainKnowsWhetherItIsCommitted) {
  const std::int64_t used = map_->used_count();
  StoredPart row;
  {
    const Part part = Add(MakePool(1), Direction::kUp, 1);
    row = part;
  }
  Part read = Bound(row);
  table_->Drop(read);
  table_->TakeChanges();  // it came and went: no row has named it, only the read does
  EXPECT_EQ(map_->used_count(), used + 1);
  read = Part();
  EXPECT_EQ(map_->used_count(), used);
}

TEST_F(PoolTableTest, AReleasedPoolIsFreedWithItsLastExtent) {
  const std::int64_t used = map_->used_count();
  Part part = Add(MakePool(1), Direction::kUp, 1);
  PoolTable::Changes changes = table_->TakeChanges();
  changes.named.front()->set_committed(true);
  table_->Drop(part);
  part = Part();
  changes = table_->TakeChanges();
  EXPECT_EQ(table_->pool_count(), 0);
  EXPECT_EQ(map_->used_count(), used + 1) << "the commit is in progress";
  changes.released.front()->set_committed(false);
  changes = PoolTable::Changes();
  EXPECT_EQ(map_->used_count(), used);
}

TEST_F(PoolTableTest, ASealedSegmentsPoolsStayInUse) {
  const std::int64_t used = map_->used_count();
  { const Part part = Add(MakePool(1), Direction::kUp, 1); }
  PoolTable::Changes changes = table_->TakeChanges();
  table_->Clear();
  changes.named.front()->set_committed(true);
  changes = PoolTable::Changes();
  EXPECT_EQ(map_->used_count(), used + 1);
}

TEST_F(PoolTableTest, AFailedCommitOfASealGivesItsPoolsBack) {
  const std::int64_t used = map_->used_count();
  { const Part part = Add(MakePool(1), Direction::kUp, 1); }
  PoolTable::Changes changes = table_->TakeChanges();
  table_->Clear();
  changes = PoolTable::Changes();
  EXPECT_EQ(map_->used_count(), used);
}

TEST_F(PoolTableTest, APoolTakesLittleMemory) {
  const std::shared_ptr<FreeMap> map = std::make_shared<FreeMap>(30000, 2);
  const std::shared_ptr<PoolTable> table = std::make_shared<PoolTable>(map);
  constexpr int kPoolCount = 20000;
  for (int i = 0; i < kPoolCount; ++i) {
    auto pool = std::make_shared<Extent>(map, ExtentKind::kPool, *map->Allocate(1), 1, true);
    for (const Direction direction : {Direction::kUp, Direction::kDown}) {
      Part part = MakePart(pool, direction, 4);
      part.id = PartId(100000 + 2 * i + static_cast<int>(direction));
      part.crcs = {0x12345678};
      table->Add(kOwner, kEntryBytes, part);
    }
  }
  EXPECT_LT(table->memory_bytes(), 34 * kPoolCount);
}

TEST_F(PoolTableTest, AKeptEndIsFoundByNobodyElse) {
  const ExtentRef pool = MakePool(1);
  std::shared_ptr<void> low = table_->Keep(kOwner, pool, Direction::kUp);
  std::shared_ptr<void> high = table_->Keep(kOwner, pool, Direction::kDown);
  EXPECT_EQ(table_->StateOf(pool, Direction::kUp, 2 * kEntryBytes, check_),
            PoolTable::EndState::kFree);
  const Part part = Add(pool, Direction::kUp, 2);
  low.reset();
  EXPECT_EQ(Find(1), std::nullopt);
  EXPECT_EQ(Find(1, kOwner, In(pool)), std::nullopt);
  EXPECT_EQ(table_->StateOf(pool, Direction::kUp, kEntryBytes, check_),
            PoolTable::EndState::kTaken);
  EXPECT_EQ(table_->StateOf(pool, Direction::kDown, 6 * kEntryBytes, check_),
            PoolTable::EndState::kFree);
  EXPECT_EQ(table_->StateOf(pool, Direction::kDown, 7 * kEntryBytes, check_),
            PoolTable::EndState::kTaken);
  writing_ = {pool->first()};
  EXPECT_EQ(table_->StateOf(pool, Direction::kDown, kEntryBytes, check_),
            PoolTable::EndState::kBusy);
  writing_.clear();
  high.reset();
  EXPECT_EQ(Find(1)->extent, pool);
}

TEST_F(PoolTableTest, AKeptPoolWithoutPartsIsForgotten) {
  ExtentRef pool = MakePool(1);
  const std::int64_t used = map_->used_count();
  std::shared_ptr<void> low = table_->Keep(kOwner, pool, Direction::kUp);
  std::shared_ptr<void> high = table_->Keep(kOwner, pool, Direction::kDown);
  std::shared_ptr<void> hold = table_->HoldForPlacing(pool);
  pool.reset();
  low.reset();
  high.reset();
  EXPECT_EQ(table_->pool_count(), 1) << "a placing is about to write to it";
  hold.reset();
  EXPECT_EQ(table_->pool_count(), 0);
  EXPECT_EQ(map_->used_count(), used - 1);
  EXPECT_TRUE(table_->TakeChanges().named.empty());
}

TEST_F(PoolTableTest, TheSeamIsTheBestPlaceBesideAPart) {
  const ExtentRef first = MakePool(1);
  const ExtentRef second = MakePool(2);
  const Part a = Add(first, Direction::kUp, 1);
  const Part b = Add(second, Direction::kUp, 1);
  const auto places = table_->PlacesBeside(b);
  ASSERT_EQ(places.size(), 2U);
  EXPECT_EQ(Find(1, kOwner, places)->extent, first);
  EXPECT_EQ(Find(1, kOwner, places)->direction, Direction::kDown);
  EXPECT_EQ(Find(8, kOwner, places)->extent, second) << "too long for the seam";
  const Part c = Add(second, Direction::kDown, 1);
  EXPECT_EQ(table_->PlacesBeside(c).front().pool.value(), second->first().value() + 2);
  EXPECT_EQ(table_->PlacesBeside(a).size(), 1U) << "nothing lies before it";
}

}  // namespace
}  // namespace cairn::kv
