// Which clusters are said to belong together, from what is fetched.
#include "kv-node/engine/co_fetches.h"

#include <vector>

#include <gtest/gtest.h>

namespace cairn::kv {
namespace {

using Ids = std::vector<ClusterId>;

ClusterKey Key(std::int64_t id, std::int32_t layer = 0, std::int32_t head = 0) {
  return {layer, head, ClusterId(id)};
}

std::vector<ClusterRef> Refs(const std::vector<std::int64_t>& ids, std::int32_t head = 0) {
  std::vector<ClusterRef> out;
  out.reserve(ids.size());
  for (const std::int64_t id : ids) out.push_back({head, ClusterId(id)});
  return out;
}

TEST(CoFetchesTest, TheMostFrequentComesFirst) {
  CoFetches counts;
  counts.Count(0, Refs({1, 2}));
  for (int i = 0; i < 3; ++i) counts.Count(0, Refs({1, 3}));
  counts.Count(0, Refs({1, 2, 4}));
  EXPECT_EQ(counts.RelatedTo(Key(1)), (Ids{ClusterId(3), ClusterId(2), ClusterId(4)}));
  EXPECT_EQ(counts.RelatedTo(Key(3)), Ids{ClusterId(1)});
  EXPECT_EQ(counts.RelatedTo(Key(9)), Ids());
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
    EXPECT_EQ(counts.RelatedTo(Key(1, layer)), Ids{ClusterId(2)}) << "layer " << layer;
  }
}

TEST(CoFetchesTest, LayersAndHeadsAreApart) {
  CoFetches counts;
  std::vector<ClusterRef> both = Refs({1, 2}, 0);
  both.push_back({1, ClusterId(3)});
  counts.Count(1, both);
  EXPECT_EQ(counts.RelatedTo(Key(1, 1, 0)), Ids{ClusterId(2)});
  EXPECT_EQ(counts.RelatedTo(Key(3, 1, 1)), Ids());
  EXPECT_EQ(counts.RelatedTo(Key(1, 0, 0)), Ids());
}

TEST(CoFetchesTest, AClusterKeepsItsStrongestLinksOnly) {
  CoFetches counts;
  for (int i = 0; i < 4; ++i) counts.Count(0, Refs({1, 2}));
  for (std::int64_t id = 3; id < 30; ++id) counts.Count(0, Refs({1, id}));
  const Ids related = counts.RelatedTo(Key(1));
  EXPECT_EQ(related.size(), kRelatedMax);
  EXPECT_EQ(related.front(), ClusterId(2));
}

TEST(CoFetchesTest, AFetchOfManyClustersIsCountedInPart) {
  CoFetches counts;
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 1; id <= static_cast<std::int64_t>(kCoFetchNamedMax) + 1; ++id) {
    ids.push_back(id);
  }
  counts.Count(0, Refs(ids));
  EXPECT_FALSE(counts.RelatedTo(Key(ids[ids.size() - 2])).empty());
  EXPECT_TRUE(counts.RelatedTo(Key(ids.back())).empty());
}

TEST(CoFetchesTest, AFullTableLetsTheRareOnesGo) {
  CoFetches counts;
  for (int i = 0; i < 8; ++i) counts.Count(0, Refs({1, 2}));
  for (std::size_t i = 0; i < kCoFetchClustersMax; ++i) {
    const auto id = static_cast<std::int64_t>(10 + 2 * i);
    counts.Count(0, Refs({id, id + 1}));
    ASSERT_EQ(counts.RelatedTo(Key(id)), Ids{ClusterId(id + 1)});
  }
  EXPECT_EQ(counts.RelatedTo(Key(1)), Ids{ClusterId(2)});
  EXPECT_TRUE(counts.RelatedTo(Key(10)).empty());
}

TEST(CoFetchesTest, AClusterThatIsGoneIsForgotten) {
  CoFetches counts;
  counts.Count(0, Refs({1, 2}));
  counts.Forget(Key(1));
  EXPECT_TRUE(counts.RelatedTo(Key(1)).empty());
}

}  // namespace
}  // namespace cairn::kv
