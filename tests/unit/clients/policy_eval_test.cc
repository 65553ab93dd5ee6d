// How near policies are to full attention, on models where it is known.
#include "clients/eval/policy_eval.h"

#include <unistd.h>

#include <cmath>
#include <memory>
#include <random>

#include <gtest/gtest.h>

#include "clients/eval/document.h"
#include "clients/eval/report.h"
#include "compute-node/model/tokenizer.h"
#include "tests/tools/model_maker.h"
#include "tests/tools/seed.h"

namespace cairn::eval {
namespace {

constexpr const char* kTrainedModel = CAIRN_SOURCE_DIR "/deploy/models/retrieval-3m-f16.gguf";
constexpr const char* kTasks = CAIRN_SOURCE_DIR "/tests/data/tasks-dev-4k.jsonl";
constexpr std::int64_t kChunkTokens = 512;

std::unique_ptr<compute::Model> Load(const std::string& path) {
  compute::ModelOptions options;
  options.thread_count = 2;
  options.batch_tokens_max = kChunkTokens;
  absl::StatusOr<std::unique_ptr<compute::Model>> model = compute::Model::Load(path, options);
  EXPECT_TRUE(model.ok()) << Message(model.status());
  return model.ok() ? *std::move(model) : nullptr;
}

std::unique_ptr<compute::Model> MakeTinyModel() {
  test::ModelOptions options;
  options.preset = "narrow-llama";
  const std::string path = testing::TempDir() + fmt::format("cairn_eval_{}.gguf", ::getpid());
  const absl::Status written = test::WriteModel(options, path);
  EXPECT_TRUE(written.ok()) << Message(written);
  std::unique_ptr<compute::Model> model = Load(path);
  ::unlink(path.c_str());
  return model;
}

std::vector<std::int32_t> RandomTokens(const compute::Model& model, std::int64_t count,
                                       std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto kinds = static_cast<std::uint64_t>(model.config().vocab_size - 3);
    tokens.push_back(static_cast<std::int32_t>(3 + random() % kinds));
  }
  return tokens;
}

EvalOptions SmallOptions(std::vector<std::string> policies) {
  EvalOptions options;
  options.policies = std::move(policies);
  options.selection.select_tokens_min = 64;
  options.selection.select_tokens_max = 64;
  options.prefill_tokens = 200;
  options.chunk_tokens = kChunkTokens;
  return options;
}

TEST(KlDivergenceTest, IsTheSumOverTheVocabulary) {
  // Probabilities 1/4, 3/4 against 1/2, 1/2; the logits of either may be shifted.
  const std::vector<float> reference = {1000, 1000 + std::log(3.0F)};
  const std::vector<float> other = {-7, -7};
  const double expected = 0.25 * std::log(0.5) + 0.75 * std::log(1.5);
  EXPECT_NEAR(KlDivergence(reference, other), expected, 1e-5);
  EXPECT_EQ(KlDivergence(other, other), 0);
}

TEST(DivergenceTest, SummarisesItsTokens) {
  Divergence divergence;
  const std::vector<float> even = {0, 0.001F};
  for (int i = 0; i < 99; ++i) divergence.Add(even, even);
  const std::vector<float> other = {2, 0};
  divergence.Add(even, other);
  EXPECT_EQ(divergence.count(), 100);
  EXPECT_EQ(divergence.Quantile(0.5), 0);
  EXPECT_EQ(divergence.Quantile(0.99), 0);
  EXPECT_EQ(divergence.max(), KlDivergence(even, other));
  EXPECT_NEAR(divergence.mean(), divergence.max() / 100, 1e-12);
  EXPECT_NEAR(divergence.same_best(), 0.99, 1e-12);
}

TEST(PolicyEvalTest, FullAttentionMissesNothing) {
  const std::uint64_t seed = test::TestSeed();
  const std::unique_ptr<compute::Model> model = MakeTinyModel();
  EvalOptions options = SmallOptions({"full"});
  options.recall_every = 1;
  const std::vector<std::int32_t> tokens = RandomTokens(*model, 420, seed);
  const auto results = Evaluate(*model, tokens, options, nullptr);
  ASSERT_TRUE(results.ok()) << Message(results.status());
  const PolicyResult& full = results->at(0);
  EXPECT_TRUE(full.reads_everything);
  EXPECT_EQ(full.divergence.count(), 220);
  EXPECT_LT(full.divergence.max(), 1e-12);
  EXPECT_EQ(full.divergence.same_best(), 1);
  EXPECT_TRUE(full.index.empty());
  ASSERT_EQ(std::ssize(full.heads), model->config().layer_count * model->config().kv_head_count);
  for (const HeadAttention& head : full.heads) {
    EXPECT_EQ(head.recall_count, 220);
    EXPECT_NEAR(head.recall_min, 1, 1e-12);
    EXPECT_EQ(head.attended_max, 420);
  }
}

TEST(PolicyEvalTest, WhatAPolicyMissesShows) {
  const std::uint64_t seed = test::TestSeed();
  const std::unique_ptr<compute::Model> model = MakeTinyModel();
  EvalOptions options = SmallOptions({"dynakv", "streaming", "random"});
  options.recall_every = 10;
  options.index_every = 100;
  std::int64_t told = 0;
  const std::vector<std::int32_t> tokens = RandomTokens(*model, 650, seed);
  const auto results = Evaluate(*model, tokens, options, [&](std::int64_t fed, std::int64_t all) {
    EXPECT_EQ(fed, ++told);
    EXPECT_EQ(all, 450);
  });
  ASSERT_TRUE(results.ok()) << Message(results.status());
  EXPECT_EQ(told, 450);
  for (const PolicyResult& result : *results) {
    EXPECT_GT(result.divergence.mean(), 0) << result.policy << " seed " << seed;
    const AttentionTotals totals = TotalsOf(result.heads);
    EXPECT_LT(totals.recall, 1) << result.policy;
    EXPECT_LE(totals.attended_max, 64) << result.policy;
    EXPECT_EQ(totals.over_count, 0) << result.policy;
    for (const HeadAttention& head : result.heads) {
      EXPECT_EQ(head.step_count, 450);
      EXPECT_EQ(head.recall_count, 45);
    }
  }
  // Behind the prompt, at 300 to 600, and at the end.
  const PolicyResult& dynakv = results->at(0);
  ASSERT_EQ(dynakv.index.size(), 6U);
  EXPECT_EQ(dynakv.index[0].token_count, 200);
  EXPECT_EQ(dynakv.index[1].token_count, 300);
  EXPECT_EQ(dynakv.index[5].token_count, 650);
  for (const IndexSample& sample : dynakv.index) {
    const compute::HeadStatistics counted = TotalsOf(sample.statistics);
    EXPECT_GT(counted.cluster_count, 0);
    EXPECT_GT(counted.variance, 0);
    EXPECT_LT(counted.entry_count, sample.token_count * std::ssize(sample.statistics.heads));
  }
  EXPECT_TRUE(results->at(1).index.empty());
}

TEST(PolicyEvalTest, ABudgetThatIsExceededIsCounted) {
  const std::unique_ptr<compute::Model> model = MakeTinyModel();
  const std::vector<std::int32_t> tokens = RandomTokens(*model, 210, 1);
  const auto results = Evaluate(*model, tokens, SmallOptions({"full"}), nullptr);
  ASSERT_TRUE(results.ok()) << Message(results.status());
  for (const HeadAttention& head : results->at(0).heads) {
    EXPECT_EQ(head.over_count, 10);
    EXPECT_EQ(head.over_max, 210 - 64);
  }
}

// The oracle sees the most that any choice of so many tokens can see; random tokens see little.
TEST(PolicyEvalTest, PoliciesAreInOrderOnATrainedModel) {
  const std::unique_ptr<compute::Model> model = Load(kTrainedModel);
  ASSERT_NE(model, nullptr);
  const auto tokenizer = compute::Tokenizer::FromGguf(model->file());
  ASSERT_TRUE(tokenizer.ok()) << Message(tokenizer.status());
  const auto text = ReadTasksDocument(kTasks, 0);
  ASSERT_TRUE(text.ok()) << Message(text.status());
  const std::vector<std::int32_t> tokens = (*tokenizer)->Encode(*text, {});
  ASSERT_GT(tokens.size(), 1000U);
  EvalOptions options = SmallOptions({"oracle", "dynakv", "random"});
  options.prefill_tokens = 500;
  const auto results = Evaluate(*model, tokens, options, nullptr);
  ASSERT_TRUE(results.ok()) << Message(results.status());
  const auto recall = [&](std::size_t i) { return TotalsOf(results->at(i).heads).recall; };
  const auto divergence = [&](std::size_t i) { return results->at(i).divergence.mean(); };
  EXPECT_GE(recall(0), recall(1));
  EXPECT_GT(recall(1), recall(2) + 0.1);
  EXPECT_GT(recall(0), 0.9);
  EXPECT_LT(divergence(0), divergence(2));
  EXPECT_LT(divergence(1), divergence(2));
}

TEST(PolicyEvalTest, WhatCannotRunIsRefused) {
  const std::unique_ptr<compute::Model> model = MakeTinyModel();
  const std::vector<std::int32_t> tokens = RandomTokens(*model, 100, 1);
  const auto refusal = [&](const EvalOptions& options) {
    const auto results = Evaluate(*model, tokens, options, nullptr);
    EXPECT_EQ(results.status().code(), absl::StatusCode::kInvalidArgument);
    return Message(results.status());
  };
  EXPECT_NE(refusal(SmallOptions({"full"})).find("of 100 tokens 200 are the prompt"),
            std::string::npos);
  EvalOptions options = SmallOptions({});
  options.prefill_tokens = 50;
  EXPECT_NE(refusal(options).find("at least one policy"), std::string::npos);
  options.policies = {"full", "full"};
  EXPECT_NE(refusal(options).find("named twice"), std::string::npos);
  options.policies = {"telepathy"};
  EXPECT_NE(refusal(options).find("telepathy"), std::string::npos);
  options.policies = {"full"};
  options.recall_every = 0;
  EXPECT_NE(refusal(options).find("every 0 tokens"), std::string::npos);
}

TEST(PolicyEvalTest, ADocumentThatIsNotThereIsNamed) {
  EXPECT_EQ(ReadText("/nonexistent").status().code(), absl::StatusCode::kNotFound);
  const absl::Status beyond = ReadTasksDocument(kTasks, 1000).status();
  EXPECT_NE(Message(beyond).find("there is no document 1000: it has 16"), std::string::npos)
      << Message(beyond);
  const absl::Status no_json = ReadTasksDocument(CAIRN_SOURCE_DIR "/README.md", 0).status();
  EXPECT_NE(Message(no_json).find("line 1 is no document"), std::string::npos) << Message(no_json);
}

// The figures that people compare are where docs/policy-eval.md says that they are.
TEST(PolicyEvalTest, JsonHasTheFieldsOfTheDocument) {
  const std::unique_ptr<compute::Model> model = MakeTinyModel();
  const std::vector<std::int32_t> tokens = RandomTokens(*model, 260, 1);
  const auto results = Evaluate(*model, tokens, SmallOptions({"full", "dynakv"}), nullptr);
  ASSERT_TRUE(results.ok()) << Message(results.status());
  const nlohmann::ordered_json full = ToJson(results->at(0), model->config());
  EXPECT_EQ(full.at("policy"), "full");
  EXPECT_FALSE(full.at("attended").contains("over_count"));
  EXPECT_TRUE(full.at("index").empty());
  const nlohmann::ordered_json dynakv = ToJson(results->at(1), model->config());
  EXPECT_EQ(dynakv.at("kl").at("mean"), results->at(1).divergence.mean());
  EXPECT_EQ(dynakv.at("attended").at("over_count"), 0);
  EXPECT_EQ(dynakv.at("recall").at("steps"), 8);
  EXPECT_EQ(dynakv.at("heads").size(), results->at(1).heads.size());
  EXPECT_EQ(dynakv.at("heads").at(1).at("kv_head"), 1);
  EXPECT_EQ(dynakv.at("index").back().at("token_count"), 260);
  EXPECT_GT(dynakv.at("index").back().at("mean_size"), 1);
  EXPECT_GT(dynakv.at("fetched_bytes_per_token"), 0);
  const std::string table = Table(*results);
  EXPECT_NE(table.find("\nfull "), std::string::npos) << table;
  EXPECT_NE(table.find("\ndynakv "), std::string::npos) << table;
}

}  // namespace
}  // namespace cairn::eval
