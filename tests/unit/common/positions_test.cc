#include "common/kv/positions.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/rng.h"
#include "tests/tools/seed.h"

namespace cairn {
namespace {

using Runs = Positions::Runs;

std::vector<std::int64_t> ToVector(const Positions& positions) {
  std::vector<std::int64_t> out;
  positions.ForEach([&](std::int64_t position) { out.push_back(position); });
  return out;
}

TEST(PositionsTest, NeighboursBecomeOneRun) {
  Positions positions = Positions::Range(4, 3);
  positions.Append(7);
  positions.Append(9);
  positions.AppendAll(Positions::Range(10, 2));
  EXPECT_EQ(positions.runs(), (Runs{{4, 4}, {9, 3}}));
  EXPECT_EQ(positions.count(), 7);
  EXPECT_EQ(positions.first(), 4);
  EXPECT_EQ(positions.last(), 11);
}

TEST(PositionsTest, AnEmptyRangeHoldsNothing) {
  EXPECT_TRUE(Positions::Range(5, 0).empty());
  EXPECT_EQ(Positions::Range(5, 0), Positions());
  EXPECT_EQ(Positions().CountBelow(100), 0);
  EXPECT_TRUE(Positions().Slice(0, 0).empty());
}

TEST(PositionsTest, FromUnsortedSorts) {
  EXPECT_EQ(Positions::FromUnsorted({9, 3, 4, 1}).runs(), (Runs{{1, 1}, {3, 2}, {9, 1}}));
}

TEST(PositionsTest, JoinedHasThoseOfBothAndSharedOnesAreFound) {
  const Positions a = Positions::FromUnsorted({1, 2, 7, 9});
  const Positions b = Positions::FromUnsorted({0, 3, 8, 20});
  EXPECT_EQ(Positions::Joined(a, b), Positions::FromUnsorted({0, 1, 2, 3, 7, 8, 9, 20}));
  EXPECT_EQ(Positions::Joined(b, a).runs().size(), 3U);
  EXPECT_EQ(Positions::Joined(a, {}), a);
  EXPECT_EQ(a.FirstShared(b), std::nullopt);
  EXPECT_EQ(a.FirstShared(Positions::Range(8, 4)), 9);
  EXPECT_EQ(Positions::Range(0, 100).FirstShared(b), 0);
  EXPECT_EQ(b.FirstShared(Positions::Range(4, 100)), 8);
  EXPECT_EQ(Positions().FirstShared(a), std::nullopt);
}

TEST(PositionsTest, RunsThatTouchAreTheSameSetAsOneRun) {
  const Runs touching = {{0, 2}, {2, 3}};
  const auto positions = Positions::FromRuns(touching);
  ASSERT_TRUE(positions.ok()) << positions.status();
  EXPECT_EQ(*positions, Positions::Range(0, 5));
}

TEST(PositionsTest, FromRunsRefusesWhatIsNoAscendingList) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  const std::vector<Runs> refused = {{{0, 0}},
                                     {{0, -1}},
                                     {{-1, 2}},
                                     {{5, 2}, {6, 1}},
                                     {{5, 2}, {1, 1}},
                                     {{5, 1}, {5, 1}},
                                     {{0, kHuge}},
                                     {{kHuge, 1}},
                                     {{kPositionMax, 2}},
                                     {{1, kHuge}},
                                     {{kPositionMax + 1, 1}}};
  for (const Runs& runs : refused) {
    const auto positions = Positions::FromRuns(runs);
    EXPECT_EQ(positions.status().code(), absl::StatusCode::kInvalidArgument)
        << runs.front().start << " " << runs.front().length;
  }
  EXPECT_TRUE(Positions::FromRuns(Runs{{kPositionMax, 1}}).ok());
  EXPECT_TRUE(Positions::FromRuns(Runs{{0, kPositionMax + 1}}).ok());
}

TEST(PositionsTest, AnswersLikeASet) {
  test::Rng rng(test::TestSeed());
  for (int round = 0; round < 200; ++round) {
    std::set<std::int64_t> expected;
    const std::uint64_t count = 1 + rng.Below(60);
    const std::uint64_t range = count + rng.Below(200);
    while (expected.size() < count) expected.insert(static_cast<std::int64_t>(rng.Below(range)));
    const std::vector<std::int64_t> sorted(expected.begin(), expected.end());
    std::vector<std::int64_t> shuffled = sorted;
    for (std::size_t i = shuffled.size(); i > 1; --i) {
      std::swap(shuffled[i - 1], shuffled[static_cast<std::size_t>(rng.Below(i))]);
    }
    const Positions positions = Positions::FromUnsorted(shuffled);

    EXPECT_EQ(ToVector(positions), sorted);
    ASSERT_EQ(positions.count(), static_cast<std::int64_t>(count));
    EXPECT_EQ(*Positions::FromRuns(positions.runs()), positions);
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      ASSERT_EQ(positions.at(static_cast<std::int64_t>(i)), sorted[i]);
    }
    for (std::int64_t limit = -1; limit <= static_cast<std::int64_t>(range) + 1; ++limit) {
      const auto below = std::count_if(sorted.begin(), sorted.end(),
                                       [limit](std::int64_t position) { return position < limit; });
      ASSERT_EQ(positions.CountBelow(limit), below) << "limit " << limit;
      ASSERT_EQ(positions.Contains(limit), expected.count(limit) == 1) << "position " << limit;
    }
    const auto first = static_cast<std::int64_t>(rng.Below(count + 1));
    const auto length =
        static_cast<std::int64_t>(rng.Below(count + 1 - static_cast<std::uint64_t>(first)));
    EXPECT_EQ(ToVector(positions.Slice(first, length)),
              std::vector<std::int64_t>(sorted.begin() + first, sorted.begin() + first + length));
  }
}

TEST(PositionsDeathTest, APositionTwiceIsAProgrammerError) {
  EXPECT_DEATH(Positions::FromUnsorted({3, 3}), "against");
  Positions positions = Positions::Range(0, 5);
  EXPECT_DEATH(positions.Append(4), "against");
  EXPECT_DEATH((void)positions.at(5), "out of range");
  EXPECT_DEATH((void)positions.Slice(3, 3), "first_index");
}

}  // namespace
}  // namespace cairn
