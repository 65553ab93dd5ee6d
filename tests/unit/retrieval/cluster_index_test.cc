#include "compute-node/retrieval/clustering/cluster_index.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cairn::compute {
namespace {

constexpr std::int64_t kIndexDim = 24;

std::vector<float> RandomRow(std::mt19937_64& random, float around) {
  std::normal_distribution<float> noise(around, 1.0F);
  std::vector<float> row;
  for (std::int64_t i = 0; i < kIndexDim; ++i) row.push_back(noise(random));
  return row;
}

void ExpectSameScores(const ClusterIndex& a, const ClusterIndex& b, std::span<const float> query) {
  std::vector<float> scores(a.slot_count());
  std::vector<float> others(b.slot_count());
  a.Score(query, 1, scores);
  b.Score(query, 1, others);
  EXPECT_EQ(scores, others);
}

TEST(ClusterIndexTest, AppendedKeysMoveCentroidAndVariance) {
  std::mt19937_64 random(1);
  ClusterIndex index(kIndexDim);
  std::vector<float> keys = RandomRow(random, 2);
  index.SetCentre(std::vector<float>(kIndexDim, 2.0F), false);
  const std::size_t slot = index.Add(ClusterId(4), MomentsOf(keys, kIndexDim), {});
  for (int i = 0; i < 15; ++i) {
    const std::vector<float> key = RandomRow(random, 2);
    index.Append(slot, key, index.VarianceWith(slot, key));
    keys.insert(keys.end(), key.begin(), key.end());
  }
  const ClusterMoments expected = MomentsOf(keys, kIndexDim);
  EXPECT_EQ(index.count(slot), 16);
  EXPECT_NEAR(index.variance(slot), expected.variance, 0.02 * expected.variance);
  for (std::size_t d = 0; d < kIndexDim; ++d) {
    EXPECT_NEAR(index.Centroid(slot)[d], expected.centroid[d], 0.05);
  }
}

TEST(ClusterIndexTest, TakesLittleMoreThanItHolds) {
  constexpr std::int64_t kCount = 1100;  // a vector that doubles would hold 2048
  const ClusterMoments moments = MomentsOf(std::vector<float>(kIndexDim, 1.0F), kIndexDim);
  ClusterIndex grown(kIndexDim);
  ClusterIndex reserved(kIndexDim);
  reserved.Reserve(kCount);
  const std::int64_t reserved_bytes = reserved.memory_bytes();
  for (std::int64_t id = 1; id <= kCount; ++id) {
    grown.Add(ClusterId(id), moments, {});
    reserved.Add(ClusterId(id), moments, {});
  }
  EXPECT_EQ(reserved.memory_bytes(), reserved_bytes);
  EXPECT_LE(grown.memory_bytes(), reserved_bytes + reserved_bytes / 7);
}

TEST(ClusterIndexTest, TheCommonCentreKeepsTheResolutionOfSmallParts) {
  std::mt19937_64 random(2);
  ClusterIndex index(kIndexDim);
  std::vector<float> centre(kIndexDim, 0.0F);
  centre[3] = 500;  // as keys of Qwen2.5 have
  index.SetCentre(centre, false);
  std::vector<float> key = RandomRow(random, 0);
  key[3] += 500;
  const std::size_t slot = index.Add(ClusterId(1), MomentsOf(key, kIndexDim), {});
  for (std::size_t d = 0; d < kIndexDim; ++d) EXPECT_NEAR(index.Centroid(slot)[d], key[d], 0.02);
}

TEST(ClusterIndexTest, ScoresRankAndNearestFindsButForHiddenOnes) {
  ClusterIndex index(kIndexDim);
  std::vector<float> row(kIndexDim, 0.0F);
  for (std::int64_t id = 1; id <= 4; ++id) {
    row[0] = static_cast<float>(id);
    index.Add(ClusterId(id), MomentsOf(row, kIndexDim), {.pinned = id == 4});
  }
  std::vector<float> query(kIndexDim, 0.0F);
  query[0] = 2;
  std::vector<float> scores(index.slot_count());
  index.Score(query, 0, scores);
  EXPECT_NEAR(scores[2], 6, 0.05);
  EXPECT_NEAR(scores[3], 8, 0.05);
  row[0] = 3.9F;
  std::int32_t nearest = -1;
  index.Nearest(row, {&nearest, 1});
  EXPECT_EQ(nearest, 2);  // id 4 is pinned
  index.Remove(2);
  index.Nearest(row, {&nearest, 1});
  EXPECT_EQ(nearest, 1);
  index.Score(query, 0, scores);
  EXPECT_TRUE(std::isinf(scores[2]));
  EXPECT_FALSE(index.Find(ClusterId(3)).has_value());
  EXPECT_EQ(index.cluster_count(), 3);
}

TEST(ClusterIndexTest, ScoresThatAreNoNumbersAreLowest) {
  constexpr float kHuge = 1e30F;
  ClusterIndex index(kIndexDim);
  std::vector<float> keys(2 * kIndexDim, 0.0F);
  keys[0] = 2;
  index.Add(ClusterId(1), MomentsOf(keys, kIndexDim), {});
  index.Add(ClusterId(2), MomentsOf(std::span(keys).subspan(kIndexDim), kIndexDim), {});
  std::vector<float> scores(2);
  index.Score(std::vector<float>(kIndexDim, kHuge), 1, scores);  // its square is infinite
  EXPECT_EQ(scores[0], std::numeric_limits<float>::infinity());
  EXPECT_EQ(scores[1], -std::numeric_limits<float>::infinity());
  index.Score(std::vector<float>(kIndexDim, std::nanf("")), 0, scores);
  for (const float score : scores) EXPECT_EQ(score, -std::numeric_limits<float>::infinity());
}

// Of keys that scatter alike in all directions: the deviation of their products with a query.
TEST(ClusterIndexTest, SpreadIsTheDeviationOfTheKeysProducts) {
  std::mt19937_64 random(9);
  ClusterIndex index(kIndexDim);
  std::vector<float> keys;
  for (int i = 0; i < 4000; ++i) {
    const std::vector<float> key = RandomRow(random, 3);
    keys.insert(keys.end(), key.begin(), key.end());
  }
  index.Add(ClusterId(1), MomentsOf(keys, kIndexDim), {});
  index.Add(ClusterId(2), MomentsOf(std::vector<float>(kIndexDim, 3.0F), kIndexDim), {});
  index.Add(ClusterId(3), MomentsOf(keys, kIndexDim), {});
  index.Remove(2);
  const std::vector<float> query = RandomRow(random, 1);
  double sum = 0;
  double squares = 0;
  for (std::size_t at = 0; at < keys.size(); at += kIndexDim) {
    const double product = std::inner_product(query.begin(), query.end(),
                                              keys.begin() + static_cast<std::ptrdiff_t>(at), 0.0);
    sum += product;
    squares += product * product;
  }
  const double deviation = std::sqrt(squares / 4000 - sum / 4000 * (sum / 4000));
  std::vector<float> plain(3);
  std::vector<float> spread(3);
  index.Score(query, 0, plain);
  index.Score(query, 2, spread);
  EXPECT_NEAR(spread[0] - plain[0], 2 * deviation, 0.1 * deviation);
  EXPECT_EQ(spread[1], plain[1]);  // its keys are all alike
  EXPECT_TRUE(std::isinf(spread[2]) && spread[2] < 0);
}

TEST(ClusterIndexTest, CompactingChangesNoAnswer) {
  std::mt19937_64 random(3);
  ClusterIndex index(kIndexDim);
  for (std::int64_t id = 1; id <= 300; ++id) {
    index.Add(ClusterId(id), MomentsOf(RandomRow(random, 0), kIndexDim), {.pinned = id == 1});
  }
  for (std::int64_t id = 2; id <= 300; id += 2) index.Remove(*index.Find(ClusterId(id)));
  const std::vector<float> key = RandomRow(random, 0);
  std::int32_t before = -1;
  index.Nearest(key, {&before, 1});
  const ClusterId nearest = index.id(static_cast<std::size_t>(before));
  const std::string row = index.Row(static_cast<std::size_t>(before));
  index.Compact();
  EXPECT_EQ(index.slot_count(), 150U);
  std::int32_t after = -1;
  index.Nearest(key, {&after, 1});
  EXPECT_EQ(index.id(static_cast<std::size_t>(after)), nearest);
  EXPECT_EQ(index.Row(static_cast<std::size_t>(after)), row);
  EXPECT_TRUE(index.flags(0).pinned);
}

TEST(ClusterIndexTest, CompactKeepsLittleMemoryThatIsNotUsed) {
  std::mt19937_64 random(5);
  ClusterIndex index(kIndexDim);
  ClusterIndex one(kIndexDim);
  one.Add(ClusterId(1), MomentsOf(RandomRow(random, 0), kIndexDim), {});
  for (std::int64_t id = 1; id <= 1100; ++id) {
    index.Add(ClusterId(id), MomentsOf(RandomRow(random, 0), kIndexDim), {});
  }
  const std::string row = index.Row(1099);
  index.Compact();
  EXPECT_LE(index.memory_bytes(), 1100 * 5 / 4 * one.memory_bytes());
  EXPECT_EQ(index.Row(1099), row);
  for (std::size_t slot = 0; slot < 1000; ++slot) index.Remove(slot);
  index.Compact();
  EXPECT_LE(index.memory_bytes(), 100 * 5 / 4 * one.memory_bytes());
  EXPECT_EQ(index.Row(99), row);
}

TEST(ClusterIndexTest, ARowHoldsWhatMemoryDoes) {
  std::mt19937_64 random(4);
  ClusterIndex index(kIndexDim);
  ClusterIndex restored(kIndexDim);
  for (std::int64_t id = 1; id <= 50; ++id) {
    const std::size_t slot = index.Add(ClusterId(id), MomentsOf(RandomRow(random, 0), kIndexDim),
                                       {.pinned = id == 1, .split = id % 7 == 0});
    const std::vector<float> key = RandomRow(random, 0);
    index.Append(slot, key, index.VarianceWith(slot, key));
  }
  EXPECT_EQ(index.TakeChanged().size(), 50U);
  EXPECT_TRUE(index.TakeChanged().empty());
  for (std::size_t slot = 0; slot < index.slot_count(); ++slot) {
    ASSERT_TRUE(restored.AddRow(index.id(slot), index.count(slot), false, index.Row(slot)).ok());
    EXPECT_EQ(restored.Row(slot), index.Row(slot));
    EXPECT_EQ(restored.flags(slot).split, index.flags(slot).split);
  }
  ExpectSameScores(index, restored, RandomRow(random, 0));
}

// What steps rank by is made of rows alone; what joins clusters comes later.
TEST(ClusterIndexTest, AnIndexOfRowsMayBeWithoutCodesUntilTheyAreLoaded) {
  std::mt19937_64 random(14);
  ClusterIndex index(kIndexDim);
  for (std::int64_t id = 1; id <= 50; ++id) {
    index.Add(ClusterId(id), MomentsOf(RandomRow(random, 0), kIndexDim),
              {.pinned = id == 1, .split = id % 7 == 0});
  }
  index.TakeChanged();
  std::vector<std::string> rows;
  ClusterIndex restored(kIndexDim);
  restored.Add(ClusterId(99), MomentsOf(RandomRow(random, 0), kIndexDim), {});
  restored.Clear();
  EXPECT_EQ(restored.slot_count(), 0U);
  EXPECT_EQ(restored.entry_count(), 0);
  restored.Unload();
  for (std::size_t slot = 0; slot < index.slot_count(); ++slot) {
    rows.push_back(index.Row(slot));
    ASSERT_TRUE(restored.AddRow(index.id(slot), index.count(slot), false, rows.back()).ok());
  }
  EXPECT_FALSE(restored.is_loaded());
  EXPECT_TRUE(restored.TakeChanged().empty());
  // Joins while nothing else is loaded.
  const ClusterMoments other = MomentsOf(RandomRow(random, 0), kIndexDim);
  restored.Add(ClusterId(51), other, {});
  index.Add(ClusterId(51), other, {});

  const std::vector<float> key = RandomRow(random, 0);
  ExpectSameScores(index, restored, key);

  const std::int64_t unknown_count = restored.Load([&](auto&& take) {
    for (std::size_t slot = 0; slot < rows.size(); ++slot) {
      take(IndexRecord{{0, index.id(slot)}, index.count(slot), false, rows[slot]});
    }
  });
  EXPECT_EQ(unknown_count, 0);
  std::int32_t nearest = -1;
  std::int32_t restored_nearest = -1;
  index.Nearest(key, {&nearest, 1});
  restored.Nearest(key, {&restored_nearest, 1});
  EXPECT_EQ(nearest, restored_nearest);
  for (std::size_t slot = 0; slot < index.slot_count(); ++slot) {
    EXPECT_EQ(restored.Row(slot), index.Row(slot));
  }
}

TEST(ClusterIndexTest, RowsThatAreNoneAreRefused) {
  ClusterIndex index(kIndexDim);
  index.Add(ClusterId(5), MomentsOf(std::vector<float>(kIndexDim, 1.0F), kIndexDim), {});
  const std::string good = index.Row(0);
  ClusterIndex other(kIndexDim);
  ASSERT_TRUE(other.AddRow(ClusterId(5), 1, false, good).ok());
  EXPECT_FALSE(other.AddRow(ClusterId(5), 1, false, good).ok());  // not above the last
  EXPECT_FALSE(other.AddRow(ClusterId(6), 0, false, good).ok());
  EXPECT_FALSE(other.AddRow(ClusterId(6), 1, false, good.substr(1)).ok());
  std::string bad = good;
  bad.replace(0, 4, "\xff\xff\xff\xff");  // a scale that is no number
  EXPECT_FALSE(other.AddRow(ClusterId(6), 1, false, bad).ok());
  bad = good;
  bad[8] = '\x40';  // a flag that is none
  EXPECT_FALSE(other.AddRow(ClusterId(6), 1, false, bad).ok());
}

TEST(ClusterIndexTest, TransformingChangesCentroidsAndOutdatesRows) {
  ClusterIndex index(8);
  index.SetCentre(std::vector<float>(8, 1), false);
  index.Add(ClusterId(1), {.centroid = {3, 5, 0, 0, 0, 0, 0, 1}, .variance = 1, .count = 2}, {});
  const std::string before = index.Row(0);
  index.Transform([](std::span<float> key) { key[0] *= 2; });
  const std::vector<float> centroid = index.Centroid(0);
  EXPECT_NEAR(centroid[0], 6, 0.1);
  EXPECT_NEAR(centroid[1], 5, 0.1);
  EXPECT_TRUE(index.flags(0).stale);
  const std::string after = index.Row(0);
  ClusterIndex restored(8);
  restored.SetCentre(index.centre(), true);
  ASSERT_TRUE(restored.AddRow(ClusterId(1), 2, false, after).ok());
  ASSERT_TRUE(restored.AddRow(ClusterId(2), 2, false, before).ok());
  EXPECT_FALSE(restored.flags(0).missing);
  EXPECT_EQ(restored.Centroid(0), centroid);
  EXPECT_TRUE(restored.flags(1).missing);
}

TEST(ClusterIndexTest, MeanValuesFollowAppendsAndAreInRows) {
  std::mt19937_64 random(6);
  ClusterIndex index(kIndexDim, true);
  ClusterIndex restored(kIndexDim, true);
  std::vector<ClusterId> ids;
  std::vector<std::vector<float>> means;
  for (std::int64_t id = 1; id <= 60; ++id) {
    std::vector<float> values = RandomRow(random, 3);
    const std::size_t slot =
        index.Add(ClusterId(id), MomentsOf(RandomRow(random, 0), kIndexDim, values), {});
    for (std::int64_t i = 0; i < id % 8; ++i) {
      const std::vector<float> value = RandomRow(random, 3);
      index.Append(slot, RandomRow(random, 0), 1, value);
      values.insert(values.end(), value.begin(), value.end());
    }
    ids.emplace_back(id);
    means.push_back(MomentsOf(values, kIndexDim, values).value);
  }
  for (std::size_t slot = 0; slot < 60; ++slot) {
    ASSERT_TRUE(restored.AddRow(index.id(slot), index.count(slot), false, index.Row(slot)).ok());
    EXPECT_EQ(restored.Row(slot), index.Row(slot));
  }
  // Removing and compacting leaves the others what they were.
  for (std::size_t slot = 3; slot < 60; slot += 7) index.Remove(slot);
  std::erase_if(ids, [](ClusterId id) { return id.value() % 7 == 4; });
  index.Compact();
  const std::vector<ClusterId> some(ids.begin() + 5, ids.begin() + 30);
  KvBlock block;
  KvBlock restored_block;
  std::vector<float> counts(some.size());
  std::vector<float> restored_counts(some.size());
  index.LoadMeans(some, block, counts);
  restored.LoadMeans(some, restored_block, restored_counts);
  EXPECT_EQ(counts, restored_counts);
  for (std::size_t i = 0; i < some.size(); ++i) {
    const std::size_t id = static_cast<std::size_t>(some[i].value());
    EXPECT_EQ(counts[i], static_cast<float>(1 + id % 8));
    for (std::size_t d = 0; d < kIndexDim; ++d) {
      const float value = block.values[i * kIndexDim + d];
      EXPECT_NEAR(value, means[id - 1][d], 0.15);
      EXPECT_EQ(value, restored_block.values[i * kIndexDim + d]);
      EXPECT_EQ(block.keys[d * kAttentionBlockEntries + i],
                restored_block.keys[d * kAttentionBlockEntries + i]);
      EXPECT_FLOAT_EQ(block.keys[d * kAttentionBlockEntries + i], restored.Centroid(id - 1)[d]);
    }
  }
}

TEST(ClusterIndexTest, CompactingMovesMeanValuesToo) {
  std::mt19937_64 random(7);
  ClusterIndex index(kIndexDim, true);
  for (std::int64_t id = 1; id <= 300; ++id) {
    const std::vector<float> row = RandomRow(random, 0);
    index.Add(ClusterId(id), MomentsOf(row, kIndexDim, row), {});
  }
  const std::string row = index.Row(298);
  const std::int64_t before = index.memory_bytes();
  for (std::int64_t id = 2; id <= 300; id += 2) index.Remove(*index.Find(ClusterId(id)));
  index.Compact();
  EXPECT_EQ(index.slot_count(), 150U);
  EXPECT_EQ(index.Row(149), row);
  EXPECT_LT(index.memory_bytes(), before * 3 / 4);
  EXPECT_GE(index.memory_bytes(), std::int64_t{150} * 2 * kIndexDim);
}

TEST(ClusterIndexTest, RowsWithoutValuesAreNoneOfAnIndexThatKeepsThem) {
  std::mt19937_64 random(8);
  ClusterIndex with(kIndexDim, true);
  ClusterIndex without(kIndexDim);
  const std::vector<float> row = RandomRow(random, 0);
  with.Add(ClusterId(1), MomentsOf(row, kIndexDim, row), {});
  without.Add(ClusterId(1), MomentsOf(row, kIndexDim), {});
  EXPECT_FALSE(with.AddRow(ClusterId(2), 1, false, without.Row(0)).ok());
  EXPECT_FALSE(without.AddRow(ClusterId(2), 1, false, with.Row(0)).ok());
  std::string bad = with.Row(0);
  ASSERT_TRUE(with.AddRow(ClusterId(2), 1, false, bad).ok());
  bad.replace(bad.size() - kIndexDim - 4, 4, "\xff\xff\xff\xff");  // a scale that is no number
  EXPECT_FALSE(with.AddRow(ClusterId(3), 1, false, bad).ok());
}

// Else the row could not be read again.
TEST(ClusterIndexTest, AMeanValueThatIsNotFiniteCountsAsZero) {
  ClusterIndex index(kIndexDim, true);
  const std::vector<float> key(kIndexDim, 1.0F);
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> value(kIndexDim, 1.0F);
    value[7] = bad;
    const ClusterId id(static_cast<std::int64_t>(index.slot_count()) + 1);
    index.Add(id, MomentsOf(key, kIndexDim, value), {});
    KvBlock block;
    float count = 0;
    index.LoadMeans({&id, 1}, block, {&count, 1});
    EXPECT_EQ(count, 1);
    for (std::size_t d = 0; d < kIndexDim; ++d) EXPECT_EQ(block.values[d], 0);
  }
}

}  // namespace
}  // namespace cairn::compute
