#include "compute-node/service/memory_budget.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/says.h"

namespace cairn::compute {
namespace {

TEST(MemoryBudgetTest, ClaimsAreGivenBackWhenTheyShrinkMoveAndDie) {
  MemoryBudget budget(800);
  {
    MemoryClaim first(budget);
    ASSERT_TRUE(first.Resize(100).ok());
    ASSERT_TRUE(first.Grow(50).ok());
    MemoryClaim second = std::move(first);
    EXPECT_EQ(second.bytes(), 150);
    EXPECT_EQ(budget.claimed_bytes(), 150);
    ASSERT_TRUE(second.Resize(20).ok());
    EXPECT_EQ(budget.claimed_bytes(), 20);
    MemoryClaim third(budget);
    ASSERT_TRUE(third.Resize(30).ok());
    third = std::move(second);
    EXPECT_EQ(budget.claimed_bytes(), 20);
  }
  EXPECT_EQ(budget.claimed_bytes(), 0);
}

TEST(MemoryBudgetTest, WhatHasNoRoomIsRefusedAndChangesNothing) {
  MemoryBudget budget(800);
  MemoryClaim large(budget);
  ASSERT_TRUE(large.Resize(500).ok());
  MemoryClaim other(budget);
  ASSERT_TRUE(other.Resize(90).ok());
  const absl::Status full = other.Resize(101);
  EXPECT_EQ(full.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(test::Says(full, "try again")) << full;
  EXPECT_EQ(other.bytes(), 90);
  EXPECT_EQ(budget.claimed_bytes(), 590);
  // Larger than one may be, whoever else is there.
  MemoryClaim huge(budget);
  EXPECT_EQ(huge.Resize(601).code(), absl::StatusCode::kOutOfRange);
  large.Release();
  EXPECT_TRUE(other.Resize(101).ok());
}

TEST(MemoryBudgetTest, TheLastQuarterIsForSmallClaims) {
  MemoryBudget budget(800);
  MemoryClaim large(budget);
  ASSERT_TRUE(large.Resize(600).ok());
  std::vector<MemoryClaim> small;
  for (int i = 0; i < 2; ++i) {
    small.emplace_back(budget);
    EXPECT_TRUE(small.back().Resize(100).ok());
  }
  MemoryClaim beyond(budget);
  EXPECT_EQ(beyond.Resize(1).code(), absl::StatusCode::kUnavailable);
  // What has too much already may always have less.
  EXPECT_TRUE(large.Resize(590).ok());
  EXPECT_TRUE(beyond.Resize(10).ok());
}

TEST(MemoryBudgetTest, TheBeginningOfARequestIsFree) {
  EXPECT_EQ(RequestMemoryBytes(kRequestFreeBytes), 0);
  EXPECT_EQ(RequestMemoryBytes(kRequestFreeBytes + 10), 10 * kMemoryPerRequestByte);
  const MemoryBudget budget(kRequestMemoryBytesDefault);
  EXPECT_LE(RequestMemoryBytes(budget.request_bytes_max()), budget.claim_bytes_max());
  EXPECT_GT(RequestMemoryBytes(budget.request_bytes_max() + 1), budget.claim_bytes_max());
}

}  // namespace
}  // namespace cairn::compute
