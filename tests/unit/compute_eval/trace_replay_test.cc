// Policies on traces, without the model that made them.
#include "compute-node/eval/trace_replay.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "compute-node/command/trace_recorder.h"
#include "compute-node/eval/policy_eval.h"
#include "compute-node/eval/report.h"
#include "compute-node/eval/trace_rows.h"
#include "compute-node/kernels/convert.h"
#include "compute-node/model/forward/dense_attention.h"
#include "tests/tools/model_maker.h"
#include "tests/tools/says.h"
#include "tests/tools/seed.h"
#include "tests/tools/temp_dir.h"
#include "tests/tools/test_threads.h"

namespace cairn::eval {
namespace {

constexpr std::int64_t kRecordChunkTokens = 512;

// Of layer 2 of the model that ships with Cairn: 960 tokens, 640 of them prompt, 20 steps.
Trace TrainedTrace() {
  absl::StatusOr<Trace> trace =
      ReadTraceFile(CAIRN_SOURCE_DIR "/tests/data/retrieval-layer2.trace");
  EXPECT_TRUE(trace.ok()) << Message(trace.status());
  return trace.ok() ? *std::move(trace) : Trace();
}

// Of layers 3 and 5, KV head 1, 2 query heads of 16 numbers; queries from `query_from` on, every
// `query_every`-th.
Trace RandomTrace(std::int64_t token_count, std::int64_t prompt_count, std::int64_t query_from,
                  std::int64_t query_every, std::uint64_t seed) {
  Trace trace;
  trace.layer_count = 6;
  trace.kv_head_count = 2;
  trace.group_size = 2;
  trace.head_dim = 16;
  trace.layers = {3, 5};
  trace.kv_heads = {1};
  trace.token_count = token_count;
  trace.prompt_count = prompt_count;
  for (std::int64_t at = query_from; at < token_count; at += query_every) {
    trace.steps.push_back(static_cast<std::int32_t>(at));
  }
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const auto fill = [&](std::int64_t count, std::vector<std::uint16_t>& rows) {
    std::vector<float> numbers(static_cast<std::size_t>(count));
    for (float& number : numbers) number = normal(random);
    rows.resize(numbers.size());
    compute::F32ToF16(numbers, rows);
  };
  fill(trace.key_value_count(), trace.keys);
  fill(trace.query_value_count(), trace.queries);
  return trace;
}

ReplayOptions SmallReplay(std::vector<std::string> policies) {
  ReplayOptions options;
  options.policies = std::move(policies);
  options.selection.select_tokens_min = 64;
  options.selection.select_tokens_max = 64;
  options.recall_every = 1;
  return options;
}

std::vector<PolicyResult> Replayed(const Trace& trace, const ReplayOptions& options) {
  ThreadPool pool(2);
  absl::StatusOr<std::vector<PolicyResult>> results = Replay(trace, options, pool, nullptr);
  EXPECT_TRUE(results.ok()) << Message(results.status());
  return results.ok() ? *std::move(results) : std::vector<PolicyResult>();
}

TEST(ReplayTest, FullAttentionMissesNothing) {
  const Trace trace = TrainedTrace();
  const std::vector<PolicyResult> results = Replayed(trace, SmallReplay({"full"}));
  ASSERT_EQ(results.size(), 1U);
  const PolicyResult& full = results[0];
  EXPECT_TRUE(full.reads_everything);
  EXPECT_TRUE(full.index.empty());
  EXPECT_EQ(full.divergence.count(), 0);
  ASSERT_EQ(full.heads.size(), 2U);
  for (const HeadAttention& head : full.heads) {
    EXPECT_EQ(head.step_count, 20);
    EXPECT_EQ(head.recall_count, 20);
    EXPECT_NEAR(head.recall_min, 1, 1e-12);
    EXPECT_EQ(head.attended_max, trace.steps.back() + 1);
  }
}

TEST(ReplayTest, TheOracleSeesMost) {
  ReplayOptions options = SmallReplay(
      {"oracle", "dynakv", "no-cluster", "static-cluster", "streaming", "random", "local-cluster"});
  options.index_every = 100;
  std::int64_t told = 0;
  ThreadPool pool(2);
  const Trace trace = TrainedTrace();
  const std::int64_t behind = trace.steps.back() + 1 - trace.prompt_count;
  const auto results = Replay(trace, options, pool, [&](std::int64_t done, std::int64_t all) {
    EXPECT_EQ(done, ++told);
    EXPECT_EQ(all, behind);
  });
  ASSERT_TRUE(results.ok()) << Message(results.status());
  EXPECT_EQ(told, behind);
  const double best = TotalsOf(results->at(0).heads).recall;
  for (const PolicyResult& result : *results) {
    const AttentionTotals totals = TotalsOf(result.heads);
    EXPECT_GT(totals.recall, 0) << result.policy;
    EXPECT_LE(totals.recall, best) << result.policy;
    EXPECT_LE(totals.attended_max, 64) << result.policy;
    EXPECT_GT(totals.fetched_entries, 0) << result.policy;
  }
  EXPECT_LT(best, 1);
  EXPECT_LT(TotalsOf(results->at(5).heads).recall, TotalsOf(results->at(1).heads).recall);
  const std::vector<IndexSample>& index = results->at(1).index;
  ASSERT_FALSE(index.empty());
  EXPECT_EQ(index.front().token_count, 640);
  EXPECT_EQ(index.back().token_count, trace.steps.back() + 1);
  EXPECT_GT(TotalsOf(index.back().statistics).cluster_count, 0);
}

// A model, the tokens that it ran over, and the trace of its first layer, which is the same
// whatever is attended.
struct RecordedRun {
  std::unique_ptr<compute::Model> model;
  std::vector<std::int32_t> tokens;
  Trace trace;
};

RecordedRun Record(std::int64_t token_count, std::int64_t prompt_count, std::uint64_t seed) {
  RecordedRun run;
  const test::TempDir folder;
  const std::string path = folder.File("model.gguf");
  const absl::Status written = test::WriteModel({.preset = "narrow-llama"}, path);
  EXPECT_TRUE(written.ok()) << Message(written);
  compute::ModelOptions options;
  options.thread_count = test::kThreads;
  options.batch_tokens_max = kRecordChunkTokens;
  auto model = compute::Model::Load(path, options);
  EXPECT_TRUE(model.ok()) << Message(model.status());
  run.model = *std::move(model);
  const compute::ModelConfig& config = run.model->config();
  std::mt19937_64 random(seed);
  for (std::int64_t i = 0; i < token_count; ++i) {
    const auto kinds = static_cast<std::uint64_t>(config.vocab_size - 3);
    run.tokens.push_back(static_cast<std::int32_t>(3 + random() % kinds));
  }
  run.trace.layer_count = static_cast<std::int32_t>(config.layer_count);
  run.trace.kv_head_count = static_cast<std::int32_t>(config.kv_head_count);
  run.trace.group_size = static_cast<std::int32_t>(config.group_size());
  run.trace.head_dim = static_cast<std::int32_t>(config.head_dim);
  run.trace.layers = {0};
  run.trace.kv_heads.resize(static_cast<std::size_t>(config.kv_head_count));
  std::iota(run.trace.kv_heads.begin(), run.trace.kv_heads.end(), 0);
  run.trace.token_count = token_count;
  run.trace.prompt_count = prompt_count;
  compute::DenseAttention attention(config, KvFormat::kF16, token_count, run.model->pool());
  cli::TraceRecorder recorder(attention, 0, 1, run.trace);
  for (std::int64_t first = 0; first < token_count; first += kRecordChunkTokens) {
    const std::size_t count =
        static_cast<std::size_t>(std::min(kRecordChunkTokens, token_count - first));
    const absl::Status status =
        run.model->Forward(std::span(run.tokens).subspan(static_cast<std::size_t>(first), count),
                           first, recorder, {}, nullptr);
    EXPECT_TRUE(status.ok()) << Message(status);
  }
  return run;
}

// The same of a recorded run with its model and of its trace.
struct LiveAndReplayed {
  std::vector<PolicyResult> live;
  std::vector<PolicyResult> replayed;
};

LiveAndReplayed BothOf(const RecordedRun& run, const std::vector<std::string>& policies) {
  EvalOptions live;
  static_cast<MeasureOptions&>(live) = SmallReplay(policies);
  live.chunk_tokens = kRecordChunkTokens;
  live.prefill_tokens = run.trace.prompt_count;
  live.selection.select_ahead = false;
  const auto expected = Evaluate(*run.model, run.tokens, live, nullptr);
  EXPECT_TRUE(expected.ok()) << Message(expected.status());
  ReplayOptions options;
  static_cast<MeasureOptions&>(options) = live;
  options.rotary_pairs = compute::RotaryPairs::kAdjacent;
  return {expected.ok() ? *expected : std::vector<PolicyResult>(), Replayed(run.trace, options)};
}

// What is replayed differs from the run in queries of 16 bits only: those who do not look at them
// do the same, to the entry.
TEST(ReplayTest, GivesWhatTheModelsRunGives) {
  const std::uint64_t seed = test::TestSeed();
  const RecordedRun run = Record(650, 200, seed);
  const auto [live, replayed] = BothOf(
      run, {"full", "streaming", "random", "oracle", "no-cluster", "static-cluster", "dynakv"});
  ASSERT_EQ(live.size(), 7U);
  ASSERT_EQ(replayed.size(), live.size());
  for (std::size_t i = 0; i < replayed.size(); ++i) {
    const bool looks = i > 2;
    ASSERT_EQ(std::ssize(replayed[i].heads), run.model->config().kv_head_count);
    for (std::size_t head = 0; head < replayed[i].heads.size(); ++head) {
      const HeadAttention& told = replayed[i].heads[head];
      const HeadAttention& wanted = live[i].heads[head];
      const std::string where = fmt::format("{}, head {}, seed {}", replayed[i].policy, head, seed);
      EXPECT_EQ(told.step_count, 450) << where;
      EXPECT_EQ(told.recall_count, wanted.recall_count) << where;
      EXPECT_NEAR(told.recall(), wanted.recall(), looks ? 2e-3 : 1e-5) << where;
      const double attended = static_cast<double>(wanted.attended_sum);
      EXPECT_NEAR(static_cast<double>(told.attended_sum), attended, looks ? 0.005 * attended : 0)
          << where;
      const double arrived = static_cast<double>(wanted.arrived_sum);
      EXPECT_NEAR(static_cast<double>(told.arrived_sum), arrived, looks ? 0.03 * arrived : 0)
          << where;
    }
  }
  const HeadAttention& streaming = replayed[1].heads[0];
  const HeadAttention& oracle = replayed[3].heads[0];
  EXPECT_GT(oracle.recall(), streaming.recall() + 0.01);  // so that the comparison can fail
}

TEST(ReplayTest, TheIndexIsThatOfTheModelsRun) {
  const std::uint64_t seed = test::TestSeed();
  const RecordedRun run = Record(400, 200, seed);
  const auto [live, replayed] = BothOf(run, {"dynakv"});
  ASSERT_EQ(live.size(), 1U);
  ASSERT_EQ(replayed.size(), 1U);
  const std::vector<IndexSample>& index = replayed[0].index;
  const std::vector<IndexSample>& wanted = live[0].index;
  ASSERT_EQ(index.size(), wanted.size());
  for (std::size_t head = 0; head < index[0].statistics.heads.size(); ++head) {
    const compute::HeadStatistics& prompt = wanted[0].statistics.heads[head];
    EXPECT_EQ(index[0].statistics.heads[head].entry_count, prompt.entry_count);
    EXPECT_EQ(index[0].statistics.heads[head].cluster_count, prompt.cluster_count);
    EXPECT_NEAR(index[0].statistics.heads[head].variance, prompt.variance, 2e-3 * prompt.variance)
        << "seed " << seed;
  }
}

// Queries that look at two numbers of a key only: clusters of the prompt are near in these, once
// the prompt's queries are there to learn it from.
TEST(ReplayTest, WithoutQueriesOfThePromptDistancesArePlain) {
  const std::uint64_t seed = test::TestSeed();
  const auto variance = [&](std::int64_t query_from) {
    Trace trace = RandomTrace(210, 200, query_from, 1, seed);
    for (std::size_t i = 0; i < trace.queries.size(); ++i) {
      if (i % 16 > 1) trace.queries[i] = 0;
    }
    ReplayOptions options = SmallReplay({"dynakv"});
    if (query_from < 200) options.rotary_pairs = compute::RotaryPairs::kHalves;
    const std::vector<PolicyResult> results = Replayed(trace, options);
    return results.empty() ? 0 : TotalsOf(results[0].index.front().statistics).variance;
  };
  EXPECT_LT(variance(0), 0.9 * variance(200)) << "seed " << seed;
}

TEST(ReplayTest, OnlyRecordedPositionsCount) {
  const std::uint64_t seed = test::TestSeed();
  const Trace trace = RandomTrace(300, 100, 103, 7, seed);  // 103 to 299: 29 steps
  ReplayOptions options = SmallReplay({"oracle", "dynakv"});
  options.recall_every = 4;
  for (const PolicyResult& result : Replayed(trace, options)) {
    ASSERT_EQ(result.heads.size(), 2U);
    for (const HeadAttention& head : result.heads) {
      EXPECT_EQ(head.step_count, 29) << result.policy;
      EXPECT_EQ(head.recall_count, 8) << result.policy;
      EXPECT_GT(head.recall_min, 0) << result.policy << " seed " << seed;
      EXPECT_LT(head.recall_min, 1) << result.policy << " seed " << seed;
    }
  }
  const ReplayCounts counts = CountsOf(trace);
  EXPECT_EQ(counts.token_count, 300);
  EXPECT_EQ(counts.step_count, 29);
  EXPECT_EQ(counts.prompt_query_count, 0);
}

TEST(ReplayTest, APromptOfSeveralChunksAndNoneAreReplayed) {
  const std::uint64_t seed = test::TestSeed();
  ReplayOptions options = SmallReplay({"full", "dynakv", "static-cluster"});
  options.chunk_tokens = 128;
  for (const std::int64_t prompt_count : {500, 0}) {
    const Trace trace = RandomTrace(540, prompt_count, 500, 1, seed);
    for (const PolicyResult& result : Replayed(trace, options)) {
      EXPECT_EQ(result.heads[0].step_count, 40) << result.policy;
      if (result.policy != "full") continue;
      EXPECT_NEAR(result.heads[0].recall_min, 1, 1e-12);
    }
  }
}

TEST(TraceRowsTest, PositionsWithoutQueriesHaveThoseOfTheNextOne) {
  const Trace trace = RandomTrace(40, 20, 3, 10, 1);  // 3, 13, 23, 33
  TraceRows rows(trace);
  EXPECT_EQ(rows.prompt_step_count(), 2);
  EXPECT_EQ(rows.StepsBehindPrompt(), (std::vector<std::int64_t>{23, 33}));
  EXPECT_EQ(rows.QueryStep(0), 0);
  EXPECT_EQ(rows.QueryStep(4), 1);
  EXPECT_EQ(rows.QueryStep(13), 1);
  EXPECT_EQ(rows.QueryStep(19), 1);  // not those of what comes behind the prompt
  EXPECT_EQ(rows.QueryStep(20), 2);
  EXPECT_EQ(rows.QueryStep(24), 3);
  const compute::AttentionBatch batch = rows.Load(1, 12, 3);
  EXPECT_EQ(batch.q.size(), 3U * 2 * 16);
  std::vector<float> expected(32);
  compute::F16ToF32(trace.Queries(1, 1, 0), expected);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), batch.q.begin()));
  expected.resize(16);
  compute::F16ToF32(trace.Key(1, 0, 13), expected);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), batch.k.begin() + 16));
  EXPECT_EQ(std::count(batch.v.begin(), batch.v.end(), 0.0F), 3 * 16);
}

