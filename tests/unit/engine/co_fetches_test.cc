// Which clusters are said to belong together, from what is fetched.
#include "kv-node/engine/place/co_fetches.h"

#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cairn::kv {
namespace {

using Clusters = std::vector<ClusterId>;

ClusterKey Key(std::int64_t id, std::int32_t layer = 0, std::int32_t head = 0) {
  return {layer, head, ClusterId(id)};
}

std::vector<ClusterRef> Refs(const std::vector<std::int64_t>& ids, std::int32_t head = 0) {
  std::vector<ClusterRef> out;
  out.reserve(ids.size());
  for (const std::int64_t id : ids) out.push_back({head, ClusterId(id)});
  return out;
}

Clusters RelatedTo(const CoFetches& counts, const ClusterKey& key) {
  Clusters out;
  for (const ClusterLink& link : counts.LinksOf(key)) out.push_back(link.cluster);
  return out;
}

// A cluster's neighbours with their weights.
ClusterNeighbours Given(std::int64_t id,
                        const std::vector<std::pair<std::int64_t, float>>& neighbours,
                        std::int32_t head = 0) {
  ClusterNeighbours out{{head, ClusterId(id)}, {}};
  for (const auto& [neighbour, weight] : neighbours) {
    out.neighbours.push_back({ClusterId(neighbour), weight});
  }
  return out;
}

bool Always(const ClusterKey& /*key*/) { return true; }

TEST(CoFetchesTest, TheMostFrequentComesFirst) {
  CoFetches counts;
  counts.Count(0, Refs({1, 2}));
  for (int i = 0; i < 3; ++i) counts.Count(0, Refs({1, 3}));
  counts.Count(0, Refs({1, 2, 4}));
  EXPECT_EQ(RelatedTo(counts, Key(1)), (Clusters{ClusterId(3), ClusterId(2), ClusterId(4)}));
  EXPECT_EQ(RelatedTo(counts, Key(3)), Clusters{ClusterId(1)});
  EXPECT_EQ(RelatedTo(counts, Key(9)), Clusters());
}

// As a decoding session fetches: sixteen layers, one after the other, over and over.
TEST(CoFetchesTest, OneFetchInSixteenIsCountedInEveryLayer) {
  CoFetches counts;
  int counted = 0;
  for (int step = 0; step < 1000; ++step) {
    for (std::int32_t layer = 0; layer < 16; ++layer) {
      if (counts.Note(layer, Refs({1, 2}))) ++counted;
    }
  }
  EXPECT_GT(counted, 900);
  EXPECT_LT(counted, 1100);
  for (std::int32_t layer = 0; layer < 16; ++layer) {
    EXPECT_EQ(RelatedTo(counts, Key(1, layer)), Clusters{ClusterId(2)}) << "layer " << layer;
  }
}

TEST(CoFetchesTest, LayersAndHeadsAreApart) {
  CoFetches counts;
  std::vector<ClusterRef> both = Refs({1, 2}, 0);
  both.push_back({1, ClusterId(3)});
  counts.Count(1, both);
  EXPECT_EQ(RelatedTo(counts, Key(1, 1, 0)), Clusters{ClusterId(2)});
  EXPECT_EQ(RelatedTo(counts, Key(3, 1, 1)), Clusters());
  EXPECT_EQ(RelatedTo(counts, Key(1, 0, 0)), Clusters());
}

TEST(CoFetchesTest, AClusterKeepsItsStrongestLinksOnly) {
  CoFetches counts;
  for (int i = 0; i < 4; ++i) counts.Count(0, Refs({1, 2}));
  for (std::int64_t id = 3; id < 30; ++id) counts.Count(0, Refs({1, id}));
  const Clusters related = RelatedTo(counts, Key(1));
  EXPECT_EQ(related.size(), static_cast<std::size_t>(kNeighbourCountMax));
  EXPECT_EQ(related.front(), ClusterId(2));
}

TEST(CoFetchesTest, AFetchOfManyClustersIsCountedInPart) {
  CoFetches counts;
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 1; id <= static_cast<std::int64_t>(kCoFetchNamedMax) + 1; ++id) {
    ids.push_back(id);
  }
  counts.Count(0, Refs(ids));
  EXPECT_FALSE(RelatedTo(counts, Key(ids[ids.size() - 2])).empty());
  EXPECT_TRUE(RelatedTo(counts, Key(ids.back())).empty());
}

TEST(CoFetchesTest, AFullTableLetsTheRareOnesGo) {
  CoFetches counts;
  for (int i = 0; i < 8; ++i) counts.Count(0, Refs({1, 2}));
  for (std::size_t i = 0; i < kCoFetchClustersMax; ++i) {
    const auto id = static_cast<std::int64_t>(10 + 2 * i);
    counts.Count(0, Refs({id, id + 1}));
    ASSERT_EQ(RelatedTo(counts, Key(id)), Clusters{ClusterId(id + 1)});
  }
  EXPECT_EQ(RelatedTo(counts, Key(1)), Clusters{ClusterId(2)});
  EXPECT_TRUE(RelatedTo(counts, Key(10)).empty());
}

