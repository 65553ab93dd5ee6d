#include "compute-node/retrieval/dynakv/dynakv_policy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "tests/tools/seed.h"
#include "tests/unit/retrieval/small_dynakv.h"

namespace cairn::compute {
namespace {

// Counts are exact; centroids and variances are those of the entries, up to 8 bits.
void CheckMoments(PolicyWorld& world) {
  const EntryLayout& layout = world.options().layout;
  double squares = 0;
  std::int64_t dimension_count = 0;
  for (std::int32_t layer = 0; layer < layout.layer_count; ++layer) {
    for (std::int32_t head = 0; head < layout.head_count; ++head) {
      std::map<ClusterId, std::vector<float>> keys;
      for (const auto& [position, id] : world.places(layer, head)) {
        const std::span<const float> key = world.Key(layer, head, position);
        keys[id].insert(keys[id].end(), key.begin(), key.end());
      }
      for (auto& [id, rows] : keys) DynaKvOf(world).metric(layer, head).StretchKeys(rows);
      const ClusterIndex& index = DynaKvOf(world).index(layer, head);
      ASSERT_EQ(index.cluster_count(), std::ssize(keys));
      for (const auto& [id, rows] : keys) {
        const std::optional<std::size_t> slot = index.Find(id);
        ASSERT_TRUE(slot.has_value()) << id.value();
        const ClusterMoments expected = MomentsOf(rows, layout.head_dim);
        ASSERT_EQ(index.count(*slot), expected.count);
        const ClusterIndex::Flags flags = index.flags(*slot);
        if (flags.stale || flags.pinned) continue;
        const std::vector<float> centroid = index.Centroid(*slot);
        for (std::size_t d = 0; d < centroid.size(); ++d) {
          const double off = double{centroid[d]} - double{expected.centroid[d]};
          ASSERT_LT(std::abs(off), 0.4) << "cluster " << id.value();
          squares += off * off;
        }
        dimension_count += std::ssize(centroid);
        // With each entry by the distance from a rounded centroid.
        ASSERT_NEAR(index.variance(*slot), expected.variance, 0.25 * expected.variance + 0.02);
      }
    }
  }
  // Each entry that comes rounds a centroid to steps of about 0.08. One that did not follow what
  // joined it would be off by a part of what keys of a cluster differ by, 0.3.
  if (dimension_count > 0) {
    const double off = std::sqrt(squares / static_cast<double>(dimension_count));
    ASSERT_LT(off, 0.08);
  }
}

// What a cluster's entries are estimated by: key, value and count.
struct ClusterMean {
  std::vector<float> key;
  std::vector<float> value;
  float count = 0;
};
ClusterMean MeanOf(const EntrySelector& policy, std::int32_t layer, std::int32_t head,
                   ClusterId id) {
  KvBlock block;
  ClusterMean mean;
  policy.LoadMeans(layer, head, {&id, 1}, block, {&mean.count, 1});
  for (std::int64_t d = 0; d < block.head_dim; ++d) {
    mean.key.push_back(block.keys[d * kAttentionBlockEntries]);
    mean.value.push_back(block.values[d]);
  }
  return mean;
}

// Means of values are those of the entries, up to 8 bits at every append, and so are those of keys
// as they were before they were stretched.
void CheckMeans(PolicyWorld& world) {
  const EntryLayout& layout = world.options().layout;
  for (std::int32_t layer = 0; layer < layout.layer_count; ++layer) {
    for (std::int32_t head = 0; head < layout.head_count; ++head) {
      std::map<ClusterId, std::vector<float>> keys;
      std::map<ClusterId, std::vector<float>> values;
      for (const auto& [position, id] : world.places(layer, head)) {
        const std::span<const float> key = world.Key(layer, head, position);
        const std::vector<float> value = PolicyWorld::ValueOf(key);
        keys[id].insert(keys[id].end(), key.begin(), key.end());
        values[id].insert(values[id].end(), value.begin(), value.end());
      }
      const ClusterIndex& index = DynaKvOf(world).index(layer, head);
      for (const auto& [id, rows] : values) {
        const ClusterIndex::Flags flags = index.flags(index.Find(id).value());
        if (flags.stale || flags.missing) continue;
        const ClusterMoments expected = MomentsOf(keys[id], layout.head_dim, rows);
        const ClusterMean mean = MeanOf(world.policy().selector(), layer, head, id);
        ASSERT_EQ(mean.count, static_cast<float>(expected.count));
        for (std::size_t d = 0; d < mean.value.size(); ++d) {
          ASSERT_NEAR(mean.value[d], expected.value[d], 1.0) << "cluster " << id.value();
          ASSERT_NEAR(mean.key[d], expected.centroid[d], 1.0) << "cluster " << id.value();
        }
      }
    }
  }
}

// Steps after which enough of what a prompt of less than kChunkEntriesMin had held back was split.
// Where 192 tokens are attended there is room for it from the first one on.
constexpr int kDrainStepsMax = 20;

TEST(DynaKvPolicyTest, RandomHistoriesKeepEveryEntryInOnePlace) {
  const std::uint64_t seed = test::TestSeed();
  std::mt19937_64 random(seed);
  for (int history = 0; history < 6; ++history) {
    PolicyOptions options = SmallOptions();
    options.selection.estimate_percent = history % 2 == 0 ? 0 : 40;
    PolicyWorld world(options, MakeDynaKv, random());
    int steps_behind_prompt = kDrainStepsMax;
    for (int i = 0; i < 25; ++i) {
      const std::uint64_t kind = random() % 9;
      if (kind == 0) {
        steps_behind_prompt = 0;
        world.Prefill(1 + static_cast<std::int64_t>(random() % 300));
      } else if (kind == 1) {
        world.FailedStep();
      } else if (kind == 2) {
        world.Restart();
      } else if (kind == 8) {
        world.Regroup();
      } else if (kind == 3 && world.token_count() > 1) {
        const std::uint64_t count = static_cast<std::uint64_t>(world.token_count());
        world.ForkAt(1 + static_cast<std::int64_t>(random() % count));
      } else {
        const int steps = static_cast<int>(random() % 60);
        for (int step = 0; step < steps; ++step) world.Step();
        steps_behind_prompt += steps;
        // But for the step that clusters the first keys, behind kPartitionEntriesMin and what the
        // window and the sinks hold; and while steps read what a short prompt made them hold back.
        if (steps > 0 && steps_behind_prompt > kDrainStepsMax &&
            world.token_count() > kPartitionEntriesMin + 80) {
          EXPECT_LE(world.attended_count_max(),
                    SelectedTokens(world.options().selection, world.token_count()));
        }
      }
      world.CheckPlaces();
      CheckMoments(world);
      if (history % 2 == 1) CheckMeans(world);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

PolicyOptions EstimatingOptions(double percent) {
  PolicyOptions options = SmallOptions();
  options.selection.estimate_percent = percent;
  return options;
}

TEST(DynaKvPolicyTest, ARestartKeepsMeansToTheLastBit) {
  const std::uint64_t seed = test::TestSeed();
  PolicyWorld world(EstimatingOptions(100), MakeDynaKv, seed);
  world.Prefill(200);
  for (int step = 0; step < 150; ++step) world.Step();
  const auto means = [&world] {
    std::vector<std::vector<float>> all;
    for (const auto& [position, id] : world.places(1, 1)) {
      const ClusterMean mean = MeanOf(world.policy().selector(), 1, 1, id);
      all.push_back(mean.key);
      all.push_back(mean.value);
      all.push_back({mean.count});
    }
    return all;
  };
  world.FailedStep();  // so that nothing is left to be stored
  const std::vector<std::vector<float>> before = means();
  world.Restart();
  EXPECT_EQ(means(), before);
}

TEST(DynaKvPolicyTest, WhatIsNotReadIsEstimatedBestFirst) {
  for (const double percent : {100.0, 25.0, 0.0}) {
    PolicyWorld world(EstimatingOptions(percent), MakeDynaKv, 13);
    world.Prefill(900);
    ThreadPool pool(2);
    std::vector<float> queries(std::size_t{2} * 2 * 16);
    for (std::size_t i = 0; i < queries.size(); ++i) {
      queries[i] = static_cast<float>(i * 7 % 11) - 5;
    }
    const SelectionInput input{.layer = 1,
                               .stored_token_count = 876,
                               .first_position = 900,
                               .token_count = 1,
                               .queries = queries,
                               .pool = &pool};
    const std::vector<FetchSlice> plan = world.policy().selector().Select(input);
    const std::vector<std::vector<ClusterId>> estimated =
        world.policy().selector().Estimate(input, plan);
    if (percent == 0) {
      EXPECT_TRUE(estimated.empty());
      continue;
    }
    ASSERT_EQ(estimated.size(), 2U);
    for (std::int32_t head = 0; head < 2; ++head) {
      const ClusterIndex& index = DynaKvOf(world).index(1, head);
      std::vector<float> query(16);
      for (std::size_t i = 0; i < 32; ++i) {
        query[i % 16] += queries[static_cast<std::size_t>(head) * 32 + i];
      }
      DynaKvOf(world).metric(1, head).StretchQuery(query);
      std::vector<float> scores(index.slot_count());
      index.Score(query, 0, scores);
      std::set<ClusterId> left;
      for (std::size_t slot = 0; slot < index.slot_count(); ++slot) left.insert(index.id(slot));
      for (const FetchSlice& slice : plan) {
        for (const PlannedCluster& planned : slice.clusters) {
          if (planned.cluster.head != head) continue;
          EXPECT_EQ(left.erase(planned.cluster.cluster_id), 1U);
        }
      }
      const std::vector<ClusterId>& some = estimated[static_cast<std::size_t>(head)];
      EXPECT_EQ(static_cast<double>(some.size()),
                std::ceil(static_cast<double>(left.size()) * percent / 100));
      EXPECT_TRUE(std::is_sorted(some.begin(), some.end()));
      float worst = std::numeric_limits<float>::infinity();
      for (const ClusterId id : some) {
        EXPECT_EQ(left.erase(id), 1U);
        worst = std::min(worst, scores[index.Find(id).value()]);
      }
      for (const ClusterId id : left) EXPECT_LE(scores[index.Find(id).value()], worst);
    }
  }
}

// The clusters of every (layer, head), as text.
std::string Describe(PolicyWorld& world) {
  std::string text;
  for (std::int32_t layer = 0; layer < world.options().layout.layer_count; ++layer) {
    for (std::int32_t head = 0; head < world.options().layout.head_count; ++head) {
      for (const auto& [position, id] : world.places(layer, head)) {
        text += fmt::format("{}:{} ", position, id);
      }
      text += "\n";
    }
  }
  return text;
}

TEST(DynaKvPolicyTest, RestartsAndFailedStepsChangeNothing) {
  const std::uint64_t seed = test::TestSeed();
  PolicyWorld through(SmallOptions(), MakeDynaKv, seed);
  PolicyWorld halting(SmallOptions(), MakeDynaKv, seed);
  through.Prefill(200);
  halting.Prefill(200);
  for (int step = 0; step < 400; ++step) {
    through.Step();
    halting.Step();
    ASSERT_EQ(through.attended(), halting.attended()) << step;
    if (step % 37 == 5) halting.Restart();
  }
  EXPECT_EQ(Describe(through), Describe(halting));
}

TEST(DynaKvPolicyTest, ClustersAdaptAndStaySmall) {
  PolicyWorld world(SmallOptions(), MakeDynaKv, 5);
  world.Prefill(200);
  const std::int64_t first_next_id = world.policy().keeper().NextClusterIds()[0];
  for (int step = 0; step < 800; ++step) world.Step();
  const ClusterIndex& index = DynaKvOf(world).index(0, 0);
  const std::int64_t made = world.policy().keeper().NextClusterIds()[0] - first_next_id;
  EXPECT_GT(made, 40);
  for (std::size_t slot = 0; slot < index.slot_count(); ++slot) {
    EXPECT_LE(index.count(slot), world.options().selection.cluster_entries_max());
  }
}

// Algorithm 1: an entry that would make its nearest cluster too wide waits until that is split.
TEST(DynaKvPolicyTest, AFarKeyWaitsForASplitAndANearOneJoins) {
  const PolicyOptions options = SmallOptions();
  const std::unique_ptr<RetrievalPolicy> policy = MakeDynaKv(options);
  constexpr std::int64_t kCount = 400;
  constexpr int kBunches = 40;
  const auto dim = static_cast<std::size_t>(options.layout.head_dim);
  const std::uint64_t seed = test::TestSeed();
  std::mt19937_64 random(seed);
  std::normal_distribution<float> noise(0, 0.1F);
  std::vector<float> bunches(kBunches * dim);
  for (float& number : bunches) number = 30 * noise(random);
  // Of both heads the same.
  const auto keys_of = [&](std::int64_t count, float spread, float away) {
    std::vector<float> keys;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::size_t bunch = static_cast<std::size_t>(i % kBunches) * dim;
      for (std::size_t d = 0; d < dim; ++d) {
        keys.push_back(bunches[bunch + d] + spread * noise(random) + (d == 0 ? away : 0));
      }
    }
    std::vector<float> both = keys;
    both.insert(both.end(), keys.begin(), keys.end());
    return both;
  };
  const std::vector<float> prompt = keys_of(kCount, 1, 0);
  policy->keeper().Store({.token_count = kCount, .keys = prompt, .of_prompt = true});
  const auto held_of = [&](std::int64_t position, float away) {
    const std::vector<float> key = keys_of(1, 0, away);
    return std::ssize(
        policy->keeper().Store({.first_position = position, .token_count = 1, .keys = key}).held);
  };
  EXPECT_EQ(held_of(kCount, 0), 0) << "seed " << seed;
  EXPECT_EQ(held_of(kCount + 1, 1.5F), options.layout.head_count) << "seed " << seed;
}

// The mean squared distance of all entries from their centroids.
double MeanVariance(PolicyWorld& world) {
  const ClusterIndex& index = DynaKvOf(world).index(0, 0);
  double sum = 0;
  for (std::size_t slot = 0; slot < index.slot_count(); ++slot) {
    if (!index.alive(slot) || index.flags(slot).pinned) continue;
    sum += static_cast<double>(index.variance(slot)) * static_cast<double>(index.count(slot));
  }
  return sum / static_cast<double>(index.entry_count());
}

TEST(DynaKvPolicyTest, ClusteringAPromptAnewMakesTighterClusters) {
  PolicyWorld world(SmallOptions(), MakeDynaKv, 9);
  for (int chunk = 0; chunk < 12; ++chunk) world.Prefill(256);
  const double before = MeanVariance(world);
  const std::int64_t clusters = DynaKvOf(world).index(0, 0).cluster_count();
  world.Regroup();
  EXPECT_LT(MeanVariance(world), 0.985 * before);
  EXPECT_LT(DynaKvOf(world).index(0, 0).cluster_count(), clusters * 5 / 4);
  world.CheckPlaces();
}

// The mean squared distance from centroids of dimensions [first, end), for the keys as they are.
double VarianceOf(PolicyWorld& world, std::size_t first, std::size_t end) {
  std::map<ClusterId, std::vector<std::int64_t>> members;
  for (const auto& [position, id] : world.places(0, 0)) {
    if (position >= kSinkTokens) members[id].push_back(position);
  }
  double sum = 0;
  for (const auto& [id, positions] : members) {
    for (std::size_t d = first; d < end; ++d) {
      double mean = 0;
      for (const std::int64_t at : positions) mean += static_cast<double>(world.Key(0, 0, at)[d]);
      mean /= static_cast<double>(positions.size());
      for (const std::int64_t at : positions) {
        sum += std::pow(static_cast<double>(world.Key(0, 0, at)[d]) - mean, 2);
      }
    }
  }
  return sum / static_cast<double>(end - first);
}

// PolicyWorld's queries are larger in the first quarter of the dimensions, its keys are not.
TEST(DynaKvPolicyTest, KeysAreNearWhereQueriesSeeNoDifference) {
  PolicyWorld world(SmallOptions(), MakeDynaKv, 12);
  world.Prefill(30);
  EXPECT_FALSE(DynaKvOf(world).metric(0, 0).has_learned());
  world.Prefill(600);
  ASSERT_TRUE(DynaKvOf(world).metric(0, 0).has_learned());
  EXPECT_LT(VarianceOf(world, 0, 4), 0.85 * VarianceOf(world, 4, 16));
  const std::vector<float> learned(DynaKvOf(world).metric(0, 0).numbers().begin(),
                                   DynaKvOf(world).metric(0, 0).numbers().end());
  world.Restart();
  world.Prefill(300);
  const std::span<const float> later = DynaKvOf(world).metric(0, 0).numbers();
  EXPECT_EQ(learned, std::vector<float>(later.begin(), later.end()));
}

TEST(DynaKvPolicyTest, ALargeHeadIsClusteredAnewInRegions) {
  const PolicyWorld::Make make = [](const PolicyOptions& options) {
    return std::make_unique<DynaKvPolicy>(options, 256);
  };
  PolicyWorld world(SmallOptions(), make, 10);
  for (int chunk = 0; chunk < 4; ++chunk) world.Prefill(256);
  std::int64_t entries = 0;
  std::int64_t regions = 0;
  for (const ClusterGroup& group : world.policy().keeper().Regroup(0)) {
    std::int64_t count = 0;
    for (const std::int64_t each : group.entry_counts) count += each;
    EXPECT_LE(count, 2 * 256);
    entries += count;
    ++regions;
  }
  EXPECT_GE(regions, 2 * 4);
  EXPECT_EQ(entries, 2 * (std::ssize(world.places(0, 0)) - kSinkTokens));
  world.Regroup();
  world.CheckPlaces();
  CheckMoments(world);
}

TEST(DynaKvPolicyTest, StatisticsCountEveryEntryButSinksOnce) {
  PolicyWorld world(SmallOptions(), MakeDynaKv, 11);
  world.Prefill(200);
  for (const HeadStatistics& head : world.policy().keeper().statistics().heads) {
    EXPECT_EQ(head.split_count, 0);
    EXPECT_EQ(head.held_count, 0);
  }
  for (int step = 0; step < 400; ++step) world.Step();
  const EntryLayout& layout = world.options().layout;
  const PolicyStatistics statistics = world.policy().keeper().statistics();
  ASSERT_EQ(std::ssize(statistics.heads), layout.layer_count * layout.head_count);
  std::int64_t splits = 0;
  for (std::int32_t layer = 0; layer < layout.layer_count; ++layer) {
    for (std::int32_t head = 0; head < layout.head_count; ++head) {
      const HeadStatistics& counted =
          statistics
              .heads[static_cast<std::size_t>(std::int64_t{layer} * layout.head_count + head)];
      std::map<ClusterId, std::vector<float>> keys;
      for (const auto& [position, id] : world.places(layer, head)) {
        if (position < kSinkTokens) continue;
        const std::span<const float> key = world.Key(layer, head, position);
        keys[id].insert(keys[id].end(), key.begin(), key.end());
      }
      for (auto& [id, rows] : keys) DynaKvOf(world).metric(layer, head).StretchKeys(rows);
      double sum = 0;
      double entries = 0;
      for (const auto& [id, rows] : keys) {
        const ClusterMoments moments = MomentsOf(rows, layout.head_dim);
        sum += static_cast<double>(moments.count) * static_cast<double>(moments.variance);
        entries += static_cast<double>(moments.count);
      }
      EXPECT_EQ(counted.cluster_count, std::ssize(keys));
      EXPECT_EQ(counted.entry_count, static_cast<std::int64_t>(entries));
      EXPECT_NEAR(counted.variance, sum / entries, 0.05 * sum / entries);
      EXPECT_EQ(counted.held_count, world.HeldCount(layer, head));
      splits += counted.split_count;
    }
  }
  EXPECT_GT(splits, 0);
}

TEST(DynaKvPolicyTest, APromptReadsEverything) {
  PolicyWorld world(SmallOptions(), MakeDynaKv, 6);
  world.Prefill(400);
  const std::vector<float> queries(std::size_t{2} * 2 * 16, 1.0F);
  std::int64_t entries = 0;
  for (const FetchSlice& slice : world.policy().selector().Select({.layer = 1,
                                 .stored_token_count = 384,
                                 .first_position = 400,
                                 .token_count = 5,
                                 .queries = queries,
                                 .pool = nullptr})) {
    for (const PlannedCluster& planned : slice.clusters) entries += planned.entry_count;
  }
  EXPECT_EQ(entries, 2 * std::ssize(world.places(1, 0)));
}

}  // namespace
}  // namespace cairn::compute
