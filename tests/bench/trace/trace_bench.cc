// Replays a trace through a storage engine and tells what that cost: reads, writes by cause, hits,
// space. --help has the options; docs/benchmarks.md has figures.
//
// usage: trace_bench TRACE | --synthetic [options]
#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "common/log/log.h"
#include "tests/bench/trace/replay.h"
#include "tests/bench/trace/report.h"
#include "tests/bench/trace/store.h"
#include "tests/bench/trace/trace_source.h"

namespace cairn::bench {
namespace {

struct Settings {
  std::string trace;
  bool synthetic = false;
  bool pair_heads = false;
  SyntheticOptions made;
  std::string order = "cluster";
  std::string replacement = "cluster_aligned";
  std::string io_engine = "auto";
  bool no_index = false;
  bool no_links = false;
  bool no_sharing = false;
  bool json = false;
  ReplayOptions replay;
  StoreOptions store;
};

void AddOptions(CLI::App& app, Settings& s) {
  app.add_option("TRACE", s.trace, "A trace that `cairn model trace` recorded");
  app.add_flag("--synthetic", s.synthetic, "Make a trace instead: trace_source.h says how");
  app.add_option("--dim", s.made.head_dim, "Head size of a synthetic trace")->capture_default_str();
  app.add_option("--tokens", s.made.token_count, "Its tokens")->capture_default_str();
  app.add_option("--prompt", s.made.prompt_count, "Of them, prompt")->capture_default_str();
  app.add_option("--query-from", s.made.query_from,
                 "Its first position with queries; -1: that behind the prompt")
      ->capture_default_str();
  app.add_option("--layers", s.made.layer_count, "Its layers")->capture_default_str();
  app.add_option("--kv-heads", s.made.kv_head_count, "Its KV heads")->capture_default_str();
  app.add_option("--seed", s.made.seed, "Its seed")->capture_default_str();
  app.add_flag("--pair-heads", s.pair_heads, "Take pairs of KV heads as one of twice the size");
  app.add_option("--order", s.order, "How entries are grouped: cluster, or sequence (of positions)")
      ->capture_default_str();
  app.add_option("--cluster-entries", s.replay.cluster_entries,
                 "Entries of a cluster on average; one with more than twice as many is split")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--select", s.replay.select_share, "Share of the entries that a step fetches")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--chunk-tokens", s.replay.chunk_tokens, "Tokens of a prompt chunk")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--checkpoint-tokens", s.replay.checkpoint_tokens,
                 "Decoded tokens between two checkpoints")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_flag("--no-index", s.no_index, "Store no index rows");
  app.add_flag("--no-links", s.no_links, "Do not place clusters by what is fetched together");
  app.add_flag("--rest", s.replay.rest,
               "At the end, seal the segment and let the defragmenter pack it");
  app.add_option("--device-profile", s.store.device_profile,
                 "Model the flash: emmc, ufs3.1, ufs4.0");
  kv::EngineOptions& engine = s.store.engine;
  app.add_option("--arena-bytes", engine.arena_bytes_max, "Cache; 0: every fetch reads")
      ->capture_default_str();
  app.add_option("--cache-replacement", s.replacement, "cluster_aligned, lru, lfu or fifo")
      ->capture_default_str();
  app.add_flag("--no-pool-sharing", s.no_sharing, "One part a pool");
  app.add_option("--place-entries-min", engine.place_entries_min,
                 "Unplaced entries of a cluster that is placed at idle")
      ->capture_default_str();
  app.add_option("--pending-bytes", engine.pending_bytes_max, "Entries that are not on flash yet")
      ->capture_default_str();
  app.add_option("--merge-gap-bytes", engine.merge_gap_bytes, "Holes that are read through")
      ->capture_default_str();
  app.add_option("--store", s.store.directory,
                 "Directory for an extent file, which must not have one; without it the store is "
                 "in memory");
  app.add_option("--store-bytes", s.store.size_bytes, "Size of the store")->capture_default_str();
  app.add_option("--io-engine", s.io_engine, "auto, io_uring or threads")->capture_default_str();
  app.add_flag("--json", s.json, "Print one JSON object instead of a table");
}

absl::StatusOr<Trace> LoadTrace(const Settings& settings) {
  if (settings.synthetic != settings.trace.empty()) {
    return InvalidArgument("give either a trace or --synthetic");
  }
  absl::StatusOr<Trace> trace =
      settings.synthetic ? SyntheticTrace(settings.made) : ReadTraceFile(settings.trace);
  if (!trace.ok() || !settings.pair_heads) return trace;
  return PairHeads(*trace);
}

absl::Status Run(Settings& settings) {
  CAIRN_ASSIGN_OR_RETURN(settings.replay.order, ParseOrder(settings.order));
  CAIRN_ASSIGN_OR_RETURN(settings.store.engine.replacement,
                         kv::ParseReplacementPolicy(settings.replacement));
  CAIRN_ASSIGN_OR_RETURN(settings.store.io_engine, kv::ParseIoEngine(settings.io_engine));
  settings.replay.index_rows = !settings.no_index;
  settings.store.engine.pool_sharing = !settings.no_sharing;
  settings.store.engine.co_retrieval = !settings.no_links;
  settings.store.engine.defragment = settings.replay.rest;
  settings.store.engine.defragment_idle = std::chrono::milliseconds(0);
  CAIRN_ASSIGN_OR_RETURN(const Trace trace, LoadTrace(settings));
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, Store::Open(settings.store));
  CAIRN_ASSIGN_OR_RETURN(const ReplayResult result,
                         Replay(trace, settings.replay, store->engine()));
  if (!settings.json) std::printf("%-32s %s\n", "trace", trace.origin.c_str());
  std::printf("%s", (settings.json ? JsonReport(result) : TextReport(result)).c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Replays a trace of keys and queries through a storage engine.");
  Settings settings;
  AddOptions(app, settings);
  CLI11_PARSE(app, argc, argv);
  absl::Status status = InitLogging("trace_bench", "warn");
  if (status.ok()) status = Run(settings);
  if (status.ok()) return 0;
  std::fprintf(stderr, "trace_bench: %s\n", Message(status).c_str());
  return 1;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) {
  try {
    return cairn::bench::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trace_bench: %s\n", error.what());
    return 1;
  }
}
