#include "compute-node/retrieval/eviction/eviction_policy.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "compute-node/retrieval/eviction/attention_profile.h"
#include "compute-node/retrieval/policy_registry.h"
#include "tests/tools/seed.h"
#include "tests/unit/retrieval/policy_driver.h"

namespace cairn::compute {
namespace {

// One layer and head, whose tokens give all their attention to what a test says.
class EvictionPolicyTest : public testing::TestWithParam<const char*> {
 protected:
  EvictionPolicyTest() {
    options.layout = {.layer_count = 1, .head_count = 1, .head_dim = 64};
    options.part_bytes_max = 65536;
    options.selection.select_tokens_min = 64;
    options.selection.select_tokens_max = 64;
    policy = MakePolicy(GetParam(), options).value();
    EXPECT_TRUE(policy->keeper().RestoreState({}).ok());
  }

  std::int64_t WindowStart() const {
    return std::max<std::int64_t>(
        0, (token_count - policy->keeper().WindowTokens(token_count)) / 8 * 8);
  }
  void StoreUntil(std::int64_t end) {
    if (end <= stored_count) return;
    policy->keeper().Store({.first_position = stored_count, .token_count = end - stored_count});
    stored_count = end;
  }
  // Of the tokens that are weighed each gives its weight to `liked`, as far as it attends them.
  void Tell(std::int64_t count, std::vector<std::int64_t> attended,
            const std::set<std::int64_t>& liked) {
    const std::int64_t end = token_count + count;
    const std::int64_t weighed = policy->weight_observer()->WeighedTokens(count);
    std::vector<AttendedEntries> heads(1);
    heads[0].fetched = std::move(attended);
    heads[0].recent_first = stored_count;
    const std::int64_t entry_count = std::ssize(heads[0].fetched) + end - stored_count;
    for (std::int64_t row = 0; row < weighed; ++row) {
      for (std::int64_t i = 0; i < entry_count; ++i) {
        heads[0].weights.push_back(liked.contains(heads[0].PositionOf(i)) ? 1.0F : 0.001F);
      }
    }
    policy->weight_observer()->TakeWeights(
        {.first_position = end - weighed, .token_count = weighed, .heads = heads});
  }
  void Prompt(std::int64_t count, const std::set<std::int64_t>& liked) {
    std::vector<std::int64_t> all;
    for (std::int64_t at = 0; at < stored_count; ++at) all.push_back(at);
    Tell(count, std::move(all), liked);
    token_count += count;
    StoreUntil(WindowStart());
  }
  void Step(const std::set<std::int64_t>& liked) {
    StoreUntil(WindowStart());
    const std::set<std::int64_t> attended = Attended();
    Tell(1, {attended.begin(), attended.end()}, liked);
    ++token_count;
  }
  std::set<std::int64_t> Attended() const {
    std::set<std::int64_t> attended;
    const SelectionInput input{.stored_token_count = stored_count, .first_position = token_count};
    const std::int64_t page = dynamic_cast<const PagePolicy&>(*policy).page_entries();
    for (const FetchSlice& slice : policy->selector().Select(input)) {
      for (const PlannedCluster& cluster : slice.clusters) {
        const std::int64_t first = (cluster.cluster.cluster_id.value() - 1) * page;
        if (cluster.attended.empty()) {
          for (std::int64_t i = 0; i < cluster.entry_count; ++i) attended.insert(first + i);
        }
        for (const std::int32_t index : cluster.attended) attended.insert(first + index);
      }
    }
    return attended;
  }
  bool Recalls() const { return GetParam() == std::string("morph-recall"); }

