// In which order linked clusters are placed.
#include "kv-node/engine/place/placement_order.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/rng.h"
#include "tests/tools/seed.h"

namespace cairn::kv {
namespace {

using Ids = std::vector<std::int64_t>;

ClusterPair Link(std::int64_t a, std::int64_t b, std::int64_t count) {
  return {ClusterId(a), ClusterId(b), count};
}

Ids Order(std::vector<ClusterPair> links) {
  Ids out;
  for (const ClusterId id : OrderByLinks(std::move(links))) out.push_back(id.value());
  return out;
}

TEST(PlacementOrderTest, TheStrongestLinksMakeThePairs) {
  EXPECT_EQ(Order({Link(1, 2, 3), Link(2, 3, 9), Link(3, 4, 3)}), (Ids{2, 3}));
  EXPECT_EQ(Order({Link(1, 2, 3), Link(2, 3, 2), Link(3, 4, 3)}), (Ids{1, 2, 3, 4}));
}

TEST(PlacementOrderTest, PairsFollowEachOtherAlongTheirLinks) {
  // The pairs 1-2, 3-4 and 5-6; 6 belongs to 1, and 5 to 4: turned round where it must be.
  EXPECT_EQ(Order({Link(1, 2, 9), Link(3, 4, 8), Link(5, 6, 7), Link(1, 6, 3), Link(4, 5, 2)}),
            (Ids{3, 4, 5, 6, 1, 2}));
}

TEST(PlacementOrderTest, AClusterWhosePartnersHaveOthersIsLeftOut) {
  EXPECT_EQ(Order({Link(1, 2, 9), Link(2, 3, 5)}), (Ids{1, 2}));
  EXPECT_EQ(Order({}), Ids());
  EXPECT_EQ(Order({Link(1, 1, 9)}), Ids());
}

TEST(PlacementOrderTest, ChainsHaveAllClustersAndTheUnlinkedLast) {
  const auto chains = [](const Ids& ids, std::vector<ClusterPair> links) {
    std::vector<ClusterId> all;
    for (const std::int64_t id : ids) all.emplace_back(id);
    Ids out;
    for (const ClusterId id : OrderInChains(all, std::move(links))) out.push_back(id.value());
    return out;
  };
  // 2 is next to 1 and 3, so 4 goes to an end.
  EXPECT_EQ(chains({1, 2, 3, 4, 5, 6},
                   {Link(1, 2, 9), Link(2, 3, 8), Link(2, 4, 7), Link(6, 4, 1), Link(3, 1, 5)}),
            (Ids{1, 2, 3, 6, 4, 5}));
  EXPECT_EQ(chains({3, 1, 2}, {}), (Ids{3, 1, 2}));
  EXPECT_EQ(chains({1, 2}, {Link(1, 1, 9), Link(2, 1, 1), Link(1, 2, 1)}), (Ids{1, 2}));
}

TEST(PlacementOrderTest, AnyLinksMakeEachClusterComeOnceAndTheBestPairFirst) {
  test::Rng rng(test::TestSeed());
  for (int round = 0; round < 200; ++round) {
    std::vector<ClusterPair> links;
    std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> count_of;
    for (std::uint64_t i = 1 + rng.Below(60); i > 0; --i) {
      const auto a = static_cast<std::int64_t>(rng.Below(20));
      const auto b = static_cast<std::int64_t>(rng.Below(20));
      if (a == b || count_of.contains(std::minmax(a, b))) continue;
      const auto count = static_cast<std::int64_t>(1 + rng.Below(9));
      count_of[std::minmax(a, b)] = count;
      links.push_back(Link(a, b, count));
    }
    const Ids order = Order(links);
    ASSERT_EQ(order.size() % 2, 0U);
    EXPECT_EQ(std::set(order.begin(), order.end()).size(), order.size());
    std::map<std::int64_t, std::int64_t> partner_count;
    for (std::size_t i = 0; i < order.size(); i += 2) {
      ASSERT_TRUE(count_of.contains(std::minmax(order[i], order[i + 1]))) << "not linked";
      partner_count[order[i]] = partner_count[order[i + 1]] =
          count_of[std::minmax(order[i], order[i + 1])];
    }
    // Greedy: of every link one side at least has a partner that is as strong.
    for (const auto& [pair, count] : count_of) {
      EXPECT_GE(std::max(partner_count[pair.first], partner_count[pair.second]), count);
    }
    std::reverse(links.begin(), links.end());
    EXPECT_EQ(Order(links), order) << "depends on the order of the links";
  }
}

}  // namespace
}  // namespace cairn::kv
