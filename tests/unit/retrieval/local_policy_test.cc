#include "compute-node/retrieval/baselines/local_policy.h"

#include <limits>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "compute-node/retrieval/policy_registry.h"
#include "tests/tools/seed.h"
#include "tests/unit/retrieval/policy_driver.h"

namespace cairn::compute {
namespace {

// One layer and head; keys of a token point along the axis that the test says.
class LocalPolicyTest : public testing::Test {
 protected:
  static constexpr std::int64_t kDim = 8;

  LocalPolicyTest() {
    options.layout = {
        .layer_count = 1, .head_count = 1, .head_dim = kDim, .kv_format = KvFormat::kF32};
    options.part_bytes_max = 65536;
    options.selection.select_tokens_min = 64;
    options.selection.select_tokens_max = 64;
    policy = MakePolicy("local-cluster", options).value();
  }

  std::vector<float> Key(std::size_t axis, float length = 1) {
    std::normal_distribution<float> noise(0, 0.01F);
    std::vector<float> key(kDim);
    for (float& value : key) value = noise(random);
    key[axis] += length;
    return key;
  }
  // Entries [stored, stored + count), each along one of the first six axes in turn.
  StoreActions Store(std::int64_t count, bool of_prompt) {
    std::vector<float> keys;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::vector<float> key = Key(static_cast<std::size_t>((stored + i) % 6));
      keys.insert(keys.end(), key.begin(), key.end());
    }
    return StoreKeys(keys, of_prompt);
  }
  StoreActions StoreKeys(const std::vector<float>& keys, bool of_prompt) {
    const std::int64_t count = std::ssize(keys) / kDim;
    StoreActions actions = policy->keeper().Store(
        {.first_position = stored, .token_count = count, .keys = keys, .of_prompt = of_prompt});
    stored += count;
    return actions;
  }
  SelectionInput Input(const std::vector<float>& query) const {
    return {.stored_token_count = stored, .first_position = stored + 16, .queries = query};
  }
  std::vector<PlannedCluster> Planned(const std::vector<float>& query) const {
    std::vector<PlannedCluster> planned;
    for (const FetchSlice& slice : policy->selector().Select(Input(query))) {
      planned.insert(planned.end(), slice.clusters.begin(), slice.clusters.end());
    }
    return planned;
  }
  static std::set<ClusterId> IdsOf(const StoreActions& actions) {
    std::set<ClusterId> ids;
    for (const Assignment& assignment : actions.appended) ids.insert(assignment.cluster.cluster_id);
    return ids;
  }

