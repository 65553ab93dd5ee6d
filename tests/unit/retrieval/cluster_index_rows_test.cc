// A ClusterIndex whose codes come and go answers as one that keeps them.
#include <functional>
#include <limits>
#include <optional>
#include <random>

#include <gtest/gtest.h>

#include "compute-node/retrieval/clustering/cluster_index.h"
#include "tests/tools/seed.h"

namespace cairn::compute {
namespace {

constexpr std::int64_t kLoadDim = 16;

// Two indexes that are told the same, and the rows that checkpoints stored of the second.
class ClusterIndexLoadTest : public testing::TestWithParam<bool> {
 protected:
  ClusterIndexLoadTest()
      : seed(test::TestSeed()), random(seed), kept(kLoadDim, GetParam()), loaded(kept) {}

  std::vector<float> RandomKey() {
    std::normal_distribution<float> noise(0, 1);
    std::vector<float> row;
    for (std::int64_t i = 0; i < kLoadDim; ++i) row.push_back(noise(random));
    return row;
  }
  void Both(const std::function<void(ClusterIndex&)>& change) {
    change(kept);
    change(loaded);
  }
  void AddOne() {
    const std::vector<float> rows = RandomKey();
    const ClusterMoments moments =
        GetParam() ? MomentsOf(rows, kLoadDim, RandomKey()) : MomentsOf(rows, kLoadDim);
    Both([&](ClusterIndex& index) { index.Add(ClusterId(next_id), moments, {}); });
    ++next_id;
  }
  std::optional<std::size_t> AnyAlive() {
    for (int i = 0; i < 20 && kept.slot_count() > 0; ++i) {
      const std::size_t slot = random() % kept.slot_count();
      if (kept.alive(slot)) return slot;
    }
    return std::nullopt;
  }
  void AppendToOne() {
    const std::optional<std::size_t> slot = AnyAlive();
    if (!slot.has_value()) return;
    const std::vector<float> key = RandomKey();
    const std::vector<float> value = GetParam() ? RandomKey() : std::vector<float>();
    Both([&](ClusterIndex& index) {
      index.Append(*slot, key, index.VarianceWith(*slot, key), value);
    });
  }
  // As when a stale cluster was read.
  void SetOne() {
    const std::optional<std::size_t> slot = AnyAlive();
    if (!slot.has_value()) return;
    const std::vector<float> rows = RandomKey();
    const ClusterMoments moments =
        GetParam() ? MomentsOf(rows, kLoadDim, RandomKey()) : MomentsOf(rows, kLoadDim);
    Both([&](ClusterIndex& index) {
      index.Set(*slot, moments);
      index.SetFlags(*slot, {.split = moments.count > 1});
    });
  }
  void RemoveOne() {
    const std::optional<std::size_t> slot = AnyAlive();
    if (slot.has_value()) Both([&](ClusterIndex& index) { index.Remove(*slot); });
  }
  // As a checkpoint does, with the codes in memory or without.
  void Take() {
    kept.TakeChanged();
    for (const std::size_t slot : loaded.TakeChanged()) {
      IndexRow row;
      row.cluster = {0, loaded.id(slot)};
      row.row = loaded.Row(slot);
      row.entry_count = loaded.count(slot);
      older.push_back(row);
    }
    Both([](ClusterIndex& index) { index.Compact(); });
    if (!loaded.is_loaded()) loaded.Unload();
  }
  std::int64_t Load() {
    return loaded.Load([&](auto&& take) {
      for (const IndexRow& row : older) {
        take(IndexRecord{row.cluster, row.entry_count, row.stale, row.row});
      }
    });
  }
  void ExpectSame() {
    ASSERT_EQ(loaded.slot_count(), kept.slot_count());
    const std::vector<float> query = RandomKey();
    std::vector<float> expected(kept.slot_count());
    std::vector<float> scores(kept.slot_count());
    kept.Score(query, 1, expected);
    loaded.Score(query, 1, scores);
    EXPECT_EQ(scores, expected);
    for (std::size_t slot = 0; slot < kept.slot_count(); ++slot) {
      if (kept.alive(slot)) {
        EXPECT_EQ(loaded.Row(slot), kept.Row(slot));
      }
    }
  }

