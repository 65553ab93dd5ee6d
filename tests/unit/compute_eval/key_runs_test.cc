// What a run-length code of keys saves and costs, on rows and models where it is known.
#include <unistd.h>

#include <memory>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "compute-node/eval/key_runs_eval.h"
#include "tests/tools/model_maker.h"
#include "tests/tools/says.h"
#include "tests/tools/temp_dir.h"
#include "tests/tools/test_threads.h"

namespace cairn::eval {
namespace {

TEST(KeyRunsTest, ARunEndsWhereAKeyLeavesItsStoredKeyAndCannotDrift) {
  const std::vector<float> keys = {0, 0, 0.01F, 0, 0.02F, 0, 0.02F, 0.005F, 1, 1};
  EXPECT_EQ(RunsInOrder(keys, 2, 0.012F), (KeyStandIns{0, 0, 2, 2, 4}));
  EXPECT_EQ(RunsInOrder(keys, 2, 0.03F), (KeyStandIns{0, 0, 0, 0, 4}));
  EXPECT_EQ(RunsInOrder(keys, 2, 0.001F), (KeyStandIns{0, 1, 2, 3, 4}));
}

TEST(KeyRunsTest, KeysOfAClusterAreComparedWithAllThatItStores) {
  const std::vector<float> keys = {0, 5, 0.01F, 5.01F, 0.02F, 5};
  compute::PointClusters clusters;
  clusters.order = {0, 1, 2, 3, 4, 5};
  clusters.starts = {0, 5, 6};
  EXPECT_EQ(RunsInClusters(keys, 1, 0.015F, clusters), (KeyStandIns{0, 1, 0, 1, 4, 5}));
}

TEST(KeyRunsTest, WhatIsNoNumberIsLikeNothing) {
  const std::vector<float> keys = {std::nanf(""), std::nanf(""), 1};
  EXPECT_EQ(RunsInOrder(keys, 1, 1), (KeyStandIns{0, 1, 2}));
}

TEST(KeyRunsTest, RunsAreCountedByTheirLength) {
  const KeyRuns runs = CountRuns(
      KeyStandIns{0, 1, 1, 3, 3, 3, 3, 7, 7, 7, 7, 7, 12, 12, 12, 12, 12, 12, 12, 12, 12});
  EXPECT_EQ(runs.key_count, 21);
  EXPECT_EQ(runs.stored_count, 5);
  EXPECT_EQ(runs.by_length, (std::array<std::int64_t, 5>{1, 1, 1, 1, 1}));
  EXPECT_DOUBLE_EQ(runs.saved_share(), 1 - 5.0 / 21);
  EXPECT_EQ(CodedBytes(runs, 100, kOrderIndexBits), 503);
  EXPECT_EQ(CodedBytes(runs, 100, kClusterIndexBits), 511);
}

TEST(KeyRunsTest, TheMedianStepIsOfTheLargestDifferences) {
  EXPECT_EQ(MedianStep(std::vector<float>{0, 0, 1, -3, 1, -3, 6, -3}, 2), 3);
}

class KeyRunsEvalTest : public testing::Test {
 protected:
  KeyRunsEvalTest() {
    test::ModelOptions options;
    options.preset = "narrow-llama";
    const std::string path = folder_.File("model.gguf");
    EXPECT_TRUE(test::WriteModel(options, path).ok());
    compute::ModelOptions load;
    load.thread_count = test::kThreads;
    load.batch_tokens_max = 512;
    absl::StatusOr<std::unique_ptr<compute::Model>> loaded = compute::Model::Load(path, load);
    EXPECT_TRUE(loaded.ok()) << Message(loaded.status());
    model_ = *std::move(loaded);
  }

  KeyRunsResult Measure(std::span<const std::int32_t> tokens) {
    absl::StatusOr<KeyRunsResult> result =
        MeasureKeyRuns(*model_, tokens, {.tolerances = {0.01}}, nullptr);
    EXPECT_TRUE(result.ok()) << Message(result.status());
    return *std::move(result);
  }

  const test::TempDir folder_;
  std::unique_ptr<compute::Model> model_;
};

// All that a token of it attends is alike, so that its keys are the same in each layer, but for the
// rotation that is taken back.
TEST_F(KeyRunsEvalTest, ATextOfOneTokenIsOneRun) {
  const KeyRunsResult result = Measure(std::vector<std::int32_t>(300, 7));
  const std::int64_t head_count = model_->config().kv_head_count;
  for (const KeyCodeResult& code : result.codes) {
    for (const LayerRuns& layer : code.layers) {
      if (code.code.place == RunPlace::kOrder) {
        EXPECT_EQ(layer.runs.stored_count, head_count);
      }
      EXPECT_LT(layer.bytes, result.layer_bytes / 2) << RunPlaceName(code.code.place);
    }
    EXPECT_LT(code.divergence.max(), 1e-6) << RunPlaceName(code.code.place);
    EXPECT_EQ(code.divergence.count(), 300);
  }
}

TEST_F(KeyRunsEvalTest, WhereNothingRepeatsTheGateKeepsPlainKeys) {
  std::vector<std::int32_t> tokens(200);
  std::iota(tokens.begin(), tokens.end(), 3);
  const KeyRunsResult result = Measure(tokens);
  for (const KeyCodeResult& code : result.codes) {
    for (const LayerRuns& layer : code.layers) {
      EXPECT_EQ(layer.runs.saved_share(), 0);
      EXPECT_EQ(layer.bytes, result.layer_bytes + model_->config().kv_head_count);
    }
    // The same keys but for their rounding and their way through the rotation.
    EXPECT_LT(code.divergence.max(), 1e-6);
  }
}

TEST_F(KeyRunsEvalTest, FiguresHaveTheirFields) {
  const KeyRunsResult result = Measure(std::vector<std::int32_t>(20, 7));
  const nlohmann::ordered_json json = ToJson(result);
  ASSERT_EQ(json["codes"].size(), kRunPlaces.size());
  EXPECT_EQ(json["codes"][0]["place"], "order");
  EXPECT_EQ(json["codes"][0]["tolerance"], 0.01);
  EXPECT_EQ(json["codes"][0]["layers"][0]["runs"]["9-"], model_->config().kv_head_count);
  EXPECT_EQ(json["codes"][0]["same_best"], 1);
  EXPECT_NE(Table(result).find("key-clusters"), std::string::npos);
}

TEST_F(KeyRunsEvalTest, WhatCannotRunIsRefused) {
  const std::vector<std::int32_t> tokens(20, 7);
  EXPECT_TRUE(test::Says(
      MeasureKeyRuns(*model_, tokens, {.tolerances = {0.1, 0}}, nullptr).status(), "--key-runs 0"));
  EXPECT_TRUE(test::Says(
      MeasureKeyRuns(*model_, tokens, {.tolerances = {0.1}, .cluster_entries = 9}, nullptr)
          .status(),
      "--cluster-entries 9"));
  EXPECT_TRUE(test::Says(
      MeasureKeyRuns(*model_, std::span(tokens).first(1), {.tolerances = {0.1}}, nullptr).status(),
      "2 to"));
}

}  // namespace
}  // namespace cairn::eval
