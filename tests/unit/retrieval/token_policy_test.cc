#include "compute-node/retrieval/baselines/token_policy.h"

#include <limits>
#include <set>

#include <gtest/gtest.h>

#include "compute-node/retrieval/baselines/token_scores.h"
#include "compute-node/retrieval/policy_registry.h"
#include "tests/unit/retrieval/policy_driver.h"

namespace cairn::compute {
namespace {

TEST(TokenScoresTest, TheBestComeFirstAndEqualOnesInTheirOrder) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> scores = {1, kNan, 3, 2, 3, kNan, -1};
  EXPECT_EQ(BestIndices(scores, 4), (std::vector<std::int64_t>{2, 4, 3, 0}));
  scores = {1, kNan, 3};
  EXPECT_EQ(BestIndices(scores, 3), (std::vector<std::int64_t>{2, 0, 1}));
  EXPECT_TRUE(BestIndices(scores, 0).empty());
}

TEST(TokenScoresTest, DotTakesEveryNumber) {
  const std::vector<float> ones(37, 1.0F);
  EXPECT_EQ(Dot(ones.data(), ones.data(), 37), 37.0F);
  EXPECT_EQ(Dot(ones.data(), ones.data(), 3), 3.0F);
}

// A prompt of 401 tokens of one layer and head, all keys zero but those of `special`.
class TokenPolicyTest : public testing::Test {
 protected:
  TokenPolicyTest() {
    options.layout = {
        .layer_count = 1, .head_count = 1, .head_dim = 8, .kv_format = KvFormat::kF32};
    options.group_size = 2;
    options.part_bytes_max = 65536;
    options.selection.select_tokens_min = 64;
    options.selection.select_tokens_max = 64;
  }

  std::set<std::int64_t> Chosen(std::string_view name,
                                const std::map<std::int64_t, std::vector<float>>& special,
                                const std::vector<float>& queries) {
    const std::unique_ptr<RetrievalPolicy> policy = MakePolicy(name, options).value();
    constexpr std::int64_t kStored = 384;
    std::vector<float> keys(static_cast<std::size_t>(kStored * 8), 0.0F);
    for (const auto& [position, key] : special) {
      std::copy(key.begin(), key.end(), keys.begin() + position * 8);
    }
    policy->keeper().Store({.layer = 0, .first_position = 0, .token_count = kStored, .keys = keys});
    std::set<std::int64_t> chosen;
    for (const FetchSlice& slice : policy->selector().Select({.layer = 0,
                                   .stored_token_count = kStored,
                                   .first_position = 400,
                                   .token_count = 1,
                                   .queries = queries})) {
      for (const PlannedCluster& cluster : slice.clusters) {
        for (const std::int32_t index : cluster.attended) {
          chosen.insert(cluster.positions.at(index));
        }
        if (cluster.attended.empty()) {
          cluster.positions.ForEach([&](std::int64_t position) { chosen.insert(position); });
        }
      }
    }
    return chosen;
  }

  PolicyOptions options;
};

TEST_F(TokenPolicyTest, FindsTheTokensThatQueriesPointTo) {
  const std::vector<float> first = {9, 0, 0, 0, 0, 0, 0, 0};
  const std::vector<float> queries = {9, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0};
  for (const char* name : {"oracle", "no-cluster"}) {
    const std::set<std::int64_t> chosen = Chosen(name, {{200, first}, {383, first}}, queries);
    EXPECT_TRUE(chosen.contains(200)) << name;
    EXPECT_TRUE(chosen.contains(383)) << name;
    EXPECT_EQ(chosen.size(), 64 - 17U) << name;
  }
}

TEST_F(TokenPolicyTest, TheSumOfQueriesMissesWhatOneHeadOfTheGroupWants) {
  // The heads cancel out along the first axis, where one token lies.
  const std::vector<float> queries = {90, 1, 0, 0, 0, 0, 0, 0, -90, 1, 0, 0, 0, 0, 0, 0};
  std::map<std::int64_t, std::vector<float>> special;
  special[200] = {3, -1, 0, 0, 0, 0, 0, 0};
  EXPECT_TRUE(Chosen("oracle", special, queries).contains(200));
  EXPECT_FALSE(Chosen("no-cluster", special, queries).contains(200));
}

TEST_F(TokenPolicyTest, KeysThatAreNotNumbersCountAsZero) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::map<std::int64_t, std::vector<float>> special;
  special[200] = {9, 0, 0, 0, 0, 0, 0, 0};
  special[300] = {kNan, kInfinity, 0, 0, 0, 0, 0, 0};
  const std::vector<float> queries = {9, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0};
  for (const char* name : {"oracle", "no-cluster"}) {
    const std::set<std::int64_t> chosen = Chosen(name, special, queries);
    EXPECT_TRUE(chosen.contains(200)) << name;
    EXPECT_FALSE(chosen.contains(300)) << name;
  }
}

TEST_F(TokenPolicyTest, ClustersThatDoNotFollowEachOtherAreRefused) {
  const std::unique_ptr<RetrievalPolicy> policy = MakePolicy("oracle", options).value();
  const auto cluster = [](std::int32_t head, std::int64_t first, std::int64_t count) {
    return LoadedCluster{.cluster = {head, ClusterId(first + 1)},
                         .positions = Positions::Range(first, count),
                         .stored_count = count,
                         .keys = std::vector<float>(static_cast<std::size_t>(count * 8))};
  };
  using Clusters = std::vector<LoadedCluster>;
  EXPECT_TRUE(policy->keeper().Rebuild(0, Clusters{cluster(0, 0, 16), cluster(0, 16, 3)}).ok());
  EXPECT_EQ(policy->keeper().Rebuild(0, Clusters{cluster(0, 0, 16), cluster(0, 17, 3)}).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(policy->keeper().Rebuild(0, Clusters{cluster(1, 0, 16)}).code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace cairn::compute
