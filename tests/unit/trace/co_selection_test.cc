#include "tests/bench/trace/co_selection.h"

#include <vector>

#include <gtest/gtest.h>

namespace cairn::bench {
namespace {

std::vector<std::int64_t> IdsOf(const ClusterNeighbours& neighbours) {
  std::vector<std::int64_t> ids;
  for (const Neighbour& one : neighbours.neighbours) ids.push_back(one.cluster_id.value());
  return ids;
}

TEST(CoSelectionTest, TheMostFrequentPartnerComesFirst) {
  CoSelection selected;
  selected.Count(std::vector<std::int64_t>{1, 2, 3});
  selected.Count(std::vector<std::int64_t>{3, 1});
  selected.Count(std::vector<std::int64_t>{7});
  const std::vector<ClusterNeighbours> all = selected.StrongestNeighbours(4);
  ASSERT_EQ(all.size(), 3u);  // one that was selected alone has none
  EXPECT_EQ(all[0].cluster, (ClusterRef{4, ClusterId(1)}));
  EXPECT_EQ(IdsOf(all[0]), (std::vector<std::int64_t>{3, 2}));
  EXPECT_EQ(all[0].neighbours[0].weight, 1);
  EXPECT_EQ(all[0].neighbours[1].weight, 0.5);
  EXPECT_EQ(IdsOf(all[1]), (std::vector<std::int64_t>{1, 3}));
}

TEST(CoSelectionTest, AClusterKeepsSoManyNeighboursAsTheStoreTakes) {
  CoSelection selected;
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 1; id <= kNeighbourCountMax + 5; ++id) ids.push_back(id);
  selected.Count(ids);
  for (const ClusterNeighbours& one : selected.StrongestNeighbours(0)) {
    EXPECT_EQ(std::ssize(one.neighbours), kNeighbourCountMax);
  }
}

}  // namespace
}  // namespace cairn::bench
