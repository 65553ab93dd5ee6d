// The driver of trace_bench on recorded traces, through the real engine over memory.
#include "tests/bench/trace/replay.h"

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "tests/bench/trace/report.h"
#include "tests/bench/trace/store.h"
#include "tests/bench/trace/trace_source.h"

namespace cairn::bench {
namespace {

const std::string kData = CAIRN_SOURCE_DIR "/tests/data/";

Trace Recorded(const std::string& name) {
  absl::StatusOr<Trace> trace = ReadTraceFile(kData + name);
  EXPECT_TRUE(trace.ok()) << trace.status();
  return trace.ok() ? *std::move(trace) : Trace();
}

StoreOptions InMemory() {
  StoreOptions options;
  options.size_bytes = std::int64_t{64} << 20;
  options.engine.arena_bytes_max = 0;
  return options;
}

ReplayOptions Options(std::int64_t cluster_entries, std::int64_t checkpoint_tokens = 1024) {
  ReplayOptions options;
  options.cluster_entries = cluster_entries;
  options.checkpoint_tokens = checkpoint_tokens;
  return options;
}

ReplayResult RunReplay(const Trace& trace, const ReplayOptions& options, const StoreOptions& in) {
  auto store = Store::Open(in);
  EXPECT_TRUE(store.ok()) << store.status();
  if (!store.ok()) return {};
  auto result = Replay(trace, options, (*store)->engine());
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : ReplayResult();
}

// What must hold of any replay.
void ExpectSums(const Trace& trace, const ReplayResult& result) {
  const std::int64_t rows = std::ssize(trace.layers) * std::ssize(trace.kv_heads);
  EXPECT_EQ(result.prompt.token_count + result.decode.token_count, trace.token_count);
  EXPECT_EQ(result.prompt.entry_bytes + result.decode.entry_bytes,
            trace.token_count * rows * result.entry_bytes);
  EXPECT_EQ(result.entry_bytes, 4 * trace.head_dim);
  // All but the window is in clusters: 97 to 128 tokens.
  const std::int64_t window_count = trace.token_count * rows - result.stored_entry_count;
  EXPECT_GE(window_count, 97 * rows);
  EXPECT_LE(window_count, 128 * rows);
  EXPECT_EQ(result.fetch_count, std::ssize(trace.steps) * std::ssize(trace.layers));
  EXPECT_EQ(std::ssize(result.fetch_us), result.fetch_count);
  EXPECT_GE(result.fetched_entry_count, result.fetched_cluster_count);
  EXPECT_EQ(result.read_entry_count() + result.pending_entry_count, result.fetched_entry_count);
  EXPECT_LE(result.flash_cluster_count, result.fetched_cluster_count);
  EXPECT_GE(result.sequence_run_count, 1);
  for (const Phase* phase : {&result.prompt, &result.decode}) {
    EXPECT_EQ(phase->written_bytes(), phase->stats.write_log_bytes +
                                          phase->stats.write_relog_bytes + phase->page_bytes() +
                                          phase->stats.write_split_bytes +
                                          phase->stats.write_index_bytes + phase->meta_bytes());
    EXPECT_GE(phase->page_bytes(), 0);
    EXPECT_GE(phase->WriteAmplification(), 1);
    EXPECT_GT(phase->stats.write_meta_log_bytes, phase->stats.index_row_bytes);
  }
  // Every entry is in a log run or a pool.
  EXPECT_GE(result.decode.stats.flash_used_bytes,
            result.prompt.entry_bytes + result.decode.entry_bytes);
}

TEST(ReplayTest, EveryFetchOfARecordedTraceBringsWhatWasStored) {
  const Trace trace = Recorded("retrieval-layer2.trace");
  for (const std::int64_t entries : {8, 32}) {
    StoreOptions in = InMemory();
    in.engine.place_entries_min = static_cast<std::int32_t>(entries / 2);
    const ReplayResult result = RunReplay(trace, Options(entries), in);
    ExpectSums(trace, result);
    EXPECT_GT(result.split_count, 0);
    EXPECT_GT(result.decode.stats.write_split_bytes, 0);
    EXPECT_GT(result.packed_moved_bytes, 0);
    // Without a cache nothing is a hit, and each piece is one device request, but for pages that
    // are being written at the time.
    EXPECT_EQ(result.decode.stats.cache_hit_count, 0);
    EXPECT_LE(result.decode.stats.read_fetch_count, result.read_count());
  }
}

TEST(ReplayTest, SequenceOrderNeverSplits) {
  const Trace trace = Recorded("retrieval-head0.trace");
  ReplayOptions options = Options(32);
  options.order = Order::kSequence;
  const ReplayResult result = RunReplay(trace, options, InMemory());
  ExpectSums(trace, result);
  EXPECT_EQ(result.split_count, 0);
  EXPECT_EQ(result.decode.stats.write_split_bytes, 0);
  // Two layers of 800 entries in runs of 32.
  EXPECT_EQ(result.cluster_count, 2 * ((result.stored_entry_count / 2 + 31) / 32));
}

TEST(ReplayTest, EveryPolicyOfTheCacheServesTheSameBytes) {
  const Trace trace = Recorded("retrieval-head0.trace");
  for (const kv::ReplacementPolicy policy :
       {kv::ReplacementPolicy::kClusterAligned, kv::ReplacementPolicy::kLru,
        kv::ReplacementPolicy::kLfu, kv::ReplacementPolicy::kFifo}) {
    StoreOptions in = InMemory();
    in.engine.arena_bytes_max = kv::kArenaBytesMin;
    in.engine.replacement = policy;
    const ReplayResult result = RunReplay(trace, {}, in);
    ExpectSums(trace, result);
    const KvStats& stats = result.decode.stats;
    EXPECT_GT(stats.cache_hit_count, 0);
    EXPECT_GT(stats.cache_miss_count, 0);
    // Parts, of which a fetched cluster has one or several.
    EXPECT_GE(stats.cache_hit_count + stats.cache_miss_count, result.flash_cluster_count);
  }
}

TEST(ReplayTest, FrequentCheckpointsWriteMoreAndServeTheSame) {
  const Trace trace = Recorded("retrieval-layer2.trace");
  const ReplayResult seldom = RunReplay(trace, Options(8, 512), InMemory());
  const ReplayResult often = RunReplay(trace, Options(8, 20), InMemory());
  ExpectSums(trace, often);
  EXPECT_EQ(seldom.checkpoint_count, 1 + 1);
  EXPECT_EQ(often.checkpoint_count, 1 + 320 / 20);
  EXPECT_GT(often.decode.written_bytes(), seldom.decode.written_bytes());
  EXPECT_EQ(often.fetched_entry_count, seldom.fetched_entry_count);
}

TEST(ReplayTest, AnyPlaceEntriesMinServesTheSame) {
  SyntheticOptions made;
  made.token_count = 600;
  made.prompt_count = 300;
  const auto trace = SyntheticTrace(made);
  ASSERT_TRUE(trace.ok()) << trace.status();
  for (const std::int32_t entries : {1, 1000}) {
    StoreOptions in = InMemory();
    in.engine.place_entries_min = entries;
    in.engine.pool_sharing = entries == 1;
    ExpectSums(*trace, RunReplay(*trace, Options(8, 100), in));
  }
}

TEST(ReplayTest, ASealedSegmentIsPackedWhileItRests) {
  const Trace trace = Recorded("retrieval-layer2.trace");
  ReplayOptions options = Options(8);
  options.rest = true;
  StoreOptions in = InMemory();
  in.engine.defragment = true;
  in.engine.defragment_idle = std::chrono::milliseconds(0);
  const ReplayResult result = RunReplay(trace, options, in);
  ExpectSums(trace, result);
  const RestResult& rest = result.rest;
  EXPECT_EQ(rest.before.fetch_count, result.fetch_count);
  EXPECT_EQ(rest.after.fetched_entry_count, rest.before.fetched_entry_count);
  EXPECT_LT(rest.after.read_count(), rest.before.read_count());
  EXPECT_LT(rest.flash_used_after_bytes, rest.flash_used_before_bytes);
  EXPECT_GT(rest.written_bytes, 0);
}

TEST(ReplayTest, ReportsNameTheSameNumbers) {
  const Trace trace = Recorded("retrieval-head0.trace");
  const ReplayResult result = RunReplay(trace, {}, InMemory());
  const std::string json = JsonReport(result);
  const std::string text = TextReport(result);
  EXPECT_NE(json.find(fmt::format("\"fetched_entries\": {},", result.fetched_entry_count)),
            std::string::npos);
  EXPECT_NE(text.find(fmt::format("{:<32} {}\n", "fetched_entries", result.fetched_entry_count)),
            std::string::npos);
}

}  // namespace
}  // namespace cairn::bench
