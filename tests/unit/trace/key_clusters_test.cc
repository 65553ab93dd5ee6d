#include "tests/bench/trace/key_clusters.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace cairn::bench {
namespace {

// Keys on a line, two dimensions.
KeyRows Line(const std::vector<float>& places) {
  KeyRows rows{.dim = 2, .values = {}};
  for (const float place : places) {
    rows.values.push_back(place);
    rows.values.push_back(1);
  }
  return rows;
}

std::set<std::vector<std::int64_t>> GroupsOf(const KeyClusters& clusters) {
  std::set<std::vector<std::int64_t>> groups;
  for (const auto& [id, cluster] : clusters.clusters()) groups.insert(cluster.positions);
  return groups;
}

TEST(KeyClustersTest, NeighboursInSpaceShareACluster) {
  const KeyRows keys = Line({0, 100, 0.1F, 100.1F, 0.2F, 100.2F});
  KeyClusters clusters(keys, Order::kCluster, 3, 6);
  EXPECT_EQ(clusters.AddPrompt(0, 6).size(), 2u);
  EXPECT_EQ(GroupsOf(clusters), (std::set<std::vector<std::int64_t>>{{0, 2, 4}, {1, 3, 5}}));
}

TEST(KeyClustersTest, ALaterKeyJoinsTheNearestClusterAndMovesItsCentroid) {
  const KeyRows keys = Line({0, 100, 1, 103});
  KeyClusters clusters(keys, Order::kCluster, 1, 2);
  clusters.AddPrompt(0, 2);
  EXPECT_EQ(clusters.Add(2), 1);
  EXPECT_EQ(clusters.Add(3), 2);
  EXPECT_FLOAT_EQ(clusters.clusters().at(1).centroid[0], 0.5F);
  EXPECT_FLOAT_EQ(clusters.clusters().at(2).centroid[0], 101.5F);
  EXPECT_EQ(clusters.entry_count(), 4);
}

TEST(KeyClustersTest, AClusterOverItsCapBecomesTwoWithNewIds) {
  const KeyRows keys = Line({0, 10, 0.1F, 10.1F, 0.2F});
  KeyClusters clusters(keys, Order::kCluster, 4, 4);
  clusters.AddPrompt(0, 4);
  ASSERT_EQ(clusters.Add(4), 1);
  const auto split = clusters.SplitIfOver(1);
  ASSERT_TRUE(split.has_value());
  EXPECT_EQ(split->child_ids[0], 2);
  EXPECT_EQ(split->child_ids[1], 3);
  EXPECT_EQ(GroupsOf(clusters), (std::set<std::vector<std::int64_t>>{{0, 2, 4}, {1, 3}}));
  EXPECT_EQ(clusters.entry_count(), 5);
  EXPECT_FALSE(clusters.SplitIfOver(2).has_value());
}

TEST(KeyClustersTest, KeysThatAreAllAlikeAreHalved) {
  const KeyRows keys = Line(std::vector<float>(9, 5));
  KeyClusters clusters(keys, Order::kCluster, 2, 4);
  clusters.AddPrompt(0, 9);
  std::int64_t count = 0;
  for (const auto& [id, cluster] : clusters.clusters()) {
    EXPECT_LE(std::ssize(cluster.positions), 4);
    EXPECT_TRUE(std::is_sorted(cluster.positions.begin(), cluster.positions.end()));
    count += std::ssize(cluster.positions);
  }
  EXPECT_EQ(count, 9);
}

TEST(KeyClustersTest, SequenceOrderFillsOneClusterAfterTheOther) {
  const KeyRows keys = Line({0, 100, 0, 100, 0, 100, 0});
  KeyClusters clusters(keys, Order::kSequence, 3, 6);
  EXPECT_EQ(clusters.AddPrompt(0, 4), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(clusters.Add(4), 2);
  EXPECT_EQ(clusters.Add(5), 2);
  EXPECT_EQ(clusters.Add(6), 3);
  EXPECT_EQ(GroupsOf(clusters), (std::set<std::vector<std::int64_t>>{{0, 1, 2}, {3, 4, 5}, {6}}));
}

TEST(KeyClustersTest, SelectTakesTheBestForAnyQueryUntilThereAreEnough) {
  const KeyRows keys = Line({-9, -8, 1, 2, 8, 9});
  KeyClusters clusters(keys, Order::kSequence, 2, 4);
  clusters.AddPrompt(0, 6);
  const std::vector<float> right = {1, 0};
  EXPECT_EQ(clusters.Select(right, 1), (std::vector<std::int64_t>{3}));
  EXPECT_EQ(clusters.Select(right, 3), (std::vector<std::int64_t>{3, 2}));
  const std::vector<float> both = {1, 0, -1, 0};
  const std::vector<std::int64_t> chosen = clusters.Select(both, 4);
  EXPECT_EQ(std::set<std::int64_t>(chosen.begin(), chosen.end()), (std::set<std::int64_t>{1, 3}));
  EXPECT_TRUE(clusters.Select(right, 0).empty());
}

}  // namespace
}  // namespace cairn::bench