TEST(CoFetchesTest, AClusterThatIsGoneIsForgotten) {
  CoFetches counts;
  counts.Count(0, Refs({1, 2}));
  counts.Forget(Key(1));
  EXPECT_TRUE(RelatedTo(counts, Key(1)).empty());
}

TEST(CoFetchesTest, NoClusterIsLinkedToOneThatIsGone) {
  CoFetches counts;
  counts.Count(0, Refs({1, 2, 3}));
  counts.Forget(Key(1));
  EXPECT_EQ(RelatedTo(counts, Key(2)), Clusters{ClusterId(3)});
  counts.Forget(Key(3));
  EXPECT_TRUE(RelatedTo(counts, Key(2)).empty());
}

TEST(CoFetchesTest, GivenWeightsAreTheFirstCounts) {
  CoFetches counts;
  counts.Count(0, Refs({1, 9}));
  counts.Give({0,
               {Given(1, {{2, 1e-4F}, {3, 4e-4F}}), Given(4, {{5, 8e-4F}}),
                Given(1, {{6, 1e-7F}}, /*head=*/1)}});
  const auto links = counts.LinksOf(Key(1));
  EXPECT_EQ(std::vector(links.begin(), links.end()),
            (std::vector<ClusterLink>{{ClusterId(3), kGivenCountMax / 2},
                                      {ClusterId(2), kGivenCountMax / 8}}));
  EXPECT_EQ(counts.LinksOf(Key(4)).front().count, kGivenCountMax);
  EXPECT_EQ(counts.LinksOf(Key(1, 0, 1)).front().count, kGivenCountMax) << "of its own head";
  EXPECT_EQ(RelatedTo(counts, Key(9)), Clusters{ClusterId(1)}) << "was not named";
}

TEST(CoFetchesTest, WhatIsFetchedOutweighsWhatWasGiven) {
  CoFetches counts;
  counts.Give({0, {Given(1, {{2, 0.5F}})}});
  for (int i = 0; i < kGivenCountMax; ++i) counts.Count(0, Refs({1, 3}));
  EXPECT_EQ(RelatedTo(counts, Key(1)), (Clusters{ClusterId(2), ClusterId(3)}));
  counts.Count(0, Refs({1, 3}));
  EXPECT_EQ(RelatedTo(counts, Key(1)), (Clusters{ClusterId(3), ClusterId(2)}));
}

TEST(CoFetchesTest, AGivenClusterWithoutNeighboursHasNone) {
  CoFetches counts;
  counts.Count(0, Refs({1, 2}));
  counts.Give({0, {Given(1, {})}});
  EXPECT_TRUE(RelatedTo(counts, Key(1)).empty());
  EXPECT_EQ(RelatedTo(counts, Key(2)), Clusters{ClusterId(1)});
}

TEST(CoFetchesTest, CountsStopAtWhatARowCanHold) {
  CoFetches counts;
  counts.Count(0, Refs({1, 2, 3}));
  for (int i = 0; i < kLinkCountMax; ++i) counts.Count(0, Refs({1, 2}));
  const auto links = counts.LinksOf(Key(1));
  EXPECT_EQ(links.front().cluster, ClusterId(2));
  EXPECT_LE(links.front().count, kLinkCountMax);
  EXPECT_EQ(links.back(), (ClusterLink{ClusterId(3), 1}));
}

// As a prefill gives them: layer after layer, each with as many as a message has.
TEST(CoFetchesTest, GivenNeighboursMakeRoomBeforeTheyAreStored) {
  CoFetches counts;
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    PutNeighbours op{layer, {}};
    for (std::int64_t id = 1; id <= kNeighbourClusterCountMax; ++id) {
      op.clusters.push_back(Given(id, {{id + 1, 0.5F}, {id + 2, 0.25F}}));
    }
    counts.Give(op);
    for (std::int64_t id = 1; id <= kNeighbourClusterCountMax; ++id) {
      ASSERT_EQ(counts.LinksOf(Key(id, layer)).front().count, kGivenCountMax);
    }
  }
}

