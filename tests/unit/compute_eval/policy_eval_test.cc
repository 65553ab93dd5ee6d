// How near policies are to full attention, on models where it is known.
#include "compute-node/eval/policy_eval.h"

#include <unistd.h>

#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <random>

#include <gtest/gtest.h>

#include "compute-node/eval/document.h"
#include "compute-node/eval/report.h"
#include "compute-node/model/tokenizer/tokenizer.h"
#include "tests/tools/model_maker.h"
#include "tests/tools/seed.h"
#include "tests/tools/test_threads.h"

namespace cairn::eval {
namespace {

constexpr const char* kTrainedModel = CAIRN_SOURCE_DIR "/deploy/models/retrieval-3m-f16.gguf";
constexpr const char* kTasks = CAIRN_SOURCE_DIR "/tests/data/tasks-dev-4k.jsonl";
constexpr std::int64_t kChunkTokens = 512;

std::unique_ptr<compute::Model> Load(const std::string& path) {
  compute::ModelOptions options;
  options.thread_count = test::kThreads;
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

// Of one layer with one KV head, whose clusters a test makes up.
class ClusterWatchTest : public testing::Test {
 protected:
  ClusterWatchTest() {
    config_.layer_count = 1;
    config_.kv_head_count = 1;
    options_.first_position = 100;
    options_.selection.select_tokens_min = 32;  // 2 may be held back
    options_.selection.select_tokens_max = 32;
    watch_.emplace(config_, options_);
    Store(1, 0, 4);  // the sinks
    for (std::int64_t id = 2; id <= 4; ++id) Store(id, 10 * id, 5);
  }

  void Store(std::int64_t id, std::int64_t first, std::int64_t count) {
    compute::StoreActions actions;
    actions.appended.push_back({{0, ClusterId(id)}, Positions::Range(first, count)});
    watch_->Stored(0, actions);
  }
  void Hold(std::int64_t id, std::int64_t position) {
    compute::StoreActions actions;
    actions.held.push_back({{0, ClusterId(id)}, position});
    watch_->Stored(0, actions);
  }
  // A step that reads the sinks and these.
  void Step(const std::vector<std::int64_t>& ids) {
    compute::AttendedEntries told;
    for (std::int64_t position = 0; position < 4; ++position) told.fetched.push_back(position);
    for (const std::int64_t id : ids) told.fetched.push_back(10 * id + 1);
    compute::AttentionBatch batch{};
    batch.first_position = step_++;
    batch.token_count = 1;
    watch_->LayerAttended(batch, {&told, 1});
  }

  compute::ModelConfig config_;
  ClusterWatch::Options options_;
  std::optional<ClusterWatch> watch_;
  std::int64_t step_ = 100;
};

TEST_F(ClusterWatchTest, AClusterThatChangedCountsWhenItIsReadAgain) {
  Step({2});
  Store(3, 50, 1);
  Step({2});
  Step({2});
  Step({3});  // 3 steps behind the change
  Step({3});
  const ClusterCounts counts = watch_->Counts();
  EXPECT_EQ(counts.appended_count, 1);
  EXPECT_EQ(counts.step_count, 5);
  EXPECT_EQ(counts.read_entries, 3 * 5 + 2 * 6);
  EXPECT_EQ(counts.changed.cluster_count, 1);
  EXPECT_EQ(counts.changed.within, (std::array<std::int64_t, 5>{0, 0, 1, 1, 1}));
  // At the first step all were looked at: the next one read 2, the fourth one 3, and none 4.
  EXPECT_EQ(counts.all.cluster_count, 3);
  EXPECT_EQ(counts.all.within, (std::array<std::int64_t, 5>{1, 1, 2, 2, 2}));
}

TEST_F(ClusterWatchTest, ASplitMovesEntriesAndCountsItsParts) {
  Hold(2, 50);
  Hold(2, 51);
  Step({2});
  compute::ClusterSplit split{.head = 0, .parent_ids = {ClusterId(2)}, .children = {}};
  split.children.push_back({ClusterId(5), Positions::Range(20, 3)});
  split.children.push_back({ClusterId(6), Positions::FromUnsorted({23, 24, 50, 51})});
  watch_->Split(0, {&split, 1});
  Step({});
  const ClusterCounts counts = watch_->Counts();
  EXPECT_EQ(counts.delay.split_count, 1);
  EXPECT_EQ(counts.delay.forced_count, 1);  // behind the split nothing is held any more
  EXPECT_EQ(counts.changed.cluster_count, 2);
  EXPECT_EQ(watch_->stored_end(0), 52);
  const std::vector<std::vector<std::int64_t>> expected = {
      {30, 31, 32, 33, 34}, {40, 41, 42, 43, 44}, {20, 21, 22}, {23, 24, 50, 51}};
  EXPECT_EQ(watch_->Clusters(0), expected);
}

TEST_F(ClusterWatchTest, WhatWaitsForASplitIsCounted) {
  Step({2});
  Hold(2, 51);  // which the step has read
  Hold(3, 52);  // which it has not
  Hold(3, 53);
  Step({});  // more are held than may be: it must read 3, which holds most
  const DelayedSplits delay = watch_->Counts().delay;
  EXPECT_EQ(delay.flagged_count, 2);
  EXPECT_EQ(delay.unread_count, 1);
  EXPECT_EQ(delay.unread_entries, 5);
  EXPECT_EQ(delay.forced_count, 1);
  EXPECT_EQ(delay.forced_entries, 5);
}

TEST_F(ClusterWatchTest, PartnersAreThoseThatWereReadTogether) {
  Step({2, 3});
  Step({2, 3});
  Step({4});
  Step({2, 3});  // each has the other; until here either was read in 2 of 3 steps
  Step({2});     // not so this time
  const ReadTogether together = watch_->Counts().together;
  EXPECT_EQ(together.cluster_count, 3);
  EXPECT_EQ(together.partner_count, 2);
  EXPECT_NEAR(together.by_chance, 2.0 / 3 + 2.0 / 3 + 3.0 / 4, 1e-9);
}

// Two places of the prompt, and entries that come at a third one.
TEST(ClusterShiftTest, KeysThatAreElsewhereAreFarFromClustersOfThePrompt) {
  constexpr std::int64_t kFirst = 4;
  std::vector<float> keys(static_cast<std::size_t>(kFirst), 99.0F);
  for (int i = 0; i < 40; ++i) keys.push_back(i % 2 == 0 ? -1.0F : 1.0F);
  std::vector<std::vector<std::int64_t>> clusters(2);
  for (std::int64_t i = 0; i < 40; ++i) {
    clusters[static_cast<std::size_t>(i % 2)].push_back(kFirst + i);
  }
  ClusterShift shift(1, 20, 1);
  const auto moments = [](const ShiftSample& sample, Partition partition) {
    return sample.partitions[static_cast<std::size_t>(partition)];
  };
  const ShiftSample prompt = shift.Sample(keys, kFirst, kFirst + 40, clusters);
  EXPECT_NEAR(prompt.total_variance, 1, 1e-6);
  EXPECT_NEAR(moments(prompt, Partition::kStatic).variance(), 0, 1e-6);
  EXPECT_NEAR(moments(prompt, Partition::kLocal).variance(), 1, 1e-6);
  EXPECT_NEAR(moments(prompt, Partition::kLocalSmall).variance(), 0, 1e-6);
  clusters.emplace_back();
  for (std::int64_t i = 0; i < 360; ++i) {
    keys.push_back(11.0F);
    clusters[2].push_back(kFirst + 40 + i);
  }
  const ShiftSample later = shift.Sample(keys, kFirst, kFirst + 400, clusters);
  EXPECT_NEAR(moments(later, Partition::kStatic).new_variance(), 100, 1e-3);
  EXPECT_NEAR(moments(later, Partition::kStatic).variance(), 90, 1e-3);
  // The cluster moved: 20 entries at 1, 360 at 11.
  const double centroid = (20 * 1.0 + 360 * 11.0) / 380;
  EXPECT_NEAR(moments(later, Partition::kGreedy).new_variance(), (11 - centroid) * (11 - centroid),
              1e-3);
  EXPECT_EQ(moments(later, Partition::kGreedy).entry_count, 400);
  EXPECT_NEAR(moments(later, Partition::kAdaptive).variance(), 0, 1e-6);
  EXPECT_EQ(moments(later, Partition::kAdaptive).new_count, 360);
  // 320 of them; the others wait for more.
  EXPECT_EQ(moments(later, Partition::kLocal).entry_count, 360);
  EXPECT_NEAR(moments(later, Partition::kLocal).new_variance(), 0, 1e-6);
  EXPECT_NEAR(moments(later, Partition::kGlobal).variance(), 0, 1e-6);
  EXPECT_LT(moments(later, Partition::kGlobalFew).variance(), 2);
  // As many again: what is static has not moved.
  for (std::int64_t i = 0; i < 360; ++i) {
    keys.push_back(11.0F);
    clusters[2].push_back(kFirst + 400 + i);
  }
  const ShiftSample last = shift.Sample(keys, kFirst, kFirst + 760, clusters);
  EXPECT_NEAR(moments(last, Partition::kStatic).new_variance(), 100, 1e-3);
  EXPECT_EQ(moments(last, Partition::kStatic).entry_count, 760);
  EXPECT_LT(moments(last, Partition::kGreedy).new_variance(), 0.3);
  EXPECT_EQ(moments(last, Partition::kLocal).entry_count, 680);
}

TEST(PolicyEvalTest, FollowingClustersChangesNoAnswer) {
  const std::uint64_t seed = test::TestSeed();
  const std::unique_ptr<compute::Model> model = MakeTinyModel();
  const std::vector<std::int32_t> tokens = RandomTokens(*model, 650, seed);
  EvalOptions options = SmallOptions({"dynakv", "streaming"});
  options.selection.estimate_percent = 20;
  const auto plain = Evaluate(*model, tokens, options, nullptr);
  options.follow_clusters = true;
  const auto followed = Evaluate(*model, tokens, options, nullptr);
  ASSERT_TRUE(plain.ok() && followed.ok());
  EXPECT_FALSE(plain->at(0).clusters.has_value());
  EXPECT_FALSE(followed->at(1).clusters.has_value());
  const PolicyResult& dynakv = followed->at(0);
  EXPECT_EQ(dynakv.divergence.mean(), plain->at(0).divergence.mean()) << "seed " << seed;
  ASSERT_TRUE(dynakv.clusters.has_value());
  const ClusterCounts& counts = *dynakv.clusters;
  EXPECT_EQ(counts.delay.split_count, TotalsOf(dynakv.index.back().statistics).split_count);
  EXPECT_GT(counts.delay.split_count, 0) << "seed " << seed;
  EXPECT_GE(counts.delay.flagged_count, counts.delay.split_count);
  EXPECT_GT(counts.changed.cluster_count, 0);
  EXPECT_EQ(counts.step_count, 450 * std::ssize(dynakv.heads));
  // Behind the prompt, when the tokens have doubled, and at the end.
  ASSERT_EQ(dynakv.shift.size(), 3U);
  EXPECT_EQ(dynakv.shift[1].token_count, 400);
  for (std::size_t row = 0; row < dynakv.heads.size(); ++row) {
    const PartitionMoments& adaptive = dynakv.shift[2].heads[row].partitions[0];
    const compute::HeadStatistics& index = dynakv.index.back().statistics.heads[row];
    EXPECT_EQ(adaptive.cluster_count, index.cluster_count);
    EXPECT_EQ(adaptive.entry_count, index.entry_count);
    // The index has centroids of 8 bits and variances from step to step.
    EXPECT_NEAR(adaptive.variance(), index.variance, 0.02 * index.variance);
  }
}

// The figures that people compare are where docs/policy-eval.md says that they are.
TEST(PolicyEvalTest, JsonHasTheFieldsOfTheDocument) {
  const std::unique_ptr<compute::Model> model = MakeTinyModel();
  const std::vector<std::int32_t> tokens = RandomTokens(*model, 260, 1);
  EvalOptions options = SmallOptions({"full", "dynakv"});
  options.follow_clusters = true;
  const auto results = Evaluate(*model, tokens, options, nullptr);
  ASSERT_TRUE(results.ok()) << Message(results.status());
  const nlohmann::ordered_json full = ToJson(results->at(0));
  EXPECT_EQ(full.at("policy"), "full");
  EXPECT_FALSE(full.at("attended").contains("over_count"));
  EXPECT_TRUE(full.at("index").empty());
  const nlohmann::ordered_json dynakv = ToJson(results->at(1));
  EXPECT_EQ(dynakv.at("kl").at("mean"), results->at(1).divergence.mean());
  EXPECT_EQ(dynakv.at("attended").at("over_count"), 0);
  EXPECT_EQ(dynakv.at("recall").at("steps"), 8);
  EXPECT_EQ(dynakv.at("heads").size(), results->at(1).heads.size());
  EXPECT_EQ(dynakv.at("heads").at(1).at("kv_head"), 1);
  EXPECT_EQ(dynakv.at("index").back().at("token_count"), 260);
  EXPECT_GT(dynakv.at("index").back().at("mean_size"), 1);
  EXPECT_GT(dynakv.at("fetched_bytes_per_token"), 0);
  EXPECT_FALSE(full.contains("clusters"));
  EXPECT_GT(dynakv.at("clusters").at("read_entries_per_step"), 0);
  EXPECT_TRUE(dynakv.at("clusters").at("read_again").at("within").contains("16"));
  EXPECT_TRUE(dynakv.at("clusters").at("delay").contains("forced"));
  EXPECT_EQ(dynakv.at("shift").back().at("token_count"), 260);
  EXPECT_GT(dynakv.at("shift").back().at("local-40").at("share"), 0);
  const std::string table = Table(*results);
  EXPECT_NE(table.find("\nfull "), std::string::npos) << table;
  EXPECT_NE(table.find("\ndynakv "), std::string::npos) << table;
}

}  // namespace
}  // namespace cairn::eval
