// What holds for kvswap alone; what holds for all policies is in baseline_policies_test.cc.
#include "compute-node/retrieval/kvswap/kvswap_policy.h"

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "compute-node/retrieval/policy_registry.h"
#include "tests/tools/seed.h"
#include "tests/unit/retrieval/policy_driver.h"

namespace cairn::compute {
namespace {

class KvSwapPolicyTest : public testing::Test {
 protected:
  const std::uint64_t seed = test::TestSeed();
  PolicyOptions options = DriverOptions();
};

TEST_F(KvSwapPolicyTest, SmallKeysFindWhatIsAttended) {
  options.selection.select_percent = 1;
  options.selection.cluster_target_entries = 1;
  PolicyDriver driver("kvswap", options, seed);
  PolicyDriver random("random", options, seed);
  driver.Prefill(900);
  random.Prefill(900);
  double recall = 0;
  double random_recall = 0;
  for (int i = 0; i < 50; ++i) {
    recall += driver.Recall();
    random_recall += random.Recall();
    driver.Step();
    random.Step();
  }
  EXPECT_GT(recall, 4 * random_recall);
}

TEST_F(KvSwapPolicyTest, SmallKeysComeBackWithoutKeys) {
  PolicyDriver driver("kvswap", options, seed);
  EXPECT_FALSE(driver.policy().traits().rebuilds_from_keys);
  driver.Prefill(500);
  driver.Step(100);
  ASSERT_TRUE(driver.Reopen().ok());
  EXPECT_EQ(driver.CountWithoutRow(), 0);
}

TEST_F(KvSwapPolicyTest, WhatATokenTakesIsKnownBefore) {
  options.small_keys = KeyCodeShape::Even(1, 8);
  PolicyDriver driver("kvswap", options, seed);
  EXPECT_EQ(driver.policy().keeper().token_memory_bytes(), options.layout.layer_count * 32);
  driver.Prefill(1000);
  const std::int64_t before = driver.policy().keeper().memory_bytes();
  driver.Prefill(8 * SmallKeys::kBlockRows);
  const std::int64_t added = driver.policy().keeper().memory_bytes() - before;
  EXPECT_GE(added, std::int64_t{options.layout.layer_count} * 32 * 7 * SmallKeys::kBlockRows);
}

TEST_F(KvSwapPolicyTest, ASmallKeysShapeIsReadFromAStoredState) {
  options.small_keys = KeyCodeShape::Even(1, 4);
  PolicyDriver driver("kvswap", options, seed);
  driver.Prefill(500);
  const PutPolicyState saved = driver.policy().keeper().SaveState();
  EXPECT_EQ(KvSwapPolicy::StoredShape(saved.version, saved.state), options.small_keys);
  EXPECT_EQ(KvSwapPolicy::StoredShape(saved.version + 1, saved.state), std::nullopt);
  EXPECT_EQ(KvSwapPolicy::StoredShape(saved.version, saved.state.substr(0, 8)), std::nullopt);
}

TEST_F(KvSwapPolicyTest, GroupsThatLostTheirRowsAreReadAndCodedAnew) {
  PolicyDriver driver("kvswap", options, seed);
  PolicyDriver whole("kvswap", options, seed);
  driver.Prefill(500);
  whole.Prefill(500);
  ASSERT_TRUE(driver.Reopen().ok());
  driver.LoseRows([](const ClusterRef& cluster) { return cluster.cluster_id.value() % 2 == 0; });
  ASSERT_TRUE(driver.Reopen().ok());
  EXPECT_GT(driver.CountWithoutRow(), 20);
  // A step reads as many of them as half of what it selects has room for.
  driver.Step(40);
  whole.Step(40);
  ASSERT_TRUE(driver.Reopen().ok());
  EXPECT_EQ(driver.CountWithoutRow(), 0);
  const auto expected = whole.Plan();
  for (const auto& [key, attended] : driver.Plan()) {
    EXPECT_EQ(attended.positions, expected.at(key).positions);
  }
}

TEST_F(KvSwapPolicyTest, ShortPromptsLearnTheirBasisFromASingleStep) {
  PolicyDriver driver("kvswap", options, seed);
  for (int i = 0; i < 4; ++i) driver.Prefill(50);
  ASSERT_TRUE(driver.Reopen().ok());
  EXPECT_GT(driver.CountWithoutRow(), 10);
  driver.Step(60);
  ASSERT_TRUE(driver.Reopen().ok());
  EXPECT_EQ(driver.CountWithoutRow(), 0);
}

TEST_F(KvSwapPolicyTest, AConversationKeepsItsSmallKeys) {
  options.small_keys = *KeyCodeShape::Parse("4");
  PolicyDriver driver("kvswap", options, seed);
  driver.Prefill(400);
  const PutPolicyState saved = driver.policy().keeper().SaveState();
  const std::vector<std::int64_t> ids = driver.policy().keeper().NextClusterIds();
  options.small_keys = KeyCodeShape();
  KvSwapPolicy other(options);
  EXPECT_NE(other.shape(), *KeyCodeShape::Parse("4"));
  ASSERT_TRUE(other.RestoreState({saved.version, saved.state, ids, 400, 400}).ok());
  EXPECT_EQ(other.shape(), *KeyCodeShape::Parse("4"));
}

TEST_F(KvSwapPolicyTest, RowsFromDiskAreChecked) {
  PolicyDriver driver("kvswap", options, seed);
  driver.Prefill(300);
  ASSERT_TRUE(driver.Reopen().ok());
  KvSwapPolicy& policy = dynamic_cast<KvSwapPolicy&>(driver.policy());
  ThreadPool pool(1);
  const std::string row(static_cast<std::size_t>(policy.shape().RowBytes()), 'x');
  const auto restore = [&](const IndexRecord& record) {
    return policy.RestoreIndex(0, {&record, 1}, nullptr, pool).code();
  };
  EXPECT_EQ(restore({{kAllHeads, ClusterId(1)}, 1, false, row}), absl::StatusCode::kOk);
  EXPECT_EQ(restore({{kAllHeads, ClusterId(1)}, 2, false, row}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(restore({{kAllHeads, ClusterId(1)}, 1, false, ""}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(restore({{0, ClusterId(1)}, 1, false, row}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(restore({{kAllHeads, ClusterId(7)}, 1, false, row}),
            absl::StatusCode::kInvalidArgument);
  // As many as a conversation of these heads has in all.
  const std::vector<IndexRecord> of_heads = {{{0, ClusterId(1)}, 8, false, row},
                                             {{1, ClusterId(1)}, 8, false, row}};
  EXPECT_EQ(KvSwapPolicy(options).RestoreIndex(0, of_heads, nullptr, pool).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(restore({{kAllHeads, ClusterId(1)}, std::int64_t{1} << 31, false, row}),
            absl::StatusCode::kInvalidArgument);
  const std::vector<ClusterInfo> foreign = {{{1, ClusterId(1)}, Positions::Range(0, 8)}};
  EXPECT_EQ(policy.RestoreIndex(0, {}, &foreign, pool).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(KvSwapPolicyTest, ShapesThatDoNotFitTheModelAreRefused) {
  EXPECT_EQ(KeyCodeShape::Parse("22211")->ToString(), "22211");
  for (const char* digits : {"", "5", "202", "2a", "0"}) {
    EXPECT_FALSE(KeyCodeShape::Parse(digits).has_value()) << digits;
  }
  EXPECT_FALSE(KeyCodeShape::Parse(std::string(33, '1')).has_value());
  const auto refusal = [&](const char* digits) {
    options.small_keys = *KeyCodeShape::Parse(digits);
    const absl::Status status = KvSwapPolicy(options).RestoreState({});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return Message(status);
  };
  EXPECT_NE(refusal("22").find("small_key_bits 22 are 64 axes"), std::string::npos);
  options.selection.cluster_target_entries = 64;
  options.small_keys = *KeyCodeShape::Parse("8");
  EXPECT_TRUE(KvSwapPolicy(options).RestoreState({}).ok());
  options.layout.head_count = 4;
  options.layout.head_dim = 256;
  EXPECT_NE(refusal("88888888").find("set cluster_target_entries"), std::string::npos);
  options.layout.layer_count = 64;
  options.selection.cluster_target_entries = 8;
  EXPECT_NE(refusal("2222").find("at most 4194304 are stored"), std::string::npos);
  options.small_keys = KeyCodeShape();
  EXPECT_TRUE(KvSwapPolicy(options).RestoreState({}).ok());
  options.layout.head_dim = 512;
  EXPECT_NE(refusal("2").find("at most 1024 numbers"), std::string::npos);
}

TEST_F(KvSwapPolicyTest, AConversationOpensWhateverNewOnesHave) {
  options.selection.cluster_target_entries = 64;
  PolicyDriver driver("kvswap", options, seed);
  driver.Prefill(400);
  const PutPolicyState saved = driver.policy().keeper().SaveState();
  const std::vector<std::int64_t> ids = driver.policy().keeper().NextClusterIds();
  options.small_keys = *KeyCodeShape::Parse("22");  // which no conversation may have
  KvSwapPolicy other(options);
  EXPECT_TRUE(other.RestoreState({saved.version, saved.state, ids, 400, 400}).ok());
}

TEST_F(KvSwapPolicyTest, WhatCouldNotBeSentLeavesAgain) {
  KvSwapPolicy policy(options);
  const auto keys = [&](std::int64_t count) {
    return std::vector<float>(
        static_cast<std::size_t>(count * options.layout.head_count * options.layout.head_dim),
        0.5F);
  };
  for (const std::int64_t count : {200, 200, 230}) {
    const std::vector<float> leaving = keys(count);
    const StoreActions actions =
        policy.Store({.layer = 0, .first_position = 0, .token_count = count, .keys = leaving});
    std::int64_t appended = 0;
    for (const Assignment& each : actions.appended) appended += each.positions.count();
    EXPECT_EQ(appended, count);
  }
}

TEST_F(KvSwapPolicyTest, SinksAreAttendedHoweverLargeGroupsAre) {
  options.selection.cluster_target_entries = 64;
  options.selection.select_tokens_min = 64;
  options.selection.select_percent = 1;
  PolicyDriver driver("kvswap", options, seed);
  driver.Prefill(700);
  for (const auto& [key, attended] : driver.Plan()) EXPECT_TRUE(attended.positions.contains(0));
}

}  // namespace
}  // namespace cairn::compute
