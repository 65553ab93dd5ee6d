#include "tests/bench/trace/report.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cairn::bench {
namespace {

double Ratio(std::int64_t a, std::int64_t b) {
  return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b);
}

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

// Entries in the piece that has at most `share` of the pieces below it.
std::int64_t ReadQuantile(const ReplayResult& result, double share) {
  auto left = static_cast<std::int64_t>(share * static_cast<double>(result.read_count()));
  for (const auto& [entries, pieces] : result.reads) {
    if (left < pieces) return entries;
    left -= pieces;
  }
  return result.reads.empty() ? 0 : result.reads.rbegin()->first;
}

using Fields = std::vector<std::pair<std::string, std::string>>;

void Add(Fields& fields, std::string name, std::int64_t value) {
  fields.emplace_back(std::move(name), fmt::format("{}", value));
}
void Add(Fields& fields, std::string name, double value) {
  fields.emplace_back(std::move(name), fmt::format("{:.4g}", value));
}

void AddPhase(Fields& fields, const std::string& name, const Phase& phase) {
  const std::int64_t entry_bytes = phase.entry_bytes;
  Add(fields, name + "_tokens", phase.token_count);
  Add(fields, name + "_entry_bytes", entry_bytes);
  Add(fields, name + "_written_bytes", phase.written_bytes());
  Add(fields, name + "_write_amplification", phase.WriteAmplification());
  Add(fields, name + "_wa_log", Ratio(phase.stats.write_log_bytes, entry_bytes));
  Add(fields, name + "_wa_merge", Ratio(phase.stats.write_relog_bytes, entry_bytes));
  Add(fields, name + "_wa_page", Ratio(phase.page_bytes(), entry_bytes));
  Add(fields, name + "_wa_split", Ratio(phase.stats.write_split_bytes, entry_bytes));
  Add(fields, name + "_wa_index",
      Ratio(phase.stats.index_row_bytes + phase.stats.write_index_bytes, entry_bytes));
  Add(fields, name + "_wa_metadata",
      Ratio(phase.meta_bytes() - phase.stats.index_row_bytes, entry_bytes));
  Add(fields, name + "_read_place_bytes", phase.stats.read_place_bytes);
}

void AddReads(Fields& fields, const std::string& name, const FetchCounts& counts) {
  Add(fields, name + "_entries_per_piece", Ratio(counts.read_entry_count(), counts.read_count()));
  Add(fields, name + "_pieces_per_cluster",
      Ratio(counts.read_count(), counts.fetched_cluster_count));
}

void AddRest(Fields& fields, const RestResult& rest, std::int64_t all_bytes) {
  if (rest.after.fetch_count == 0) return;
  AddReads(fields, "sealed", rest.before);
  AddReads(fields, "rested", rest.after);
  Add(fields, "sealed_space_overhead", Ratio(rest.flash_used_before_bytes, all_bytes));
  Add(fields, "rested_space_overhead", Ratio(rest.flash_used_after_bytes, all_bytes));
  Add(fields, "rest_written", Ratio(rest.written_bytes, all_bytes));
}

Fields FieldsOf(const ReplayResult& result) {
  Fields fields;
  const KvStats& stats = result.decode.stats;
  const std::int64_t looked = stats.cache_hit_count + stats.cache_miss_count;
  const std::int64_t data_bytes = result.prompt.stats.write_pool_bytes +
                                  result.prompt.stats.write_log_bytes +
                                  result.prompt.stats.write_relog_bytes + stats.write_pool_bytes +
                                  stats.write_log_bytes + stats.write_relog_bytes;
  const std::int64_t all_bytes = result.prompt.entry_bytes + result.decode.entry_bytes;
  Add(fields, "layers", std::int64_t{result.layout.layer_count});
  Add(fields, "kv_heads", std::int64_t{result.layout.head_count});
  Add(fields, "head_dim", std::int64_t{result.layout.head_dim});
  Add(fields, "entry_bytes", result.entry_bytes);
  AddPhase(fields, "prompt", result.prompt);
  AddPhase(fields, "decode", result.decode);
  Add(fields, "checkpoints", result.checkpoint_count);
  Add(fields, "splits", result.split_count);
  Add(fields, "clusters", result.cluster_count);
  Add(fields, "entries_per_cluster", Ratio(result.stored_entry_count, result.cluster_count));
  Add(fields, "fetches", result.fetch_count);
  Add(fields, "fetched_clusters", result.fetched_cluster_count);
  Add(fields, "fetched_entries", result.fetched_entry_count);
  Add(fields, "fetched_pending_entries", result.pending_entry_count);
  Add(fields, "device_reads", stats.read_fetch_count);
  Add(fields, "device_read_bytes", stats.read_fetch_bytes);
  Add(fields, "hole_bytes", stats.read_hole_bytes);
  Add(fields, "pieces", result.read_count());
  Add(fields, "entries_per_piece", Ratio(result.read_entry_count(), result.read_count()));
  Add(fields, "entries_per_piece_p50", ReadQuantile(result, 0.5));
  Add(fields, "entries_per_piece_p90", ReadQuantile(result, 0.9));
  Add(fields, "entries_per_piece_max",
      result.reads.empty() ? std::int64_t{0} : result.reads.rbegin()->first);
  Add(fields, "bytes_per_read", Ratio(stats.read_fetch_bytes, stats.read_fetch_count));
  Add(fields, "reads_per_cluster", Ratio(stats.read_fetch_count, result.fetched_cluster_count));
  Add(fields, "extra_reads_per_cluster",
      Ratio(result.extra_read_count, result.flash_cluster_count));
  Add(fields, "entries_per_run_in_sequence",
      Ratio(result.fetched_entry_count, result.sequence_run_count));
  Add(fields, "cache_hits", stats.cache_hit_count);
  Add(fields, "cache_misses", stats.cache_miss_count);
  Add(fields, "hit_rate", Ratio(stats.cache_hit_count, looked));
  Add(fields, "hit_rate_bytes",
      Ratio(stats.cache_hit_bytes, stats.cache_hit_bytes + stats.cache_miss_bytes));
  Add(fields, "flash_used_bytes", stats.flash_used_bytes);
  Add(fields, "space_overhead", Ratio(stats.flash_used_bytes, all_bytes));
  Add(fields, "moved_bytes", data_bytes - all_bytes);
  Add(fields, "packed_moved_bytes", result.packed_moved_bytes);
  Add(fields, "in_place_moved_bytes", result.in_place_moved_bytes);
  AddRest(fields, result.rest, all_bytes);
  const double fetch_us = std::accumulate(result.fetch_us.begin(), result.fetch_us.end(), 0.0);
  Add(fields, "fetch_mean_us", fetch_us / static_cast<double>(std::ssize(result.fetch_us)));
  Add(fields, "fetch_p50_us", Quantile(result.fetch_us, 0.5));
  Add(fields, "fetch_p99_us", Quantile(result.fetch_us, 0.99));
  return fields;
}

}  // namespace

std::string JsonReport(const ReplayResult& result) {
  std::string out = fmt::format("{{\"io_engine\": \"{}\"", result.decode.stats.io_engine);
  for (const auto& [name, value] : FieldsOf(result))
    out += fmt::format(", \"{}\": {}", name, value);
  return out + "}\n";
}

std::string TextReport(const ReplayResult& result) {
  std::string out = fmt::format("{:<32} {}\n", "io_engine", result.decode.stats.io_engine);
  for (const auto& [name, value] : FieldsOf(result)) out += fmt::format("{:<32} {}\n", name, value);
  return out;
}

}  // namespace cairn::bench
