// Which clusters are said to belong together, from what is fetched.
#include "kv-node/engine/place/co_fetches.h"

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
  EXPECT_EQ(related.size(), static_cast<std::size_t>(kLinksOfClusterMax));
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

TEST(CoFetchesTest, CountsStopAtWhatARowCanHold) {
  CoFetches counts;
  counts.Count(0, Refs({1, 2, 3}));
  for (int i = 0; i < kLinkCountMax; ++i) counts.Count(0, Refs({1, 2}));
  const auto links = counts.LinksOf(Key(1));
  EXPECT_EQ(links.front().cluster, ClusterId(2));
  EXPECT_LE(links.front().count, kLinkCountMax);
  EXPECT_EQ(links.back(), (ClusterLink{ClusterId(3), 1}));
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
  counts.Count(0, Refs({1, 2}));
  const auto first_only = [](const ClusterKey& key) { return key == Key(1); };
  EXPECT_EQ(counts.TakeChanges(first_only).put.size(), 1U);
  EXPECT_TRUE(counts.TakeChanges(first_only).put.empty());
  EXPECT_EQ(counts.TakeChanges(Always).put.size(), 1U);
}

TEST(CoFetchesTest, ACheckpointTakesABoundedNumberOfRows) {
  CoFetches counts;
  constexpr auto kCount = static_cast<std::int64_t>(kCoFetchClustersMax);
  for (std::int64_t id = 1; id <= kCount; id += 2) counts.Count(0, Refs({id, id + 1}));
  std::size_t stored = 0;
  while (stored < kCoFetchClustersMax) {
    const std::size_t taken = counts.TakeChanges(Always).put.size();
    EXPECT_EQ(taken, kLinkRowsPerCheckpointMax);
    stored += taken;
  }
  for (std::int64_t id = 1; id <= kCount; ++id) counts.Forget(Key(id));
  counts.Count(1, Refs({1, 2}));
  std::size_t gone = 0;
  while (gone < kCoFetchClustersMax) {
    const CoFetches::Changes changes = counts.TakeChanges(Always);
    EXPECT_EQ(changes.gone.size(), kLinkRowsPerCheckpointMax);
    gone += changes.gone.size();
    const bool rows_left = gone < kCoFetchClustersMax;
    EXPECT_TRUE(!rows_left || changes.put.empty()) << "more rows than clusters";
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