TEST(TraceRowsTest, APromptWithoutQueriesHasZeros) {
  const Trace trace = RandomTrace(40, 20, 23, 10, 1);
  TraceRows rows(trace);
  EXPECT_EQ(rows.QueryStep(19), std::nullopt);
  rows.Load(0, 30, 10);  // leaves its rows behind
  const compute::AttentionBatch batch = rows.Load(0, 0, 20);
  EXPECT_EQ(std::count(batch.q.begin(), batch.q.end(), 0.0F), std::ssize(batch.q));
}

TEST(SelectionLogTest, ALineHasRunsOfPositions) {
  const std::vector<std::int64_t> attended = {0, 1, 2, 3, 9, 40, 41};
  EXPECT_EQ(SelectionLine({.policy = "random",
                           .position = 41,
                           .head = {.layer = 3, .kv_head = 1},
                           .attended = attended}),
            "{\"policy\":\"random\",\"position\":41,\"layer\":3,\"kv_head\":1,"
            "\"attended\":[[0,4],[9,1],[40,2]]}\n");
}

TEST(ReplayTest, SelectionsAreWhatWasAttendedWhereRecallIsMeasured) {
  const std::uint64_t seed = test::TestSeed();
  const Trace trace = RandomTrace(300, 200, 210, 10, seed);  // 210 to 290: 9 steps
  const test::TempDir folder;
  const std::string path = folder.File("selections");
  OutputFile log(path);
  ASSERT_TRUE(log.Open().ok());
  ReplayOptions options = SmallReplay({"streaming", "full", "oracle"});
  options.recall_every = 4;  // 210, 250 and 290
  options.selections = &log;
  const std::vector<PolicyResult> results = Replayed(trace, options);
  EXPECT_NE(::access(path.c_str(), F_OK), 0);  // not before it is whole
  ASSERT_TRUE(log.Commit().ok());
  std::ifstream file(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 3U * 3 * 2);  // policies, steps, heads
  for (const nlohmann::json& line : lines) {
    const std::int64_t position = line.at("position");
    EXPECT_TRUE(position == 210 || position == 250 || position == 290) << position;
    EXPECT_TRUE(line.at("layer") == 3 || line.at("layer") == 5) << line;
    EXPECT_EQ(line.at("kv_head"), 1);
    const nlohmann::json& runs = line.at("attended");
    EXPECT_EQ(runs.at(0).at(0), 0) << line;  // the sinks
    EXPECT_EQ(runs.back().at(0).get<std::int64_t>() + runs.back().at(1).get<std::int64_t>(),
              position + 1);
    std::int64_t count = 0;
    for (const nlohmann::json& each : runs) count += each.at(1).get<std::int64_t>();
    if (line.at("policy") == "full") {
      EXPECT_EQ(count, position + 1);
    } else {
      EXPECT_EQ(count, 64) << line;
    }
    if (line.at("policy") == "streaming") {
      EXPECT_EQ(runs, nlohmann::json({{0, 4}, {position + 1 - 60, 60}}));
    }
  }
}