  const std::uint64_t seed;
  std::mt19937_64 random;
  ClusterIndex kept;
  ClusterIndex loaded;
  std::int64_t next_id = 1;
  std::vector<IndexRow> older;  // all rows that were ever stored, the latest last
};

TEST_P(ClusterIndexLoadTest, ItAnswersLikeOneThatStays) {
  for (int i = 0; i < 60; ++i) AddOne();
  for (int round = 0; round < 150; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
    const std::uint64_t changes = random() % 6;
    for (std::uint64_t i = 0; i < changes; ++i) {
      const std::uint64_t kind = random() % 5;
      // Without its codes clusters come, go, and become others.
      if (kind == 0 || (kind > 2 && !loaded.is_loaded())) AddOne();
      if (kind == 1) RemoveOne();
      if (kind == 2) SetOne();
      if (kind > 2 && loaded.is_loaded()) AppendToOne();
    }
    if (random() % 3 == 0) Take();
    if (!loaded.is_loaded()) {
      EXPECT_EQ(Load(), 0);
    }
    ASSERT_NO_FATAL_FAILURE(ExpectSame());
    if (random() % 2 == 0) loaded.Unload();
  }
}

TEST_P(ClusterIndexLoadTest, SlotsMoveTogetherWhileTheCodesAreGone) {
  for (int i = 0; i < 300; ++i) AddOne();
  Take();
  loaded.Unload();
  for (int i = 0; i < 20; ++i) AddOne();  // what stays in memory moves too
  for (int i = 0; i < 200; ++i) RemoveOne();
  const std::size_t slots_before = loaded.slot_count();
  Both([](ClusterIndex& index) { index.Compact(); });
  ASSERT_LT(loaded.slot_count(), slots_before);
  EXPECT_EQ(Load(), 0);
  ASSERT_NO_FATAL_FAILURE(ExpectSame()) << "seed " << seed;
}

TEST_P(ClusterIndexLoadTest, UnloadingFreesTheCodesThatRowsHave) {
  for (int i = 0; i < 500; ++i) AddOne();
  const std::int64_t before = loaded.memory_bytes();
  loaded.Unload();  // no row was taken yet
  EXPECT_GE(loaded.memory_bytes(), 500 * kLoadDim);
  EXPECT_EQ(Load(), 0);
  Take();
  loaded.Unload();
  EXPECT_LE(loaded.memory_bytes(), before - loaded.code_bytes());
  EXPECT_EQ(Load(), 0);
  ASSERT_NO_FATAL_FAILURE(ExpectSame());
}

TEST_P(ClusterIndexLoadTest, ARowWithAVarianceThatIsNoNumberIsFound) {
  for (int i = 0; i < 3; ++i) AddOne();
  std::vector<float> keys = RandomKey();
  const std::vector<float> other = RandomKey();
  keys.insert(keys.end(), other.begin(), other.end());
  ClusterMoments moments = GetParam() ? MomentsOf(keys, kLoadDim, keys) : MomentsOf(keys, kLoadDim);
  moments.variance = std::numeric_limits<float>::quiet_NaN();
  Both([&](ClusterIndex& index) { index.Set(1, moments); });
  Take();
  loaded.Unload();
  EXPECT_EQ(Load(), 0);
}

TEST_P(ClusterIndexLoadTest, WhatHasNoRowOfItsOwnIsMissing) {
  for (int i = 0; i < 40; ++i) AddOne();
  Take();
  std::vector<IndexRow> stored = older;
  stored.erase(stored.begin() + 3);                           // of cluster 4
  stored[10].entry_count += 1;                                // of cluster 12
  stored[20].row[1] = static_cast<char>(~stored[20].row[1]);  // the scale of cluster 22
  stored[30].row.pop_back();                                  // of cluster 32
  older = stored;
  loaded.Unload();
  EXPECT_EQ(Load(), 4);
  loaded.MarkMissing();
  for (std::size_t slot = 0; slot < loaded.slot_count(); ++slot) {
    const std::int64_t id = loaded.id(slot).value();
    const bool lost = id == 4 || id == 12 || id == 22 || id == 32;
    EXPECT_EQ(loaded.flags(slot).missing, lost) << id;
  }
  // That it is missing is worth a row.
  EXPECT_EQ(loaded.TakeChanged().size(), 4U);
}

INSTANTIATE_TEST_SUITE_P(WithValues, ClusterIndexLoadTest, testing::Bool());

}  // namespace
}  // namespace cairn::compute
