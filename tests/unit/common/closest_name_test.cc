#include "common/base/closest_name.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(ClosestNameTest, ASlipIsRecognised) {
  const std::vector<std::string> known = {"file", "tokens", "kv", "threads"};
  EXPECT_EQ(ClosestName("fiel", known), "file");
  EXPECT_EQ(ClosestName("token", known), "tokens");
  EXPECT_EQ(ClosestName("threds", known), "threads");
}

TEST(ClosestNameTest, WhatIsLikeNothingHasNone) {
  const std::vector<std::string> known = {"file", "help", "kv", "label", "threads"};
  EXPECT_EQ(ClosestName("hi", known), "");
  EXPECT_EQ(ClosestName("", known), "");
  EXPECT_EQ(ClosestName("conversation", known), "");
  EXPECT_EQ(ClosestName("temp", known), "");
  EXPECT_EQ(ClosestName("level", known), "");
  EXPECT_EQ(ClosestName(std::string(300, 'k'), known), "");
}

TEST(ClosestNameTest, TheOnlyNameOfTheSameWordsIsMeant) {
  const std::vector<std::string> options = {"tokens", "file", "repeat-penalty", "presence-penalty"};
  EXPECT_EQ(ClosestName("max-tokens", options), "tokens");
  EXPECT_EQ(ClosestName("max_tokens", options), "tokens");
  EXPECT_EQ(ClosestName("presence", options), "presence-penalty");
  EXPECT_EQ(ClosestName("penalty", options), "");
}

}  // namespace
}  // namespace cairn