TEST(CoFetchesTest, NeighboursAreChecked) {
  const EntryLayout layout{2, 2, 64, KvFormat::kF16};
  EXPECT_TRUE(CheckNeighbours(layout, {1, {Given(1, {{2, 1.0F}, {3, 0.1F}}), Given(2, {})}}).ok());
  EXPECT_TRUE(CheckNeighbours(layout, {1, {Given(1, {{2, 1.0F}}, kAllHeads)}}).ok());
  const std::vector<std::pair<std::int64_t, float>> nine = {{2, 0.1F}, {3, 0.1F}, {4, 0.1F},
                                                            {5, 0.1F}, {6, 0.1F}, {7, 0.1F},
                                                            {8, 0.1F}, {9, 0.1F}, {10, 0.1F}};
  PutNeighbours many{0, {}};
  for (std::int64_t id = 1; id <= kNeighbourClusterCountMax + 1; ++id) {
    many.clusters.push_back(Given(id, {}));
  }
  for (const PutNeighbours& bad : {
           PutNeighbours{2, {}},
           PutNeighbours{-1, {}},
           PutNeighbours{0, {Given(1, {}, 2)}},
           PutNeighbours{0, {Given(1, {}, -2)}},
           PutNeighbours{0, {Given(0, {})}},
           PutNeighbours{0, {Given(1, {}), Given(1, {})}},
           PutNeighbours{0, {Given(1, {{1, 0.5F}})}},
           PutNeighbours{0, {Given(1, {{0, 0.5F}})}},
           PutNeighbours{0, {Given(1, {{2, 0.5F}, {2, 0.5F}})}},
           PutNeighbours{0, {Given(1, {{2, 0.0F}})}},
           PutNeighbours{0, {Given(1, {{2, 1.5F}})}},
           PutNeighbours{0, {Given(1, {{2, std::nanf("")}})}},
           PutNeighbours{0, {Given(1, nine)}},
           many,
       }) {
    EXPECT_EQ(CheckNeighbours(layout, bad).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(CoFetchesTest, RowsThatChangedAreTakenOnce) {
  CoFetches counts;
  counts.Count(0, Refs({1, 2}));
  EXPECT_EQ(counts.TakeChanges(Always).put.size(), 2U);
  EXPECT_TRUE(counts.TakeChanges(Always).put.empty());
  for (int i = 0; i < 3; ++i) counts.Count(0, Refs({1, 2}));  // two and four
  EXPECT_EQ(counts.TakeChanges(Always).put.size(), 2U);
  counts.Count(0, Refs({1, 2}));  // five
  EXPECT_TRUE(counts.TakeChanges(Always).put.empty());
  counts.Forget(Key(2));
  const CoFetches::Changes changes = counts.TakeChanges(Always);
  EXPECT_TRUE(changes.put.empty());
  EXPECT_EQ(changes.gone, (std::vector{Key(1), Key(2)}));
}

TEST(CoFetchesTest, AClusterThatDoesNotExistYetWaitsForItsRow) {
  CoFetches counts;
  counts.Give({0, {Given(1, {{2, 0.5F}}), Given(2, {{1, 0.5F}})}});
  const auto first_only = [](const ClusterKey& key) { return key == Key(1); };
  EXPECT_EQ(counts.TakeChanges(first_only).put.size(), 1U);
  EXPECT_TRUE(counts.TakeChanges(first_only).put.empty());
  EXPECT_EQ(counts.TakeChanges(Always).put.size(), 1U);
}

TEST(CoFetchesTest, ACheckpointTakesABoundedNumberOfRows) {
  CoFetches counts;
  PutNeighbours op{0, {}};
  for (std::int64_t id = 1; id <= kNeighbourClusterCountMax; ++id) {
    op.clusters.push_back(Given(id, {{id + 1, 0.5F}}));
  }
  counts.Give(op);
  std::size_t stored = 0;
  while (stored < op.clusters.size()) {
    const std::size_t taken = counts.TakeChanges(Always).put.size();
    EXPECT_EQ(taken, kLinkRowsPerCheckpointMax);
    stored += taken;
  }
  op.layer = 1;  // in place of those that are stored
  counts.Give(op);
  std::size_t gone = 0;
  while (gone < op.clusters.size()) {
    const CoFetches::Changes changes = counts.TakeChanges(Always);
    EXPECT_EQ(changes.gone.size(), kLinkRowsPerCheckpointMax);
    EXPECT_TRUE(changes.put.empty()) << "more rows than clusters";
    gone += changes.gone.size();
  }
}

TEST(CoFetchesTest, StoredRowsAreKnownAgain) {
  CoFetches counts;
  counts.Load(Key(1), {{ClusterId(2), 5}}, /*own=*/true);
  counts.Load(Key(1), {{ClusterId(3), 9}}, /*own=*/false);  // older
  counts.Load(Key(4), {{ClusterId(3), 9}}, /*own=*/false);
  EXPECT_EQ(RelatedTo(counts, Key(1)), Clusters{ClusterId(2)});
  EXPECT_EQ(RelatedTo(counts, Key(4)), Clusters{ClusterId(3)});
  EXPECT_TRUE(counts.TakeChanges(Always).put.empty());
  counts.Forget(Key(1));
  counts.Forget(Key(4));  // its row belongs to another segment
  EXPECT_EQ(counts.TakeChanges(Always).gone, std::vector{Key(1)});
}

TEST(CoFetchesTest, ANewSegmentGetsTheRowsThatChange) {
  CoFetches counts;
  counts.Count(0, Refs({1, 2}));
  counts.Count(0, Refs({3, 4}));
  EXPECT_EQ(counts.TakeChanges(Always).put.size(), 4U);
  counts.BeginSegment();
  counts.Forget(Key(3));
  EXPECT_TRUE(counts.TakeChanges(Always).gone.empty()) << "the sealed segment's rows stay";
  counts.Count(0, Refs({1, 2}));
  EXPECT_EQ(counts.TakeChanges(Always).put.size(), 2U);
}

}  // namespace
}  // namespace cairn::kv
