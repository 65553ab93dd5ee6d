// In which order a step of `dynakv` takes clusters.
#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "tests/tools/rng.h"
#include "tests/tools/seed.h"
#include "tests/unit/retrieval/small_dynakv.h"

namespace cairn::compute {
namespace {

// Of the slots of a head's clusters, for queries of two query heads a KV head.
std::vector<float> SpreadScoresOf(PolicyWorld& world, std::int32_t layer, std::int32_t head,
                                  std::span<const float> queries, float spread_weight) {
  const ClusterIndex& index = DynaKvOf(world).index(layer, head);
  std::vector<float> query(16);
  for (std::size_t i = 0; i < 32; ++i) {
    query[i % 16] += queries[static_cast<std::size_t>(head) * 32 + i];
  }
  DynaKvOf(world).metric(layer, head).StretchQuery(query);
  std::vector<float> scores(index.slot_count());
  index.Score(query, spread_weight, scores);
  return scores;
}

// The clusters that are taken best first, each if it fits what is left of `room`; and pinned ones.
std::set<ClusterId> BestThatFit(const ClusterIndex& index, std::span<const float> scores,
                                std::int64_t room) {
  std::set<ClusterId> taken;
  std::vector<std::size_t> order;
  for (std::size_t slot = 0; slot < index.slot_count(); ++slot) {
    if (!index.flags(slot).pinned) {
      order.push_back(slot);
      continue;
    }
    room -= index.count(slot);
    taken.insert(index.id(slot));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  for (const std::size_t slot : order) {
    if (index.count(slot) > room) continue;
    room -= index.count(slot);
    taken.insert(index.id(slot));
  }
  return taken;
}

TEST(DynaKvRankingTest, ClustersAreChosenByWhatTheirBetterKeysMayScore) {
  PolicyWorld world(SmallOptions(), MakeDynaKv, 17);
  world.Prefill(400);
  test::Rng rng(test::TestSeed());
  bool matters = false;
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::vector<float> queries(std::size_t{2} * 2 * 16);
    for (float& value : queries) value = rng.Normal();
    const std::vector<FetchSlice> plan =
        world.policy().selector().Select({.layer = 1,
                                          .stored_token_count = 376,
                                          .first_position = 400,
                                          .token_count = 1,
                                          .queries = queries});
    for (std::int32_t head = 0; head < 2; ++head) {
      std::set<ClusterId> chosen;
      for (const FetchSlice& slice : plan) {
        for (const PlannedCluster& planned : slice.clusters) {
          if (planned.cluster.head == head) chosen.insert(planned.cluster.cluster_id);
        }
      }
      const ClusterIndex& index = DynaKvOf(world).index(1, head);
      const std::int64_t room = SelectedTokens(world.options().selection, 401) - 25;
      const auto best = [&](float spread_weight) {
        return BestThatFit(index, SpreadScoresOf(world, 1, head, queries, spread_weight), room);
      };
      EXPECT_EQ(chosen, best(kSpreadWeight));
      matters = matters || chosen != best(0);
    }
  }
  EXPECT_TRUE(matters);
}

}  // namespace
}  // namespace cairn::compute
