#include "compute-node/session/attention/stored_attention.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/timeline/timeline.h"
#include "compute-node/kernels/kv_entry.h"
#include "compute-node/session/reading/fetch_check.h"

namespace cairn::compute {
namespace {

// Tokens whose rows one task converts.
constexpr std::int64_t kConvertTokens = 64;

}  // namespace

StoredAttention::StoredAttention(const SessionOptions& options, const ModelConfig& config,
                                 ThreadPool& pool, PassScratch& scratch, KvSession& session,
                                 RetrievalPolicy& policy, const PolicyChoice& choice,
                                 KvMemory& memory, AttentionObserver* observer)
    : options_(options),
      layout_(session.attachment().layout),
      entry_bytes_(layout_.EntryBytes(0)),
      pool_(pool),
      session_(session),
      session_id_(session.attachment().session_id.value()),
      traits_(policy.traits()),
      selector_(policy.selector()),
      observer_(observer),
      weight_observer_(policy.weight_observer()),
      memory_(memory),
      config_(config),
      scratch_(scratch),
      attention_(config, layout_.kv_format, pool),
      pipeline_(layout_, memory),
      selected_fetch_(layout_, WithPositions(observer != nullptr || weight_observer_ != nullptr),
                      memory),
      store_(options, pool, session, policy, choice, memory),
      loaded_(static_cast<std::size_t>(layout_.layer_count)),
      loading_(loaded_.size()),
      foreseen_(config.kv_head_count, config.head_dim) {
  CAIRN_CHECK(!traits_.selects_ahead || traits_.ranks_by_query_sums);
}

absl::Status StoredAttention::Restore(std::optional<StoredPolicy> stored,
                                      std::string& random_state) {
  AbandonPass();
  selected_fetch_.ForgetKept();
  for (std::vector<LoadedCluster>& clusters : loaded_) clusters.clear();
  CAIRN_RETURN_IF_ERROR(store_.Restore(std::move(stored), random_state));
  token_count_ = session_.attachment().token_count;
  return absl::OkStatus();
}

absl::Status StoredAttention::StartPass(std::int64_t token_count, const StopSignal& stop,
                                        LayerDone layer_done) {
  CAIRN_CHECK_EQ(pass_tokens_, 0);
  CAIRN_CHECK_GE(token_count, 1);
  CAIRN_RETURN_IF_ERROR(store_.Settle(token_count_, loaded_, stop));
  pass_tokens_ = token_count;
  stop_ = &stop;
  layer_done_ = std::move(layer_done);
  const std::int64_t chunk_bytes = token_count * layout_.EntryBytes(kAllHeads);
  if (std::ssize(chunk_) != chunk_bytes) {
    chunk_charge_.Release();
    chunk_ = std::vector<std::byte>(static_cast<std::size_t>(chunk_bytes));
    chunk_charge_ = KvMemoryCharge(memory_, chunk_bytes);
  }
  if (IsSelecting() || IsLocal()) return absl::OkStatus();
  const auto plan = [this](std::int32_t layer) {
    return selector_.Select(InputOf(layer, queries_));
  };
  pipeline_.StartPass(session_, plan, traits_.selects_without_queries);
  return absl::OkStatus();
}

SelectionInput StoredAttention::InputOf(std::int32_t layer, std::span<const float> queries) {
  const bool by_queries = !traits_.selects_without_queries;
  return {.layer = layer,
          .stored_token_count = store_.stored_count(layer),
          .first_position = token_count_,
          .token_count = pass_tokens_,
          .queries = by_queries ? queries : std::span<const float>(),
          .pool = by_queries ? &pool_ : nullptr};
}

Forecast StoredAttention::WantedForecast(int layer) const {
  if (!IsSelecting()) return Forecast::kNone;
  const bool asks = options_.predict_selection && selected_fetch_.IsWorthPredicting(layer);
  if (!traits_.selects_ahead && !asks) return Forecast::kNone;
  return traits_.ranks_by_query_sums ? Forecast::kQuerySums : Forecast::kQueries;
}

void StoredAttention::Predict(int layer, std::span<const float> queries) {
  const TimelineSpan span(TimelineKind::kCompute, "predict", {{"layer", layer}});
  std::vector<FetchSlice> plan = selector_.Select(InputOf(layer, queries));
  // Also of a policy that selects ahead: a layer may be one whose heads mostly select anew.
  if (options_.predict_selection && selected_fetch_.IsWorthPredicting(layer)) {
    selected_fetch_.Predict(session_, layer, plan);
  }
  if (!traits_.selects_ahead) return;
  ahead_ = {layer, std::move(plan)};
  foreseen_.Set(queries);
}

std::int64_t StoredAttention::WholeBlocksEnd(std::int32_t layer) const {
  const std::int64_t stored = store_.stored_count(layer);
  if (!traits_.selects_without_queries || IsLocal()) return stored;
  return stored / kAttentionBlockEntries * kAttentionBlockEntries;
}

// The slots are free: the window's start is a multiple of its step, so it is at this block or
// before it as long as what leaves the window has not filled the block up.
void StoredAttention::TakePartialBlock(std::int32_t layer, ArrivedSlice& slice) {
  const std::int64_t end = WholeBlocksEnd(layer);
  if (end == store_.stored_count(layer)) return;
  for (std::size_t i = 0; i < slice.planned.size(); ++i) {
    Positions positions;
    for (const Span& span : slice.reply.clusters[i].spans) positions.AppendAll(span.positions);
    std::vector<const std::byte*>& entries = slice.entries[i];
    const ClusterHeads heads(layout_, slice.planned[i].cluster.head);
    const std::int64_t kept = positions.CountBelow(end);
    for (std::int64_t j = kept; j < positions.count(); ++j) {
      for (std::int32_t head = heads.first(); head < heads.end(); ++head) {
        std::memcpy(store_.window().Entry(layer, head, positions.at(j)),
                    heads.PartOf(head, entries[static_cast<std::size_t>(j)]),
                    static_cast<std::size_t>(entry_bytes_));
      }
    }
    entries.resize(static_cast<std::size_t>(kept));
  }
}

absl::Status StoredAttention::Attend(const AttentionBatch& batch) {
  CAIRN_CHECK_EQ(batch.first_position, token_count_);
  CAIRN_CHECK_EQ(batch.token_count, pass_tokens_);
  CAIRN_RETURN_IF_ERROR(stop_->Check());
  const TimelineSpan span(
      TimelineKind::kCompute, "attention",
      {{"layer", batch.layer}, {"session", session_id_}, {"position", batch.first_position}});
  CAIRN_RETURN_IF_ERROR(StoreChunk(batch));
  queries_ = batch.q;
  StartObserving(batch);
  attention_.Start(batch, scratch_.For(batch.token_count),
                   weights_.has_value() ? &*weights_ : nullptr);
  CAIRN_RETURN_IF_ERROR(AttendStored(batch));
  AttendHeld(batch.layer);
  AttendRecent(batch);
  FinishLayer(batch);
  // A step of a policy that adapts must be able to fail without a trace: its entries leave between
  // two steps.
  const std::int64_t stored = store_.stored_count(batch.layer);
  const bool leaves_now = pass_tokens_ > 1 || traits_.selects_without_queries;
  const std::int64_t window_start = store_.WindowStartAt(token_count_ + pass_tokens_);
  CAIRN_RETURN_IF_ERROR(store_.StoreLayer(
      batch.layer, Chunk(), leaves_now ? std::max(stored, window_start) : stored, *stop_));
  if (layer_done_) layer_done_(batch.layer + 1);
  return absl::OkStatus();
}

absl::Status StoredAttention::AttendStored(const AttentionBatch& batch) {
  if (IsLocal()) return absl::OkStatus();
  return IsSelecting() ? AttendSelected(batch) : AttendEverything(batch);
}

absl::Status StoredAttention::AttendEverything(const AttentionBatch& batch) {
  pipeline_.StartLayer(batch.layer);
  while (pipeline_.HasNext()) {
    CAIRN_ASSIGN_OR_RETURN(ArrivedSlice slice, pipeline_.Next(*stop_));
    TakePartialBlock(batch.layer, slice);
    attention_.AttendAll(RunsOf(slice));
    for (std::size_t i = 0; IsObserved() && i < slice.planned.size(); ++i) {
      NoteFetched(slice.planned[i], slice.reply.clusters[i], std::ssize(slice.entries[i]));
    }
    CAIRN_RETURN_IF_ERROR(CheckIntact(slice.reply));
    if (batch.between != nullptr) (*batch.between)();
  }
  return absl::OkStatus();
}

absl::Status StoredAttention::AttendSelected(const AttentionBatch& batch) {
  std::vector<FetchSlice> plan = PlanOf(batch);
  const std::vector<std::vector<ClusterId>> estimated = Estimate(batch, plan);
  const auto attend_means = [&] {
    if (estimated.empty()) return;
    const TimelineSpan span(TimelineKind::kCompute, "attend_means", {{"layer", batch.layer}});
    attention_.AttendMeans(estimated, [&](std::int32_t head, std::span<const ClusterId> clusters,
                                          KvBlock& block, std::span<float> counts) {
      selector_.LoadMeans(batch.layer, head, clusters, block, counts);
    });
  };
  CAIRN_ASSIGN_OR_RETURN(
      const SelectedClusters selected,
      selected_fetch_.Take(session_, batch.layer, std::move(plan), *stop_, attend_means));
  attention_.AttendAll(RunsOf(selected));
  if (IsObserved()) {
    for (const SelectedClusters::Cluster& cluster : selected.clusters) {
      NoteFetched(cluster.planned, *cluster.fetched, cluster.planned.entry_count);
    }
  }
  KeepLoaded(batch.layer, selected);
  for (const FetchReply& reply : selected.replies) CAIRN_RETURN_IF_ERROR(CheckIntact(reply));
  selected_fetch_.Keep(batch.layer, selected, store_.KeptClusterBytes(batch.layer));
  return absl::OkStatus();
}

std::vector<FetchSlice> StoredAttention::PlanOf(const AttentionBatch& batch) {
  const bool was_foreseen = ahead_.layer == batch.layer;
  std::vector<FetchSlice> ahead = std::exchange(ahead_, {}).slices;
  if (was_foreseen && !foreseen_.Correct(batch.q)) return ahead;
  const TimelineSpan span(TimelineKind::kCompute, "select", {{"layer", batch.layer}});
  return selector_.Select(InputOf(batch.layer, was_foreseen ? foreseen_.sums() : batch.q));
}

std::vector<std::vector<ClusterId>> StoredAttention::Estimate(const AttentionBatch& batch,
                                                              std::span<const FetchSlice> plan) {
  if (!traits_.needs_values) return {};
  const TimelineSpan span(TimelineKind::kCompute, "estimate", {{"layer", batch.layer}});
  return selector_.Estimate(InputOf(batch.layer, batch.q), plan);
}

std::vector<EntryRun> StoredAttention::RunsOf(const ArrivedSlice& slice) const {
  std::vector<EntryRun> runs;
  const bool in_fixed_blocks = traits_.selects_without_queries;
  if (!in_fixed_blocks) runs = NoRuns();
  for (std::size_t i = 0; i < slice.planned.size(); ++i) {
    const ClusterHeads heads(layout_, slice.planned[i].cluster.head);
    for (std::int32_t head = heads.first(); head < heads.end(); ++head) {
      EntryRun& run = in_fixed_blocks ? runs.emplace_back(EntryRun{head, {}})
                                      : runs[static_cast<std::size_t>(head)];
      heads.AppendParts(head, slice.entries[i], run.entries);
    }
  }
  return runs;
}

std::vector<EntryRun> StoredAttention::NoRuns() const {
  std::vector<EntryRun> runs(static_cast<std::size_t>(layout_.head_count));
  for (std::int32_t head = 0; head < layout_.head_count; ++head) {
    runs[static_cast<std::size_t>(head)].head = head;
  }
  return runs;
}

std::vector<EntryRun> StoredAttention::RunsOf(const SelectedClusters& selected) const {
  std::vector<EntryRun> runs = NoRuns();
  for (const SelectedClusters::Cluster& cluster : selected.clusters) {
    const std::span<const std::byte* const> entries = selected.EntriesOf(cluster);
    const ClusterHeads heads(layout_, cluster.planned.cluster.head);
    for (std::int32_t head = heads.first(); head < heads.end(); ++head) {
      EntryRun& run = runs[static_cast<std::size_t>(head)];
      if (cluster.planned.attended.empty()) heads.AppendParts(head, entries, run.entries);
      for (const std::int32_t index : cluster.planned.attended) {
        run.entries.push_back(heads.PartOf(head, entries[static_cast<std::size_t>(index)]));
      }
    }
  }
  return runs;
}

void StoredAttention::NoteFetched(const PlannedCluster& planned, const FetchedCluster& fetched,
                                  std::int64_t entry_count) {
  Positions positions;
  for (const Span& span : fetched.spans) positions.AppendAll(span.positions);
  const ClusterHeads heads(layout_, planned.cluster.head);
  for (std::int32_t head = heads.first(); head < heads.end(); ++head) {
    AttendedEntries& noted = attended_[static_cast<std::size_t>(head)];
    noted.arrived_count += positions.count();
    if (planned.attended.empty()) {
      // TakePartialBlock left the first ones.
      positions.Slice(0, entry_count).ForEach([&](std::int64_t at) {
        noted.fetched.push_back(at);
      });
    }
    for (const std::int32_t index : planned.attended) noted.fetched.push_back(positions.at(index));
  }
}

void StoredAttention::StartObserving(const AttentionBatch& batch) {
  const std::int64_t weighed =
      weight_observer_ == nullptr ? 0 : weight_observer_->WeighedTokens(batch.token_count);
  CAIRN_CHECK(weighed >= 0 && weighed <= batch.token_count);
  weights_.reset();
  if (weighed > 0) {
    weights_.emplace(config_, batch.token_count, batch.token_count - weighed, memory_);
  }
  AttendedEntries nothing;
  nothing.recent_first = WholeBlocksEnd(batch.layer);
  attended_.assign(IsObserved() ? static_cast<std::size_t>(layout_.head_count) : 0, nothing);
}

void StoredAttention::FinishLayer(const AttentionBatch& batch) {
  std::vector<std::vector<float>> weights = attention_.Finish();
  for (std::size_t head = 0; head < weights.size(); ++head) {
    attended_[head].weights = std::move(weights[head]);
  }
  if (weights_.has_value()) {
    const std::int64_t first = weights_->first_token();
    weight_observer_->TakeWeights({.layer = batch.layer,
                                   .pass_first_position = batch.first_position,
                                   .first_position = batch.first_position + first,
                                   .token_count = batch.token_count - first,
                                   .heads = attended_});
  }
  if (observer_ != nullptr) observer_->LayerAttended(batch, attended_);
  weights_.reset();
}

void StoredAttention::KeepLoaded(std::int32_t layer, const SelectedClusters& selected) {
  for (const SelectedClusters::Cluster& cluster : selected.clusters) {
    if (!cluster.planned.adapt) continue;
    LoadedCluster loaded{.cluster = cluster.planned.cluster};
    for (const Span& span : cluster.fetched->spans) loaded.positions.AppendAll(span.positions);
    const std::span<const std::byte* const> entries = selected.EntriesOf(cluster);
    loaded.stored_count = std::ssize(entries);
    AppendRows(entries, layout_, ClusterHeads(layout_, loaded.cluster.head),
               WithValues(traits_.needs_values), loaded.keys, loaded.values);
    loading_[static_cast<std::size_t>(layer)].push_back(std::move(loaded));
  }
}

void StoredAttention::CommitPass() {
  token_count_ += pass_tokens_;
  std::swap(loaded_, loading_);
  AbandonPass();
}

void StoredAttention::AbandonPass() {
  pipeline_.Reset();
  selected_fetch_.Reset();
  ahead_ = {};
  store_.index().Reset();
  session_.ReturnLeases();
  // A buffer for one token is kept for the next step; one for a chunk is not worth its memory.
  if (pass_tokens_ != 1) {
    chunk_ = std::vector<std::byte>();
    chunk_charge_.Release();
  }
  for (std::vector<LoadedCluster>& clusters : loading_) clusters.clear();
  weights_.reset();
  pass_tokens_ = 0;
  stop_ = nullptr;
  layer_done_ = nullptr;
  queries_ = {};
}

const std::byte* StoredAttention::EntryAt(std::int32_t layer, std::int32_t head,
                                          std::int64_t position) {
  if (position < token_count_) return store_.window().Entry(layer, head, position);
  const std::int64_t index = head * pass_tokens_ + position - token_count_;
  return chunk_.data() + index * entry_bytes_;
}

absl::Status StoredAttention::StoreChunk(const AttentionBatch& batch) {
  const std::int64_t head_count = layout_.head_count;
  const std::int64_t head_dim = layout_.head_dim;
  const KvFormat format = layout_.kv_format;
  std::atomic<bool> fits{true};
  const std::int64_t blocks = (batch.token_count + kConvertTokens - 1) / kConvertTokens;
  pool_.ParallelFor(blocks, [&](std::int64_t block) {
    const std::int64_t end = std::min(batch.token_count, (block + 1) * kConvertTokens);
    for (std::int64_t token = block * kConvertTokens; token < end; ++token) {
      for (std::int64_t head = 0; head < head_count; ++head) {
        std::byte* entry = chunk_.data() + (head * pass_tokens_ + token) * entry_bytes_;
        const std::size_t from = static_cast<std::size_t>((token * head_count + head) * head_dim);
        const std::size_t count = static_cast<std::size_t>(head_dim);
        const KvMisfit misfit =
            StoreKvEntry(batch.k.subspan(from, count), batch.v.subspan(from, count), format, entry);
        if (misfit != KvMisfit::kNone) fits.store(false, std::memory_order_relaxed);
      }
    }
  });
  return fits ? absl::OkStatus() : KvMisfitError(batch, head_dim, format);
}

void StoredAttention::AttendHeld(std::int32_t layer) {
  const std::optional<std::vector<Positions>> selected =
      selector_.SelectHeld(InputOf(layer, queries_));
  std::vector<EntryRun> runs;
  for (std::int32_t head = 0; head < layout_.head_count; ++head) {
    EntryRun run{.head = head, .entries = {}};
    for (const std::int32_t held_for : {kAllHeads, head}) {
      const ClusterHeads heads(layout_, held_for);
      for (const HeldEntries::Entry& held : store_.held().Of(layer, held_for)) {
        if (selected && !(*selected)[static_cast<std::size_t>(head)].Contains(held.position)) {
          continue;
        }
        run.entries.push_back(heads.PartOf(head, held.data()));
        if (IsObserved()) {
          attended_[static_cast<std::size_t>(head)].held.push_back(held.position);
        }
      }
    }
    if (!run.entries.empty()) runs.push_back(std::move(run));
  }
  if (!runs.empty()) attention_.AttendAll(runs);
}

void StoredAttention::AttendRecent(const AttentionBatch& batch) {
  const std::int64_t first = WholeBlocksEnd(batch.layer);
  std::vector<EntryRun> runs(static_cast<std::size_t>(layout_.head_count));
  for (std::int32_t head = 0; head < layout_.head_count; ++head) {
    EntryRun& run = runs[static_cast<std::size_t>(head)];
    run.head = head;
    run.entries.reserve(static_cast<std::size_t>(token_count_ + pass_tokens_ - first));
    for (std::int64_t at = first; at < token_count_ + pass_tokens_; ++at) {
      run.entries.push_back(EntryAt(batch.layer, head, at));
    }
  }
  attention_.AttendCausal(runs, first);
}

absl::StatusOr<bool> StoredAttention::Regroup(const StopSignal& stop) {
  CAIRN_CHECK_EQ(pass_tokens_, 0);
  CAIRN_RETURN_IF_ERROR(store_.Settle(token_count_, loaded_, stop));
  return store_.Regroup(stop);
}

absl::Status StoredAttention::StageCheckpoint(const StopSignal& stop, const PromptSeals& seals) {
  CAIRN_CHECK_EQ(pass_tokens_, 0);
  CAIRN_RETURN_IF_ERROR(store_.Settle(token_count_, loaded_, stop));
  return store_.StageCheckpoint(token_count_, seals);
}

}  // namespace cairn::compute
