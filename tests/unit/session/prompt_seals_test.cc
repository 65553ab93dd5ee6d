#include "compute-node/session/entries/prompt_seals.h"

#include <gtest/gtest.h>

namespace cairn::compute {
namespace {

using Counts = std::vector<std::int64_t>;

TEST(PromptSealsTest, StayInOrderAndAreFoundAndCut) {
  PromptSeals seals;
  EXPECT_TRUE(seals.IsFreshAt(0));
  seals.AddFresh(50);
  for (const std::int64_t at : {90, 70, 70}) seals.Add(at);
  EXPECT_EQ(seals.token_counts(), (Counts{50, 70, 90}));
  EXPECT_TRUE(seals.Has(70));
  EXPECT_FALSE(seals.Has(71));
  EXPECT_EQ(seals.CountTo(69), 1);
  EXPECT_EQ(seals.CountTo(70), 2);
  EXPECT_TRUE(seals.IsFreshAt(50));
  EXPECT_FALSE(seals.IsFreshAt(70));
  EXPECT_EQ(seals.CutAt(70).token_counts(), (Counts{50, 70}));
  EXPECT_TRUE(seals.CutAt(70).IsFreshAt(50));
  EXPECT_TRUE(seals.CutAt(49).empty());
  EXPECT_FALSE(seals.CutAt(49).IsFreshAt(50));
}

TEST(PromptSealsTest, AreReadAsTheyWereWritten) {
  PromptSeals seals;
  seals.AddFresh(5);
  seals.Add(std::int64_t{1} << 40);
  const std::string packed = seals.Pack() + "rest";
  std::string_view in = packed;
  EXPECT_EQ(PromptSeals::Unpack(in), seals);
  EXPECT_EQ(in, "rest");
}

TEST(PromptSealsTest, WhatIsNoneIsToldApart) {
  PromptSeals seals;
  seals.AddFresh(5);
  seals.Add(9);
  const std::string packed = seals.Pack();
  for (std::size_t size = 0; size < packed.size(); ++size) {
    std::string_view in = std::string_view(packed).substr(0, size);
    EXPECT_EQ(PromptSeals::Unpack(in), std::nullopt) << size;
  }
  const auto with = [&packed](std::size_t at, char byte) {
    std::string changed = packed;
    changed[at] = byte;
    std::string_view in = changed;
    return PromptSeals::Unpack(in).has_value();
  };
  EXPECT_TRUE(with(4, 0));    // none is fresh
  EXPECT_FALSE(with(4, 6));   // one that is not there
  EXPECT_FALSE(with(12, 9));  // the same twice
  EXPECT_FALSE(with(12, 0));
  EXPECT_FALSE(with(2, 1));  // too many
}

}  // namespace
}  // namespace cairn::compute