  PolicyOptions options;
  std::unique_ptr<RetrievalPolicy> policy;
  std::int64_t token_count = 0;
  std::int64_t stored_count = 0;
};

TEST_P(EvictionPolicyTest, WhatAPromptsLastTokensLookedAtStays) {
  Prompt(500, {100, 300, 301});
  const std::set<std::int64_t> attended = Attended();
  for (const std::int64_t liked : {100, 300, 301}) EXPECT_TRUE(attended.contains(liked)) << liked;
  for (int i = 0; i < 5; ++i) Step({100});
  EXPECT_TRUE(Attended().contains(100));
}

TEST_P(EvictionPolicyTest, AnotherPromptFindsWhatStepsAttendNoMore) {
  Prompt(500, {100});
  for (int i = 0; i < 5; ++i) Step({100});
  EXPECT_FALSE(Attended().contains(300));
  Prompt(12, {300});
  EXPECT_TRUE(Attended().contains(300));
}

// The plan of a step is what it was, however often the step was begun.
TEST_P(EvictionPolicyTest, AStepThatIsComputedAgainAttendsTheSame) {
  Prompt(500, {100, 300});
  for (int i = 0; i < 40; ++i) {
    StoreUntil(WindowStart());
    const std::set<std::int64_t> attended = Attended();
    Tell(1, {attended.begin(), attended.end()}, {300});
    EXPECT_EQ(Attended(), attended);
    Step({100});
  }
}

TEST_P(EvictionPolicyTest, NothingGrowsWithTheText) {
  Prompt(600, {100});
  std::int64_t most = 0;
  for (int i = 0; i < 3000; ++i) {
    Step({token_count - 40});
    if (i == 600) most = policy->keeper().memory_bytes() * 5 / 4;
    if (i > 600) {
      ASSERT_LE(policy->keeper().memory_bytes(), most);
    }
  }
  EXPECT_LE(std::ssize(policy->keeper().SaveState().state),
            dynamic_cast<const EvictionPolicy&>(*policy).state_bytes_max());
}

// As behind a fork from before the window: more has left it than a prompt so short asks for.
TEST_P(EvictionPolicyTest, WhatHasLeftTheWindowIsRankedHoweverShortAPromptIs) {
  Prompt(500, {100});
  StoreUntil(token_count);
  Prompt(2, {495});
  EXPECT_TRUE(Attended().contains(495));
  StoreUntil(token_count);
  for (int i = 0; i < 40; ++i) Step({495});
  EXPECT_TRUE(Attended().contains(495));
}

// An entry that is in the window yet was never retained.
TEST_P(EvictionPolicyTest, AStateThatRetainsWhatIsNotDecidedIsRefused) {
  Prompt(500, {100});
  for (int i = 0; i < 9; ++i) Step({100});
  const PutPolicyState saved = policy->keeper().SaveState();
  const std::vector<std::int64_t> ids = policy->keeper().NextClusterIds();
  const auto restore = [&](const std::string& state) {
    return policy->keeper()
        .RestoreState({saved.version, state, ids, token_count, token_count})
        .code();
  };
  EXPECT_EQ(restore(saved.state), absl::StatusCode::kOk);
  // The numbers of the pages, then what is decided, how many are retained, and those.
  std::vector<std::int64_t> numbers(saved.state.size() / sizeof(std::int64_t));
  std::memcpy(numbers.data(), saved.state.data(), saved.state.size());
  numbers[static_cast<std::size_t>(1 + numbers[0])] = 30;
  std::string state(saved.state.size(), '\0');
  std::memcpy(state.data(), numbers.data(), state.size());
  EXPECT_EQ(restore(state), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(All, EvictionPolicyTest,
                         testing::Values("morph", "morph-recall", "morph-sum", "morph-max", "h2o",
                                         "snapkv"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class MorphTest : public EvictionPolicyTest {};

TEST_P(MorphTest, WhatNewTokensNoLongerLookAtGoes) {
  Prompt(500, {100});
  std::set<std::int64_t> liked;
  for (std::int64_t at = 470; at < 600; ++at) liked.insert(at);
  for (int i = 0; i < 90; ++i) Step(liked);
  EXPECT_FALSE(Attended().contains(100));
}

TEST_P(MorphTest, NeighboursOfWhatIsLookedAtComeBackWhereTheyAreRecalled) {
  Prompt(500, {160});
  for (int i = 0; i < 90; ++i) Step({160});
  const std::set<std::int64_t> attended = Attended();
  EXPECT_TRUE(attended.contains(160));
  EXPECT_EQ(attended.contains(165), Recalls());
}

INSTANTIATE_TEST_SUITE_P(All, MorphTest, testing::Values("morph", "morph-recall"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(EvictionPolicyStateTest, AModelOfTooManyHeadsIsRefused) {
  PolicyOptions options = DriverOptions();
  options.layout.layer_count = 80;
  options.layout.head_count = 64;
  const absl::Status refused = MakePolicy("morph", options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(refused).find("80 layers of 64 KV heads"), std::string::npos)
      << Message(refused);
}

}  // namespace
}  // namespace cairn::compute
