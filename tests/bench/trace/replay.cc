#include "tests/bench/trace/replay.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>
#include <string>

#include "common/base/check.h"
#include "compute-node/kernels/convert.h"
#include "tests/bench/trace/packed_layout.h"
#include "tests/unit/engine/engine_harness.h"

namespace cairn::bench {
namespace {

using Clock = std::chrono::steady_clock;

// As in compute-node/session/entries/window.h.
constexpr std::int64_t kWindowTokens = 128;
constexpr std::int64_t kWindowStep = 32;
constexpr std::int64_t kAppendBytesMax = std::int64_t{256} << 10;

std::int64_t WindowStart(std::int64_t token_count) {
  const std::int64_t surplus = token_count - (kWindowTokens - kWindowStep + 1);
  return surplus <= 0 ? 0 : surplus / kWindowStep * kWindowStep;
}

std::vector<float> Floats(std::span<const std::uint16_t> values) {
  std::vector<float> out(values.size());
  compute::F16ToF32(values, out);
  return out;
}

KeyRows RowsOf(const Trace& trace, std::int64_t layer, std::int64_t head) {
  KeyRows rows;
  rows.dim = trace.head_dim;
  const std::size_t values = static_cast<std::size_t>(trace.token_count * trace.head_dim);
  rows.values.resize(values);
  compute::F16ToF32({trace.Key(layer, head, 0).data(), values}, rows.values);
  return rows;
}

KvStats Difference(const KvStats& after, const KvStats& before) {
  KvStats out = after;
  for (std::int64_t KvStats::*field :
       {&KvStats::read_fetch_bytes, &KvStats::read_fetch_count, &KvStats::read_place_bytes,
        &KvStats::read_hole_bytes, &KvStats::write_pool_bytes, &KvStats::write_split_bytes,
        &KvStats::write_log_bytes, &KvStats::write_relog_bytes, &KvStats::write_meta_log_bytes,
        &KvStats::write_meta_table_bytes, &KvStats::index_row_bytes, &KvStats::write_index_bytes,
        &KvStats::append_bytes, &KvStats::cache_hit_count, &KvStats::cache_hit_bytes,
        &KvStats::cache_miss_count, &KvStats::cache_miss_bytes, &KvStats::checkpoint_count}) {
    out.*field -= before.*field;
  }
  return out;
}

// One layer and KV head.
struct Head {
  Head(KeyRows rows, const ReplayOptions& options)
      : keys(std::move(rows)),
        clusters(keys, options.order, options.cluster_entries, 2 * options.cluster_entries) {}
  KeyRows keys;
  KeyClusters clusters;
  PackedLayout packed;
  std::set<std::int64_t> changed;  // ids whose index row is older than they are
};

class Driver {
 public:
  Driver(const Trace& trace, const ReplayOptions& options, kv::Engine& engine)
      : trace_(trace), options_(options), engine_(engine) {}

  absl::StatusOr<ReplayResult> Run();

 private:
  absl::Status Open();
  absl::Status StorePrompt();
  absl::Status Decode();
  absl::Status Rest();
  // For all steps of decode.
  absl::Status FetchAgain(FetchCounts& counts);
  absl::Status AwaitDefragmented();
  absl::Status FetchStep(std::int64_t step, FetchCounts& counts);
  absl::Status FetchLayer(std::int64_t step, std::int32_t layer, FetchCounts& counts);
  absl::Status CheckCluster(std::int32_t layer, const FetchedCluster& cluster);
  // Entries below `stored_until` leave the window.
  void AppendLeaving(std::int32_t layer, std::int64_t stored_until, bool is_prompt);
  // The clusters of the prompt below `prompt_end`.
  void SendAppend(std::int32_t layer, const std::vector<ClusterEntries>& entries);
  void SplitClusters(std::int32_t layer, std::int32_t head, const std::set<std::int64_t>& ids);
  absl::Status TakeCheckpoint(std::int64_t token_count, bool seal = false);
  void StageWindow(std::int32_t layer, std::int64_t token_count);
  void SendIndexRows(std::int32_t layer);
  absl::StatusOr<KvStats> Stats();

