// What holds for every policy that selects, over random keys.
#include <algorithm>
#include <memory>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "compute-node/retrieval/policy_registry.h"
#include "tests/tools/seed.h"
#include "tests/unit/retrieval/policy_driver.h"

namespace cairn::compute {
namespace {

class BaselinePolicyTest : public testing::TestWithParam<const char*> {
 protected:
  const std::uint64_t seed = test::TestSeed();
  PolicyOptions options = DriverOptions();
  std::mt19937_64 random{seed};
};

TEST_P(BaselinePolicyTest, AttendsEachPositionOnceAndNoMoreThanSelected) {
  PolicyDriver driver(GetParam(), options, seed);
  driver.Prefill(300);
  driver.Prefill(217);
  driver.Step(400);
  driver.Prefill(33);
  driver.Step(100);
}

TEST_P(BaselinePolicyTest, UsesWhatIsSelected) {
  PolicyDriver driver(GetParam(), options, seed);
  driver.Prefill(900);
  driver.Step(9);
  const std::int64_t selected = SelectedTokens(options.selection, driver.token_count() + 1);
  const std::int64_t recent = driver.token_count() + 1 - driver.stored_count();
  // What is left is less than a group.
  const std::int64_t left_free =
      GetParam() == std::string("kvswap") ? options.selection.cluster_target_entries - 1 : 1;
  for (const auto& [key, attended] : driver.Plan()) {
    EXPECT_GE(std::ssize(attended.positions) + recent, selected - left_free);
  }
}

TEST_P(BaselinePolicyTest, StepsFromTheFirstTokenOn) {
  PolicyDriver driver(GetParam(), options, seed);
  driver.Step(750);  // two batches of local clusters
}

TEST_P(BaselinePolicyTest, ReadsEverythingIfAllIsSelected) {
  options.selection.select_tokens_min = 1024;
  PolicyDriver driver(GetParam(), options, seed);
  driver.Prefill(500);
  driver.Step(450);
}

TEST_P(BaselinePolicyTest, PlansDependOnTokensAndSeedOnly) {
  ThreadPool pool(2);
  PolicyDriver driver(GetParam(), options, seed);
  PolicyDriver same(GetParam(), options, seed);
  driver.Prefill(600);
  same.Prefill(600);
  for (int i = 0; i < 20; ++i) {
    driver.Step(17);
    same.Step(17);
    const auto expected = driver.Plan();
    const auto plan = same.Plan(&pool);
    for (const auto& [key, attended] : plan) {
      EXPECT_EQ(attended.positions, expected.at(key).positions);
    }
  }
}

TEST_P(BaselinePolicyTest, ReopenedPlansAsBefore) {
  for (const std::int64_t prompt : {5, 30, 700}) {
    PolicyDriver driver(GetParam(), options, seed);
    PolicyDriver reopened(GetParam(), options, seed);
    driver.Prefill(prompt);
    reopened.Prefill(prompt);
    for (int i = 0; i < 12; ++i) {
      const std::int64_t steps = 1 + static_cast<std::int64_t>(random() % 60);
      driver.Step(steps);
      reopened.Step(steps);
      const absl::Status status = reopened.Reopen();
      ASSERT_TRUE(status.ok()) << Message(status);
      const auto expected = driver.Plan();
      for (const auto& [key, attended] : reopened.Plan()) {
        ASSERT_EQ(attended.positions, expected.at(key).positions) << "prompt " << prompt;
      }
    }
  }
}

TEST_P(BaselinePolicyTest, ForksOfForksGoOn) {
  for (int round = 0; round < 6; ++round) {
    PolicyDriver driver(GetParam(), options, seed);
    driver.Prefill(1 + static_cast<std::int64_t>(random() % 600));
    driver.Step(static_cast<std::int64_t>(random() % 400));
    for (int fork = 0; fork < 6 && !HasFailure(); ++fork) {
      const std::int64_t at = 1 + static_cast<std::int64_t>(
                                      random() % static_cast<std::uint64_t>(driver.token_count()));
      const absl::Status status = driver.Fork(at);
      ASSERT_TRUE(status.ok()) << Message(status);
      driver.Step(1 + static_cast<std::int64_t>(random() % 90));
      if (random() % 2 == 0) driver.Prefill(2 + static_cast<std::int64_t>(random() % 200));
    }
  }
}

TEST_P(BaselinePolicyTest, StatesFromDiskAreChecked) {
  const std::unique_ptr<RetrievalPolicy> policy = MakePolicy(GetParam(), options).value();
  const std::vector<std::int64_t> ids = policy->keeper().NextClusterIds();
  const PutPolicyState saved = policy->keeper().SaveState();
  const auto restore = [&](std::int32_t version, const std::string& state,
                           std::span<const std::int64_t> next_ids) {
    return policy->keeper().RestoreState({version, state, next_ids, 100, 100}).code();
  };
  EXPECT_EQ(restore(saved.version, saved.state, ids), absl::StatusCode::kOk);
  EXPECT_EQ(restore(99, saved.state, ids), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(restore(saved.version, saved.state + "x", ids), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(restore(saved.version, saved.state, std::span(ids).first(2)),
            absl::StatusCode::kInvalidArgument);
  if (saved.state.empty()) return;
  EXPECT_EQ(restore(saved.version, saved.state.substr(1), ids), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(restore(saved.version, "", ids), absl::StatusCode::kInvalidArgument);
  // Any bytes are an answer or an error.
  for (int i = 0; i < 2000; ++i) {
    std::string state = saved.state;
    for (int j = 0; j < 3; ++j) {
      state[random() % state.size()] = static_cast<char>(random());
    }
    static_cast<void>(restore(saved.version, state, ids));
  }
}

TEST_P(BaselinePolicyTest, SeesNoMoreAttentionThanTheOracle) {
  options.selection.select_percent = 1;  // the least for all lengths
  PolicyDriver driver(GetParam(), options, seed);
  PolicyDriver oracle("oracle", options, seed);
  driver.Prefill(600);
  oracle.Prefill(600);
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(driver.stored_count(), oracle.stored_count());
    EXPECT_LE(driver.Recall(), oracle.Recall() + 1e-6);
    driver.Step(77);
    oracle.Step(77);
  }
}

INSTANTIATE_TEST_SUITE_P(All, BaselinePolicyTest,
                         testing::Values("oracle", "no-cluster", "static-cluster", "local-cluster",
                                         "local-cluster-40", "streaming", "random", "kvswap",
                                         "morph", "morph-recall", "morph-sum", "morph-max", "h2o",
                                         "snapkv", "infinigen", "loki", "shadowkv"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace cairn::compute