TEST(ReplayTest, FiguresHaveTheModelsNumbersAndNoDivergence) {
  const Trace trace = RandomTrace(260, 200, 200, 1, 1);
  const std::vector<PolicyResult> results = Replayed(trace, SmallReplay({"dynakv"}));
  ASSERT_EQ(results.size(), 1U);
  const nlohmann::ordered_json json = ToJson(results[0]);
  EXPECT_FALSE(json.contains("kl"));
  EXPECT_FALSE(json.contains("same_best"));
  EXPECT_EQ(json.at("recall").at("steps"), 60);
  EXPECT_EQ(json.at("recall").at("lowest_at").at("kv_head"), 1);
  ASSERT_EQ(json.at("heads").size(), 2U);
  EXPECT_EQ(json.at("heads").at(1).at("layer"), 5);
  EXPECT_EQ(json.at("index").back().at("heads").at(0).at("layer"), 3);
  EXPECT_GT(json.at("fetched_bytes_per_token"), 0);
  EXPECT_NE(Table(results).find("\ndynakv                 -"), std::string::npos) << Table(results);
}

TEST(ReplayTest, PoliciesThatLearnFromPromptsAreRefused) {
  ThreadPool pool(1);
  const Trace trace = RandomTrace(300, 200, 210, 10, test::TestSeed());
  const absl::Status refused = Replay(trace, SmallReplay({"morph"}), pool, nullptr).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(refused).find("morph learns from what prompts attend"), std::string::npos)
      << Message(refused);
}