  std::string Entry(std::int32_t layer, std::int32_t head, std::int64_t position) const;
  // Entries that a query selects.
  std::int64_t Wanted(const KeyClusters& clusters) const {
    return static_cast<std::int64_t>(
        std::ceil(options_.select_share * static_cast<double>(clusters.entry_count())));
  }
  Head& At(std::int32_t layer, std::int32_t head) {
    const std::int64_t index = std::int64_t{layer} * layout_.head_count + head;
    return *heads_[static_cast<std::size_t>(index)];
  }

  const Trace& trace_;
  const ReplayOptions options_;
  kv::Engine& engine_;
  EntryLayout layout_;
  std::int64_t entry_bytes_ = 0;
  std::vector<std::unique_ptr<Head>> heads_;
  SessionId id_;
  std::unique_ptr<kv::TestSession> session_;
  std::int64_t stored_ = 0;        // positions below are in clusters
  std::int64_t checkpointed_ = 0;  // tokens of the last checkpoint
  ReplayResult result_;
};

absl::StatusOr<ReplayResult> Driver::Run() {
  CAIRN_RETURN_IF_ERROR(Open());
  CAIRN_ASSIGN_OR_RETURN(const KvStats before, Stats());
  CAIRN_RETURN_IF_ERROR(StorePrompt());
  CAIRN_ASSIGN_OR_RETURN(const KvStats stored, Stats());
  CAIRN_RETURN_IF_ERROR(Decode());
  CAIRN_ASSIGN_OR_RETURN(const KvStats after, Stats());
  if (options_.rest) CAIRN_RETURN_IF_ERROR(Rest());
  const std::int64_t token_bytes = layout_.TokenBytes();
  const std::int64_t decoded = trace_.token_count - trace_.prompt_count;
  result_.layout = layout_;
  result_.entry_bytes = entry_bytes_;
  result_.prompt = {trace_.prompt_count, trace_.prompt_count * token_bytes,
                    Difference(stored, before)};
  result_.decode = {decoded, decoded * token_bytes, Difference(after, stored)};
  result_.checkpoint_count = after.checkpoint_count - before.checkpoint_count;
  for (const std::unique_ptr<Head>& head : heads_) {
    result_.cluster_count += std::ssize(head->clusters.clusters());
    result_.stored_entry_count += head->clusters.entry_count();
    result_.packed_moved_bytes += head->packed.moved_entry_count() * entry_bytes_;
  }
  return std::move(result_);
}

absl::Status Driver::Open() {
  layout_.layer_count = static_cast<std::int32_t>(trace_.layers.size());
  layout_.head_count = static_cast<std::int32_t>(trace_.kv_heads.size());
  layout_.head_dim = trace_.head_dim;
  layout_.kv_format = KvFormat::kF16;
  entry_bytes_ = layout_.EntryBytes(0);
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    for (std::int32_t head = 0; head < layout_.head_count; ++head) {
      heads_.push_back(std::make_unique<Head>(RowsOf(trace_, layer, head), options_));
    }
  }
  CreateSession request;
  request.key.model_digest = std::string(kDigestBytes, 'T');
  request.key.rope_parameters = "of no model";
  request.layout = layout_;
  request.label = "trace";
  CAIRN_ASSIGN_OR_RETURN(const SessionRef created, kv::Await<SessionRef>([&](auto done) {
                           engine_.Create(kDefaultApp, request, std::move(done));
                         }));
  id_ = created.id;
  CAIRN_ASSIGN_OR_RETURN(session_, kv::TestSession::Open(engine_, id_));
  return absl::OkStatus();
}

absl::StatusOr<KvStats> Driver::Stats() {
  return kv::Await<KvStats>([&](auto done) { engine_.GetStats(kDefaultApp, std::move(done)); });
}

// The key as it was recorded, and a value that only this entry has.
std::string Driver::Entry(std::int32_t layer, std::int32_t head, std::int64_t position) const {
  const std::span<const std::uint16_t> key = trace_.Key(layer, head, position);
  std::string out(static_cast<std::size_t>(entry_bytes_), '\0');
  std::memcpy(out.data(), key.data(), key.size_bytes());
  std::uint64_t state = (static_cast<std::uint64_t>(layer) << 48) ^
                        (static_cast<std::uint64_t>(head) << 32) ^
                        static_cast<std::uint64_t>(position);
  for (std::size_t at = key.size_bytes(); at < out.size(); ++at) {
    state = state * 6364136223846793005 + 1442695040888963407;
    out[at] = static_cast<char>(state >> 56);
  }
  return out;
}

absl::Status Driver::StorePrompt() {
  for (std::int64_t first = 0; first < trace_.prompt_count; first += options_.chunk_tokens) {
    const std::int64_t end = std::min(trace_.prompt_count, first + options_.chunk_tokens);
    for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
      AppendLeaving(layer, WindowStart(end), true);
    }
    stored_ = WindowStart(end);
    CAIRN_RETURN_IF_ERROR(TakeCheckpoint(end));
  }
  return absl::OkStatus();
}

