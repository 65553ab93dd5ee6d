#include "compute-node/session/attention/foreseen_queries.h"

#include <cmath>

#include <gtest/gtest.h>

namespace cairn::compute {
namespace {

// Two KV heads of two query heads of two numbers.
constexpr std::int64_t kHeadCount = 2;
constexpr std::int64_t kHeadDim = 2;

std::vector<float> Numbers(std::span<const float> span) { return {span.begin(), span.end()}; }

// Of length 1, so far turned from the first axis.
std::vector<float> Turned(double cosine) {
  return {static_cast<float>(cosine), static_cast<float>(std::sqrt(1 - cosine * cosine))};
}

TEST(ForeseenQueriesTest, WhatIsNearStays) {
  const std::vector<float> foreseen{1, 0, 0, 3};
  ForeseenQueries queries(kHeadCount, kHeadDim);
  queries.Set(foreseen);
  const std::vector<float> turned = Turned(kForeseenCosineMin + 0.01);
  // How long they are says nothing of what they rank first.
  EXPECT_FALSE(queries.Correct(
      std::vector<float>{5 * turned[0], 5 * turned[1], 0, 0, 0, 0, turned[1] / 9, turned[0] / 9}));
  EXPECT_EQ(Numbers(queries.sums()), foreseen);
}

TEST(ForeseenQueriesTest, OnlyHeadsThatTurnedOutOtherwiseAreReplaced) {
  const std::vector<float> turned = Turned(kForeseenCosineMin - 0.01);
  ForeseenQueries queries(kHeadCount, kHeadDim);
  queries.Set(std::vector<float>{1, 0, 0, 3});
  EXPECT_TRUE(queries.Correct(std::vector<float>{1, 0.1F, 0, 0, turned[1], turned[0], 0, 0}));
  EXPECT_EQ(Numbers(queries.sums()), (std::vector<float>{1, 0, turned[1], turned[0]}));
  EXPECT_TRUE(queries.Correct(std::vector<float>{-1, 0, 0, 0, turned[1], turned[0], 0, 0}));
  EXPECT_EQ(Numbers(queries.sums()), (std::vector<float>{-1, 0, turned[1], turned[0]}));
}

TEST(ForeseenQueriesTest, SumsOfAGroupAreCompared) {
  const std::vector<float> foreseen{6, 0, 2, 0};
  ForeseenQueries queries(kHeadCount, kHeadDim);
  queries.Set(foreseen);
  // Neither query of the first head is near, and their sum is the same.
  EXPECT_FALSE(queries.Correct(std::vector<float>{3, -9, 3, 9, 1, 0, 1, 0}));
  EXPECT_EQ(Numbers(queries.sums()), foreseen);
}

TEST(ForeseenQueriesTest, NothingIsNearNoNumbers) {
  ForeseenQueries queries(kHeadCount, kHeadDim);
  queries.Set(std::vector<float>(4, 1.0F));
  EXPECT_TRUE(queries.Correct(std::vector<float>(8, std::nanf(""))));
}

}  // namespace
}  // namespace cairn::compute