TEST(ReplayTest, WhatCannotBeReplayedIsRefused) {
  const Trace good = RandomTrace(120, 100, 0, 1, 1);
  const auto refusal = [](const Trace& trace, const ReplayOptions& options) {
    ThreadPool pool(1);
    const absl::Status status = Replay(trace, options, pool, nullptr).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return Message(status);
  };
  const auto expect = [](const std::string& said, std::string_view part) {
    EXPECT_NE(said.find(part), std::string::npos) << said;
  };
  expect(refusal(good, SmallReplay({"telepathy"})), "telepathy");
  expect(refusal(good, SmallReplay({"full", "full"})), "named twice");
  expect(refusal(good, SmallReplay({"dynakv"})), "--rotary-pairs");
  ReplayOptions options = SmallReplay({"full"});
  options.recall_every = 0;
  expect(refusal(good, options), "every 0 tokens");
  options = SmallReplay({"full"});
  options.selection.estimate_percent = 10;
  expect(refusal(good, options), "a trace has none");
  options = SmallReplay({"full"});
  options.follow_clusters = true;
  expect(refusal(good, options), "where a model runs");

  options = SmallReplay({"full"});
  Trace trace = good;
  trace.prompt_count = 120;
  expect(refusal(trace, options), "no queries behind its 120 tokens of prompt");
  trace = good;
  trace.keys[17] = 0x7c00;
  expect(refusal(trace, options), "number 17 of the trace's keys is not finite");
  trace = good;
  trace.queries.back() = 0xfe00;
  expect(refusal(trace, options), "queries is not finite");
  trace = good;
  trace.queries.pop_back();
  expect(refusal(trace, options), "number of query values");
  trace = good;
  trace.head_dim = 4;
  trace.keys.resize(static_cast<std::size_t>(trace.key_value_count()));
  trace.queries.resize(static_cast<std::size_t>(trace.query_value_count()));
  expect(refusal(trace, options), "heads of 4 numbers");
}

}  // namespace
}  // namespace cairn::eval