absl::Status Driver::Decode() {
  std::int64_t step = 0;
  while (step < std::ssize(trace_.steps) &&
         trace_.steps[static_cast<std::size_t>(step)] < trace_.prompt_count) {
    ++step;
  }
  for (std::int64_t at = trace_.prompt_count; at < trace_.token_count; ++at) {
    if (step < std::ssize(trace_.steps) && trace_.steps[static_cast<std::size_t>(step)] == at) {
      CAIRN_RETURN_IF_ERROR(FetchStep(step++, result_));
    }
    const std::int64_t token_count = at + 1;
    const std::int64_t start = WindowStart(token_count);
    for (std::int32_t layer = 0; start > stored_ && layer < layout_.layer_count; ++layer) {
      AppendLeaving(layer, start, false);
    }
    stored_ = std::max(stored_, start);
    if (token_count - checkpointed_ >= options_.checkpoint_tokens) {
      CAIRN_RETURN_IF_ERROR(TakeCheckpoint(token_count));
    }
    CAIRN_RETURN_IF_ERROR(session_->failure());
  }
  return checkpointed_ == trace_.token_count ? absl::OkStatus()
                                             : TakeCheckpoint(trace_.token_count);
}

absl::Status Driver::Rest() {
  CAIRN_RETURN_IF_ERROR(TakeCheckpoint(trace_.token_count, /*seal=*/true));
  CAIRN_RETURN_IF_ERROR(FetchAgain(result_.rest.before));
  CAIRN_ASSIGN_OR_RETURN(const KvStats before, Stats());
  session_.reset();
  CAIRN_RETURN_IF_ERROR(AwaitDefragmented());
  CAIRN_ASSIGN_OR_RETURN(const KvStats after, Stats());
  result_.rest.flash_used_before_bytes = before.flash_used_bytes;
  result_.rest.flash_used_after_bytes = after.flash_used_bytes;
  result_.rest.written_bytes = after.write_defragment_bytes - before.write_defragment_bytes;
  CAIRN_ASSIGN_OR_RETURN(session_, kv::TestSession::Open(engine_, id_));
  return FetchAgain(result_.rest.after);
}

absl::Status Driver::FetchAgain(FetchCounts& counts) {
  for (std::int64_t step = 0; step < std::ssize(trace_.steps); ++step) {
    if (trace_.steps[static_cast<std::size_t>(step)] < trace_.prompt_count) continue;
    CAIRN_RETURN_IF_ERROR(FetchStep(step, counts));
  }
  return absl::OkStatus();
}

// The engine does not say when it has nothing left to place again: that is so when it has written
// nothing for a second.
absl::Status Driver::AwaitDefragmented() {
  std::int64_t written_bytes = -1;
  for (auto changed = Clock::now(); Clock::now() - changed < std::chrono::seconds(1);) {
    CAIRN_ASSIGN_OR_RETURN(const KvStats stats, Stats());
    if (stats.write_defragment_bytes != written_bytes) changed = Clock::now();
    written_bytes = stats.write_defragment_bytes;
  }
  return absl::OkStatus();
}

absl::Status Driver::FetchStep(std::int64_t step, FetchCounts& counts) {
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    CAIRN_RETURN_IF_ERROR(FetchLayer(step, layer, counts));
  }
  return absl::OkStatus();
}

