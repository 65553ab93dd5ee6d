#include "kv-node/engine/fetch/hot_clusters.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace cairn::kv {
namespace {

using std::chrono::milliseconds;

ClusterRef Cluster(std::int64_t id) { return {0, ClusterId(id)}; }

TEST(HotClustersTest, WhatIsFetchedOftenIsHotter) {
  HotClusters hot(2);
  for (int i = 0; i < 3; ++i) hot.Note(0, std::vector<ClusterRef>{Cluster(1), Cluster(2)});
  hot.Note(0, std::vector<ClusterRef>{Cluster(2), Cluster(3)});
  EXPECT_EQ(hot.Of(0, 0), (std::vector<ClusterRef>{Cluster(2), Cluster(1), Cluster(3)}));
  EXPECT_TRUE(hot.Of(1, 0).empty());
}

TEST(HotClustersTest, WhatWasFetchedLongAgoCools) {
  HotClusters hot(1);
  for (int i = 0; i < 4; ++i) hot.Note(0, std::vector<ClusterRef>{Cluster(1)});
  for (int i = 0; i < 32; ++i) hot.Note(0, std::vector<ClusterRef>{Cluster(100 + i)});
  EXPECT_EQ(hot.Of(0, 0).front(), Cluster(131));
  // Those of the last 18 fetches weigh more than all four of the first.
  EXPECT_EQ(hot.Of(0, 0).at(18), Cluster(1));
  // Thousands of fetches: the numbers stay within their range.
  for (int i = 0; i < 10'000; ++i) hot.Note(0, std::vector<ClusterRef>{Cluster(5)});
  hot.Note(0, std::vector<ClusterRef>{Cluster(6)});
  EXPECT_EQ(hot.Of(0, 0).at(0), Cluster(5));
  EXPECT_EQ(hot.Of(0, 0).at(1), Cluster(6));
}

TEST(HotClustersTest, WhatIsSeldomNamedIsLeftOut) {
  HotClusters hot(1);
  hot.Note(0, std::vector<ClusterRef>{Cluster(1), Cluster(2)});
  EXPECT_EQ(hot.Of(0, 1).size(), 2U);
  for (int i = 0; i < 100; ++i) {
    std::vector<ClusterRef> named = {Cluster(2)};
    if (i % 3 == 0) named.push_back(Cluster(3));
    if (i % 10 == 0) named.push_back(Cluster(4));
    hot.Note(0, named);
  }
  EXPECT_EQ(hot.Of(0, 0.25), (std::vector<ClusterRef>{Cluster(2), Cluster(3)}));
  EXPECT_EQ(hot.Of(0, 0.99), (std::vector<ClusterRef>{Cluster(2)}));
}

TEST(HotClustersTest, TheColdestGoSoThatMemoryIsBounded) {
  HotClusters hot(kLayerCountMax);
  const std::int64_t room = kHotClustersMax / kLayerCountMax;
  for (std::int64_t id = 1; id <= room; ++id) {
    for (int i = 0; i < 3; ++i) hot.Note(7, std::vector<ClusterRef>{Cluster(id)});
  }
  for (int i = 0; i < 100; ++i) hot.Note(8, std::vector<ClusterRef>{Cluster(i + 1)});
  hot.Note(7, std::vector<ClusterRef>{Cluster(99)});
  EXPECT_EQ(std::ssize(hot.Of(7, 0)), room);
  EXPECT_EQ(std::ssize(hot.Of(8, 0)), room);
  const auto kept = hot.Of(7, 0);
  EXPECT_NE(std::find(kept.begin(), kept.end(), Cluster(room)), kept.end());
  EXPECT_LT(hot.memory_bytes(), 128 << 10);
  // All equally hot.
  std::vector<ClusterRef> many;
  for (std::int64_t id = 1; id <= kFetchClusterCountMax; ++id) many.push_back(Cluster(id));
  hot.Note(9, many);
  EXPECT_EQ(std::ssize(hot.Of(9, 0)), room);
}

class StageBudgetTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kBandwidth = 1'000'000'000;
  std::int64_t HintAfter(milliseconds passed, std::int64_t read_bytes = 0) {
    now_ += passed;
    read_bytes_ += read_bytes;
    return budget_.OnHint(now_, read_bytes_, kBandwidth);
  }
  static constexpr milliseconds kLayerTimeMax{1000};
  StageBudget budget_{kLayerTimeMax};
  std::chrono::steady_clock::time_point now_{std::chrono::hours(5)};
  std::int64_t read_bytes_ = 0;
};

TEST_F(StageBudgetTest, NothingIsStagedBeforeATimeWasMeasured) {
  EXPECT_EQ(HintAfter(milliseconds(0)), 0);
  EXPECT_EQ(HintAfter(milliseconds(2)), 2'000'000);
}

TEST_F(StageBudgetTest, AnUnknownBandwidthStagesNothing) {
  budget_.OnHint(now_, 0, 0);
  EXPECT_EQ(budget_.OnHint(now_ + milliseconds(10), 0, 0), 0);
}

TEST_F(StageBudgetTest, WhatFetchesReadIsNotIdle) {
  HintAfter(milliseconds(0));
  EXPECT_EQ(HintAfter(milliseconds(2), 500'000), 1'500'000);
  for (int i = 0; i < 200; ++i) HintAfter(milliseconds(2), 3'000'000);
  EXPECT_EQ(HintAfter(milliseconds(2), 3'000'000), 0);
}

TEST_F(StageBudgetTest, ItFollowsTheTimeOfALayer) {
  HintAfter(milliseconds(0));
  for (int i = 0; i < 10; ++i) HintAfter(milliseconds(2));
  const std::int64_t once = HintAfter(milliseconds(10));
  EXPECT_EQ(once, 3'000'000);
  for (int i = 0; i < 200; ++i) HintAfter(milliseconds(10));
  EXPECT_NEAR(static_cast<double>(HintAfter(milliseconds(10))), 10e6, 1000);
}

TEST_F(StageBudgetTest, APauseOfTheSessionDoesNotCount) {
  HintAfter(milliseconds(0));
  HintAfter(milliseconds(2));
  EXPECT_EQ(HintAfter(kLayerTimeMax * 2, 100'000'000), 2'000'000);
  EXPECT_EQ(HintAfter(milliseconds(2)), 2'000'000);
}

}  // namespace
}  // namespace cairn::kv
