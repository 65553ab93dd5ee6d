#include "compute-node/retrieval/best_first.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "tests/tools/seed.h"

namespace cairn::compute {
namespace {

std::vector<std::size_t> TakeAll(std::span<const float> scores) {
  BestFirst best(scores);
  std::vector<std::size_t> taken;
  while (!best.empty()) taken.push_back(best.Take());
  return taken;
}

std::vector<std::size_t> Sorted(std::span<const float> scores) {
  std::vector<std::size_t> indices(scores.size());
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  std::stable_sort(indices.begin(), indices.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  return indices;
}

TEST(BestFirstTest, GivesAllInTheOrderOfAStableSort) {
  std::mt19937_64 random(test::TestSeed());
  std::normal_distribution<float> normal(0, 3);
  for (const std::size_t count : {0U, 1U, 5U, 191U, 192U, 193U, 1000U, 5000U}) {
    std::vector<float> scores;
    for (std::size_t i = 0; i < count; ++i) scores.push_back(normal(random));
    EXPECT_EQ(TakeAll(scores), Sorted(scores)) << count;
    // Many that are equal, and zeros of both signs.
    for (float& score : scores) score = std::trunc(score);
    EXPECT_EQ(TakeAll(scores), Sorted(scores)) << count << " with equal ones";
  }
}

TEST(BestFirstTest, TakesInfinitiesAndDescendingScores) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> scores(700, -kInfinity);
  scores[600] = kInfinity;
  scores[3] = -1;
  EXPECT_EQ(TakeAll(scores), Sorted(scores));
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = -static_cast<float>(i);
  EXPECT_EQ(TakeAll(scores), Sorted(scores));
  std::reverse(scores.begin(), scores.end());
  EXPECT_EQ(TakeAll(scores), Sorted(scores));
}

}  // namespace
}  // namespace cairn::compute