absl::Status Driver::FetchLayer(std::int64_t step, std::int32_t layer, FetchCounts& counts) {
  Fetch fetch;
  fetch.layer = layer;
  fetch.with_positions = true;
  for (std::int32_t head = 0; head < layout_.head_count; ++head) {
    const KeyClusters& clusters = At(layer, head).clusters;
    std::vector<std::int64_t> selected;
    for (const std::int64_t id :
         clusters.Select(Floats(trace_.Queries(step, layer, head)), Wanted(clusters))) {
      fetch.clusters.push_back({head, ClusterId(id)});
      const std::vector<std::int64_t>& positions = clusters.clusters().at(id).positions;
      selected.insert(selected.end(), positions.begin(), positions.end());
    }
    counts.sequence_run_count += std::ssize(Positions::FromUnsorted(std::move(selected)).runs());
  }
  if (fetch.clusters.empty()) return absl::OkStatus();
  const auto begin = Clock::now();
  CAIRN_ASSIGN_OR_RETURN(ReadReply reply, session_->Read(fetch));
  counts.fetch_us.push_back(
      std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  const auto* fetched = std::get_if<FetchReply>(&reply);
  if (fetched == nullptr || fetched->clusters.size() != fetch.clusters.size()) {
    return Internal("a fetch was answered with something else");
  }
  for (const FetchedCluster& cluster : fetched->clusters) {
    CAIRN_RETURN_IF_ERROR(CheckCluster(layer, cluster));
  }
  counts.Count(*fetched);
  return absl::OkStatus();
}

absl::Status Driver::CheckCluster(std::int32_t layer, const FetchedCluster& cluster) {
  const std::int32_t head = cluster.cluster.head;
  const std::int64_t id = cluster.cluster.cluster_id.value();
  const auto wrong = [&](std::string_view what) {
    return DataLoss("layer {} head {} cluster {}: {}", layer, head, id, what);
  };
  if (cluster.outcome != FetchOutcome::kFound) return wrong("not found");
  std::vector<std::int64_t> positions;
  for (const Span& span : cluster.spans) {
    if (span.positions.count() != span.entry_count) return wrong("a span without positions");
    for (std::int64_t i = 0; i < span.entry_count; ++i) {
      positions.push_back(span.positions.at(i));
      const std::string want = Entry(layer, head, positions.back());
      if (std::memcmp(span.Entry(i, entry_bytes_), want.data(), want.size()) != 0) {
        return wrong(fmt::format("other bytes at position {}", positions.back()));
      }
    }
  }
  if (positions != At(layer, head).clusters.clusters().at(id).positions) {
    return wrong("other positions than were stored");
  }
  return absl::OkStatus();
}

void Driver::AppendLeaving(std::int32_t layer, std::int64_t stored_until, bool is_prompt) {
  for (std::int32_t head = 0; head < layout_.head_count; ++head) {
    Head& at = At(layer, head);
    std::map<std::int64_t, std::vector<std::int64_t>> added;
    if (is_prompt) {
      for (const std::int64_t id : at.clusters.AddPrompt(stored_, stored_until - stored_)) {
        const std::vector<std::int64_t>& all = at.clusters.clusters().at(id).positions;
        // In sequence order the first may have entries of the chunk before.
        added[id] = {std::lower_bound(all.begin(), all.end(), stored_), all.end()};
      }
    } else {
      for (std::int64_t p = stored_; p < stored_until; ++p) added[at.clusters.Add(p)].push_back(p);
    }
    std::vector<ClusterEntries> entries;
    std::set<std::int64_t> ids;
    std::int64_t bytes = 0;
    for (auto& [id, positions] : added) {
      ClusterEntries one;
      one.cluster = {head, ClusterId(id)};
      for (const std::int64_t position : positions) one.entries += Entry(layer, head, position);
      at.packed.Append(id, std::ssize(positions), is_prompt);
      one.positions = Positions::FromUnsorted(std::move(positions));
      bytes += std::ssize(one.entries);
      entries.push_back(std::move(one));
      ids.insert(id);
      if (bytes < kAppendBytesMax) continue;
      SendAppend(layer, entries);
      entries.clear();
      bytes = 0;
    }
    SendAppend(layer, entries);
    at.changed.insert(ids.begin(), ids.end());
    SplitClusters(layer, head, ids);
  }
}

void Driver::SendAppend(std::int32_t layer, const std::vector<ClusterEntries>& entries) {
  if (!entries.empty()) session_->Send(Append{.layer = layer, .clusters = entries});
}

void Driver::SplitClusters(std::int32_t layer, std::int32_t head,
                           const std::set<std::int64_t>& ids) {
  Head& at = At(layer, head);
  for (const std::int64_t id : ids) {
    const auto split = at.clusters.SplitIfOver(id);
    if (!split) continue;
    Replace replace;
    replace.layer = layer;
    replace.head = head;
    replace.parent_ids = {ClusterId(id)};
    std::int64_t counts[2] = {};
    for (int i = 0; i < 2; ++i) {
      const std::vector<std::int64_t>& positions =
          at.clusters.clusters().at(split->child_ids[i]).positions;
      counts[i] = std::ssize(positions);
      replace.children.push_back(
          {ClusterId(split->child_ids[i]), Positions::FromUnsorted(positions)});
      at.changed.insert(split->child_ids[i]);
    }
    at.changed.erase(id);
    at.packed.Split(id, split->child_ids[0], counts[0], split->child_ids[1], counts[1]);
    ++result_.split_count;
    result_.in_place_moved_bytes += counts[1] * entry_bytes_;
    session_->Send(replace);
  }
}

void Driver::StageWindow(std::int32_t layer, std::int64_t token_count) {
  StageCarried stage;
  stage.layer = layer;
  // The last checkpoint has stored what was carried then.
  const std::int64_t fresh = std::max(stored_, checkpointed_);
  for (std::int32_t head = 0; head < layout_.head_count; ++head) {
    CarriedEntries carried;
    carried.head = head;
    carried.buffer_cluster_id = kWindowBuffer;
    carried.positions = Positions::Range(stored_, token_count - stored_);
    carried.brought_positions = Positions::Range(fresh, token_count - fresh);
    for (std::int64_t p = fresh; p < token_count; ++p) carried.entries += Entry(layer, head, p);
    stage.carried.push_back(std::move(carried));
  }
  session_->Send(stage);
}

void Driver::SendIndexRows(std::int32_t layer) {
  PutIndexRows rows;
  rows.layer = layer;
  for (std::int32_t head = 0; head < layout_.head_count; ++head) {
    Head& at = At(layer, head);
    for (const std::int64_t id : at.changed) {
      const KeyClusters::Cluster& cluster = at.clusters.clusters().at(id);
      std::vector<std::uint16_t> centroid(cluster.centroid.size());
      compute::F32ToF16(cluster.centroid, centroid);
      IndexRow row;
      row.cluster = {head, ClusterId(id)};
      row.row.assign(reinterpret_cast<const char*>(centroid.data()), 2 * centroid.size());
      row.entry_count = std::ssize(cluster.positions);
      rows.rows.push_back(std::move(row));
    }
    at.changed.clear();
  }
  if (!rows.rows.empty()) session_->Send(rows);
}

absl::Status Driver::TakeCheckpoint(std::int64_t token_count, bool seal) {
  Checkpoint checkpoint;
  checkpoint.seal = seal;
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    StageWindow(layer, token_count);
    if (options_.index_rows) SendIndexRows(layer);
    for (std::int32_t head = 0; head < layout_.head_count; ++head) {
      checkpoint.next_cluster_ids.push_back(At(layer, head).clusters.next_id());
    }
    checkpoint.next_cluster_ids.push_back(1);  // of clusters of all heads
  }
  checkpoint.token_count = token_count;
  checkpoint.token_ids_start = checkpointed_;
  checkpoint.token_ids.resize(static_cast<std::size_t>(token_count - checkpointed_));
  std::iota(checkpoint.token_ids.begin(), checkpoint.token_ids.end(),
            static_cast<std::int32_t>(checkpointed_));
  checkpointed_ = token_count;
  return session_->WaitFor(session_->Send(checkpoint)).status();
}

}  // namespace

std::int64_t Phase::written_bytes() const {
  return stats.write_pool_bytes + stats.write_log_bytes + stats.write_relog_bytes +
         stats.write_index_bytes + meta_bytes();
}

absl::StatusOr<ReplayResult> Replay(const Trace& trace, const ReplayOptions& options,
                                    kv::Engine& engine) {
  CAIRN_RETURN_IF_ERROR(trace.Validate());
  return Driver(trace, options, engine).Run();
}

}  // namespace cairn::bench