  std::mt19937_64 random{test::TestSeed()};
  PolicyOptions options;
  std::unique_ptr<RetrievalPolicy> policy;
  std::int64_t stored = 0;
};

TEST_F(LocalPolicyTest, A320thEntryMakesClustersOfAllThatWait) {
  for (const auto& [name, count] :
       std::map<std::string, std::size_t>{{"local-cluster", 8}, {"local-cluster-40", 40}}) {
    policy = MakePolicy(name, options).value();
    stored = 0;
    EXPECT_EQ(IdsOf(Store(204, true)).size(), 1 + (name == "local-cluster" ? 5U : 25U));
    for (int i = 0; i < 39; ++i) {
      const StoreActions actions = Store(8, false);
      EXPECT_TRUE(actions.appended.empty());
      EXPECT_EQ(actions.held.size(), 8U);
    }
    const StoreActions actions = Store(8, false);
    EXPECT_TRUE(actions.held.empty());
    std::int64_t entries = 0;
    for (const Assignment& made : actions.appended) entries += made.positions.count();
    EXPECT_EQ(entries, 320);
    // Equal points may leave a centroid without any, and K-means halves none here.
    EXPECT_LE(IdsOf(actions).size(), count);
    EXPECT_GE(IdsOf(actions).size(), 6U);
    EXPECT_EQ(Store(8, false).held.size(), 8U);
  }
}

TEST_F(LocalPolicyTest, ClustersAreTakenByTheirCentroidAndTheLastOneInPart) {
  Store(604, true);
  std::vector<float> query(kDim, 0.0F);
  query[2] = 1;
  const std::vector<PlannedCluster> planned = Planned(query);
  ASSERT_GE(planned.size(), 2U);
  EXPECT_EQ(planned[0].positions, Positions::Range(0, 4));
  std::int64_t attended = 0;
  for (std::size_t i = 0; i < planned.size(); ++i) {
    const PlannedCluster& cluster = planned[i];
    attended += cluster.attended.empty() ? cluster.entry_count : std::ssize(cluster.attended);
    EXPECT_TRUE(cluster.attended.empty() || i + 1 == planned.size());
    if (i > 0) {
      cluster.positions.ForEach([](std::int64_t position) { EXPECT_EQ(position % 6, 2); });
    }
  }
  EXPECT_EQ(attended, 64 - 17);
}

TEST_F(LocalPolicyTest, AWaitingEntryIsTakenIfItsKeyIsBetterThanCentroids) {
  Store(304, true);
  std::vector<float> keys = Key(7, 5);
  const std::vector<float> other = Key(7, -5);
  keys.insert(keys.end(), other.begin(), other.end());
  StoreKeys(keys, false);
  std::vector<float> query(kDim, 0.0F);
  query[7] = 1;
  const auto held = policy->selector().SelectHeld(Input(query));
  ASSERT_TRUE(held.has_value());
  EXPECT_EQ((*held)[0], Positions::Range(304, 1));
  SelectionInput prompt = Input(query);
  prompt.token_count = 2;
  EXPECT_FALSE(policy->selector().SelectHeld(prompt).has_value());
}

TEST_F(LocalPolicyTest, OldClustersAreNeverTouched) {
  std::set<ClusterId> ids = IdsOf(Store(300, true));
  for (int i = 0; i < 200; ++i) {
    const StoreActions actions = i % 50 == 49 ? Store(40, true) : Store(8, false);
    for (const ClusterId id : IdsOf(actions)) EXPECT_TRUE(ids.insert(id).second) << id.value();
  }
}

TEST_F(LocalPolicyTest, AClusterFitsALargestPart) {
  options.part_bytes_max = 64 * options.layout.EntryBytes(0);
  policy = MakePolicy("local-cluster", options).value();
  const std::vector<float> keys(static_cast<std::size_t>(1004 * kDim), 1.0F);
  for (const Assignment& made : StoreKeys(keys, true).appended) {
    EXPECT_LE(made.positions.count(), 64);
  }
}

TEST_F(LocalPolicyTest, NumbersThatAreNoneAreStoredLikeOthers) {
  std::vector<float> keys(static_cast<std::size_t>(200 * kDim), 1.0F);
  keys[100] = std::numeric_limits<float>::quiet_NaN();
  keys[900] = std::numeric_limits<float>::infinity();
  StoreKeys(keys, true);
  StoreKeys({keys.begin() + 96, keys.begin() + 96 + 8 * kDim}, false);
  const std::vector<float> query(kDim, 1.0F);
  std::int64_t attended = (*policy->selector().SelectHeld(Input(query)))[0].count();
  for (const PlannedCluster& cluster : Planned(query)) {
    attended += cluster.attended.empty() ? cluster.entry_count : std::ssize(cluster.attended);
  }
  EXPECT_EQ(attended, 64 - 17);
}

TEST_F(LocalPolicyTest, WhatTheStoreCannotHaveIsRefused) {
  const auto cluster = [](std::int32_t head, std::int64_t id, std::int64_t first,
                          std::int64_t count, std::int64_t stored_count) {
    return LoadedCluster{.cluster = {head, ClusterId(id)},
                         .positions = Positions::Range(first, count),
                         .stored_count = stored_count,
                         .keys = std::vector<float>(static_cast<std::size_t>(count * kDim))};
  };
  using Clusters = std::vector<LoadedCluster>;
  const std::vector<std::int64_t> ids = {6, 1};
  const auto rebuild = [&](const Clusters& clusters) {
    const PutPolicyState saved = policy->keeper().SaveState();
    EXPECT_TRUE(policy->keeper().RestoreState({saved.version, saved.state, ids, 100, 100}).ok());
    return policy->keeper().Rebuild(0, clusters).code();
  };
  EXPECT_EQ(rebuild({cluster(0, 1, 30, 5, 0), cluster(0, 2, 0, 4, 4), cluster(0, 5, 4, 26, 26)}),
            absl::StatusCode::kOk);
  EXPECT_EQ(rebuild({cluster(0, 6, 4, 3, 3)}), absl::StatusCode::kDataLoss);  // no such id yet
  EXPECT_EQ(rebuild({cluster(0, -3, 4, 3, 3)}), absl::StatusCode::kDataLoss);
  EXPECT_EQ(rebuild({cluster(1, 3, 4, 3, 3)}), absl::StatusCode::kDataLoss);  // no such head
  EXPECT_EQ(rebuild({cluster(0, 3, 2, 6, 6)}), absl::StatusCode::kDataLoss);  // sinks and others
  EXPECT_EQ(rebuild({cluster(0, 3, 4, 3, 2)}), absl::StatusCode::kDataLoss);  // held for a cluster
  EXPECT_EQ(rebuild({cluster(0, 1, 4, 3, 3)}), absl::StatusCode::kDataLoss);  // stored, and waits
  EXPECT_EQ(rebuild({cluster(0, 2, 0, 2, 2), cluster(0, 3, 2, 2, 2)}),
            absl::StatusCode::kDataLoss);  // sinks twice
  EXPECT_EQ(policy->keeper().RestoreHeld(0, {{0, ClusterId(3)}, 9}).code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace cairn::compute
