#include "common/base/check.h"

#include <gtest/gtest.h>

#include "common/base/strong_id.h"

namespace cairn {
namespace {

TEST(CheckTest, WhatHoldsIsEvaluatedOnceAndGoesOn) {
  int evaluated = 0;
  CAIRN_CHECK(++evaluated == 1);
  CAIRN_CHECK_EQ(++evaluated, 2);
  EXPECT_EQ(evaluated, 2);
}

TEST(CheckDeathTest, AFailureSaysWhereAndWhat) {
  EXPECT_DEATH(CAIRN_CHECK(1 > 2), "check_test.cc.*1 > 2");
}

TEST(CheckDeathTest, AComparisonShowsBothValues) {
  const int pages = 17;
  EXPECT_DEATH(CAIRN_CHECK_LE(pages, 16), "pages <= 16.*17 against 16");
}

TEST(CheckDeathTest, StrongIdsCanBeShown) {
  using Id = StrongId<struct IdTag>;
  EXPECT_DEATH(CAIRN_CHECK_EQ(Id(3), Id(4)), "3 against 4");
}

}  // namespace
}  // namespace cairn
