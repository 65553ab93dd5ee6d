#include "compute-node/session/foreseen_queries.h"

#include <cmath>

#include <gtest/gtest.h>

namespace cairn::compute {
namespace {

// Two KV heads of two query heads of two numbers.
constexpr std::int64_t kHeadDim = 2;
constexpr std::int64_t kGroupSize = 2;

std::vector<float> Numbers(std::span<const float> span) { return {span.begin(), span.end()}; }

// Of length 1, so far turned from the first axis.
std::vector<float> Turned(double cosine) {
  return {static_cast<float>(cosine), static_cast<float>(std::sqrt(1 - cosine * cosine))};
}

TEST(ForeseenQueriesTest, WhatIsNearStays) {
  const std::vector<float> foreseen{1, 0, 0, 0, 0, 3, 0, 0};
  ForeseenQueries queries(kHeadDim, kGroupSize);
  queries.Set(foreseen);
  const std::vector<float> turned = Turned(kForeseenCosineMin + 0.01);
  // How long they are says nothing of what they rank first.
  EXPECT_FALSE(queries.Correct(
      std::vector<float>{5 * turned[0], 5 * turned[1], 0, 0, 0, 0, turned[1] / 9, turned[0] / 9}));
  EXPECT_EQ(Numbers(queries.queries()), foreseen);
}

TEST(ForeseenQueriesTest, OnlyHeadsThatTurnedOutOtherwiseAreReplaced) {
  const std::vector<float> turned = Turned(kForeseenCosineMin - 0.01);
  ForeseenQueries queries(kHeadDim, kGroupSize);
  queries.Set(std::vector<float>{1, 0, 0, 0, 0, 3, 0, 0});
  EXPECT_TRUE(queries.Correct(std::vector<float>{1, 0.1F, 0, 0, turned[1], turned[0], 0, 0}));
  EXPECT_EQ(Numbers(queries.queries()),
            (std::vector<float>{1, 0, 0, 0, turned[1], turned[0], 0, 0}));
  EXPECT_TRUE(queries.Correct(std::vector<float>{-1, 0, 0, 0, turned[1], turned[0], 0, 0}));
  EXPECT_EQ(Numbers(queries.queries()),
            (std::vector<float>{-1, 0, 0, 0, turned[1], turned[0], 0, 0}));
}

TEST(ForeseenQueriesTest, SumsOfAGroupAreCompared) {
  const std::vector<float> foreseen{3, 1, 3, -1, 1, 0, 1, 0};
  ForeseenQueries queries(kHeadDim, kGroupSize);
  queries.Set(foreseen);
  // Each query of the first head is another, and their sum is the same.
  EXPECT_FALSE(queries.Correct(std::vector<float>{3, -9, 3, 9, 1, 0, 1, 0}));
  EXPECT_EQ(Numbers(queries.queries()), foreseen);
}

TEST(ForeseenQueriesTest, NothingIsNearNoNumbers) {
  ForeseenQueries queries(kHeadDim, kGroupSize);
  queries.Set(std::vector<float>(8, 1.0F));
  EXPECT_TRUE(queries.Correct(std::vector<float>(8, std::nanf(""))));
}

}  // namespace
}  // namespace cairn::compute
