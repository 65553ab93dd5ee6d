// What entries are worth, by weights that a test gives.
#include "compute-node/retrieval/eviction/entry_worth.h"

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "compute-node/retrieval/eviction/attention_profile.h"

namespace cairn::compute {
namespace {

using Fusion = AttentionProfile::Fusion;
using Pooling = AttentionProfile::Pooling;

constexpr std::int64_t kAll = 1000;

// Rows of weights over positions from `first` on.
AttendedEntries Entries(std::int64_t first, std::vector<float> weights) {
  AttendedEntries entries;
  entries.recent_first = first;
  entries.weights = std::move(weights);
  return entries;
}

std::vector<std::int64_t> Range(std::int64_t first, std::int64_t end) {
  std::vector<std::int64_t> positions;
  for (std::int64_t at = first; at < end; ++at) positions.push_back(at);
  return positions;
}

TEST(AttentionProfileTest, WeightsOfTokensAreSummedOrTheHighestCounts) {
  AttentionProfile sum(Fusion::kSum, Pooling::kNo);
  AttentionProfile max(Fusion::kMax, Pooling::kNo);
  for (AttentionProfile* profile : {&sum, &max}) {
    profile->TakeStep(20, Entries(10, {0.5F, 0.25F, 0, 0.125F}));
    profile->TakeStep(21, Entries(10, {0.25F, 0.5F, 0, 0}));
  }
  EXPECT_EQ(sum.Of(Range(10, 14), kAll), (std::vector<float>{0.75F, 0.75F, 0, 0.125F}));
  EXPECT_EQ(max.Of(Range(10, 14), kAll), (std::vector<float>{0.5F, 0.5F, 0, 0.125F}));
  // As it was before the newest token.
  EXPECT_EQ(sum.Of(Range(10, 14), 21), (std::vector<float>{0.5F, 0.25F, 0, 0.125F}));
}

TEST(AttentionProfileTest, AStepThatIsToldAgainCountsOnce) {
  AttentionProfile profile(Fusion::kSum, Pooling::kNo);
  profile.TakeStep(20, Entries(10, {0.5F}));
  profile.TakeStep(21, Entries(10, {1}));
  profile.TakeStep(21, Entries(10, {0.25F}));
  EXPECT_EQ(profile.Of(Range(10, 11), kAll), (std::vector<float>{0.75F}));
}

TEST(AttentionProfileTest, OldTokensLeave) {
  AttentionProfile profile(Fusion::kSum, Pooling::kNo);
  profile.TakeStep(100, Entries(10, {0.5F}));
  for (std::int64_t i = 1; i < kProfileTokens; ++i) profile.TakeStep(100 + i, Entries(11, {0.25F}));
  EXPECT_EQ(profile.Of(Range(10, 11), kAll), (std::vector<float>{0.5F}));
  profile.TakeStep(100 + kProfileTokens, Entries(11, {0.25F}));
  EXPECT_EQ(profile.Of(Range(10, 11), kAll), (std::vector<float>{0}));
}

TEST(AttentionProfileTest, WhatIsPooledIsWorthAsMuchAsItsNeighbourhood) {
  AttentionProfile profile(Fusion::kSum, Pooling::kYes);
  profile.TakeStep(200, Entries(100, {0, 0, 0, 0, 1, 0, 0, 0, 0}));
  const std::vector<float> worths = profile.Of(Range(100, 109), kAll);
  for (std::int64_t i = 0; i < 9; ++i) {
    const bool near = std::abs(i - 4) <= kPooledNeighbours;
    EXPECT_EQ(worths[static_cast<std::size_t>(i)] > 0, near) << i;
  }
}

// Of a prompt every weight counts, not only the best of a token.
TEST(AttentionProfileTest, APromptIsFusedWhole) {
  AttentionProfile profile(Fusion::kSum, Pooling::kNo);
  const std::vector<float> row(96, 0.125F);  // more than are kept of a token
  std::vector<float> rows = row;
  rows.insert(rows.end(), row.begin(), row.end());
  const std::vector<float> worths = profile.TakePrompt(300, 2, Entries(50, rows));
  ASSERT_EQ(worths.size(), row.size());
  for (const float worth : worths) EXPECT_EQ(worth, 0.25F);
  EXPECT_EQ(std::ssize(profile.Known(kAll)), kProfileEntries);
  EXPECT_LE(profile.memory_bytes(), 16 * 1024);
}

TEST(AccumulatedWorthTest, EverythingCountsForEver) {
  AccumulatedWorth worth;
  worth.TakePrompt(8, 2, Entries(4, {0.5F, 0.25F, 0.5F, 0.5F}));
  for (std::int64_t i = 0; i < 2 * kProfileTokens; ++i) worth.TakeStep(10 + i, Entries(4, {1, 0}));
  EXPECT_EQ(worth.Of(Range(4, 6), kAll), (std::vector<float>{65, 0.75F}));
  EXPECT_EQ(worth.Of(Range(4, 6), 10 + 2 * kProfileTokens - 1), (std::vector<float>{64, 0.75F}));
  worth.TakeStep(10 + 2 * kProfileTokens - 1, Entries(4, {0, 8}));
  EXPECT_EQ(worth.Of(Range(4, 6), kAll), (std::vector<float>{64, 8.75F}));
}

TEST(AccumulatedWorthTest, ForgetsWhatIsNotRetained) {
  AccumulatedWorth worth;
  worth.TakePrompt(8, 1, Entries(4, {1, 2, 3, 4}));
  const std::vector<std::int64_t> retained = {5};
  worth.Retain(retained, 7);
  EXPECT_EQ(worth.Of(Range(4, 8), kAll), (std::vector<float>{0, 2, 0, 4}));
}

TEST(VotedWorthTest, WhatWasDecodedIsWorthMoreTheNewerItIs) {
  VotedWorth worth;
  worth.TakePrompt(40, 2, Entries(32, std::vector<float>(20, 1.0F)));
  worth.TakeStep(42, Entries(32, {1000}));
  const std::vector<float> worths = worth.Of({{35, 42, 43}}, kAll);
  EXPECT_LT(worths[0], worths[1]);
  EXPECT_LT(worths[1], worths[2]);
}

TEST(EntryWorthTest, WeightsThatAreNoneCountAsNothing) {
  const float nan = std::nanf("");
  const float infinity = std::numeric_limits<float>::infinity();
  AttentionProfile profile(Fusion::kSum, Pooling::kNo);
  AccumulatedWorth accumulated;
  VotedWorth voted;
  for (EntryWorth* worth :
       {static_cast<EntryWorth*>(&profile), static_cast<EntryWorth*>(&accumulated),
        static_cast<EntryWorth*>(&voted)}) {
    worth->TakePrompt(20, 2, Entries(10, {nan, 1, infinity, -1, nan, 1, 1, 1}));
    worth->TakeStep(22, Entries(10, {nan, 0.5F, -infinity, infinity}));
    for (const float each : worth->Of(Range(10, 14), kAll)) {
      EXPECT_TRUE(std::isfinite(each) && each >= 0) << each;
    }
    std::vector<std::int64_t> numbers;
    worth->Save(numbers);
    EXPECT_TRUE(worth->Restore(numbers));
  }
}

// A step of which some layers were computed before it failed, and a checkpoint without it.
TEST(EntryWorthTest, AStepThatIsNotStoredIsForgotten) {
  AttentionProfile profile(Fusion::kSum, Pooling::kNo);
  AccumulatedWorth accumulated;
  AttentionProfile profile_again(Fusion::kSum, Pooling::kNo);
  AccumulatedWorth accumulated_again;
  const auto check = [](EntryWorth& worth, EntryWorth& reopened) {
    worth.TakeStep(20, Entries(10, {1, 2}));
    worth.TakeStep(21, Entries(10, {4, 8}));
    std::vector<std::int64_t> numbers;
    worth.Save(numbers);
    ASSERT_TRUE(reopened.Restore(numbers));
    reopened.Truncate(21);
    for (EntryWorth* each : {&worth, &reopened}) {
      each->TakeStep(21, Entries(10, {16, 32}));
      EXPECT_EQ(each->Of(Range(10, 12), kAll), (std::vector<float>{17, 34}));
    }
  };
  check(profile, profile_again);
  check(accumulated, accumulated_again);
}

// Whatever numbers a store gives, and the right ones.
TEST(EntryWorthTest, StatesComeBackOrAreRefused) {
  const auto check = [](EntryWorth& worth, EntryWorth& other) {
    std::vector<float> rows(180, 0.25F);  // two tokens
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] += static_cast<float>(i % 7);
    worth.TakePrompt(98, 2, Entries(10, rows));
    for (std::int64_t i = 0; i < 40; ++i) {
      worth.TakeStep(100 + i, Entries(20, {0.5F, 0, static_cast<float>(i)}));
    }
    std::vector<std::int64_t> numbers;
    worth.Save(numbers);
    EXPECT_LE(std::ssize(numbers), worth.NumbersMax(140));
    ASSERT_TRUE(other.Restore(numbers));
    EXPECT_EQ(other.Of(Range(0, 150), kAll), worth.Of(Range(0, 150), kAll));
    std::vector<std::int64_t> again;
    other.Save(again);
    EXPECT_EQ(again, numbers);
    std::vector<std::int64_t> wrong = numbers;
    wrong.back() = PackWeighed({-1, 1});
    EXPECT_FALSE(other.Restore(wrong));
    wrong.back() = PackWeighed({900, -1});
    EXPECT_FALSE(other.Restore(wrong));
    wrong.back() = PackWeighed({900, std::numeric_limits<float>::quiet_NaN()});
    EXPECT_FALSE(other.Restore(wrong));
    wrong.push_back(numbers.back());
    EXPECT_FALSE(other.Restore(wrong));
  };
  for (const Fusion fusion : {Fusion::kSum, Fusion::kMax}) {
    AttentionProfile profile(fusion, Pooling::kYes);
    AttentionProfile other(fusion, Pooling::kYes);
    check(profile, other);
    EXPECT_FALSE(other.Restore(std::vector<std::int64_t>{5, 3}));
    EXPECT_FALSE(other.Restore(std::vector<std::int64_t>{-5, 0}));
    EXPECT_FALSE(other.Restore(std::vector<std::int64_t>{5, 0, 5, 0}));
  }
  AccumulatedWorth accumulated;
  AccumulatedWorth same_accumulated;
  check(accumulated, same_accumulated);
  VotedWorth voted;
  VotedWorth same_voted;
  check(voted, same_voted);
  EXPECT_FALSE(voted.Restore({}));
}

}  // namespace
}  // namespace cairn::compute
