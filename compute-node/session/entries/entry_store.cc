#include "compute-node/session/entries/entry_store.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "common/timeline/timeline.h"

namespace cairn::compute {
namespace {

// Of an index that comes layer by layer, layers that are in memory while entries leave the window.
constexpr std::int32_t kStreamedLayers = 2;

}  // namespace

EntryStore::EntryStore(const SessionOptions& options, ThreadPool& pool, KvSession& session,
                       RetrievalPolicy& policy, const PolicyChoice& choice, KvMemory& memory)
    : options_(options),
      layout_(session.attachment().layout),
      entry_bytes_(layout_.EntryBytes(0)),
      pool_(pool),
      session_(session),
      traits_(policy.traits()),
      keeper_(policy.keeper()),
      paged_index_(policy.paged_index()),
      choice_(choice),
      memory_(memory),
      window_(layout_, options.window_tokens_max),
      index_(layout_.layer_count, pool, session, paged_index_, traits_.needs_values, memory),
      window_charge_(memory, window_.size_bytes()),
      held_(layout_, memory),
      stored_counts_(static_cast<std::size_t>(layout_.layer_count), 0),
      recorded_(ClusterRowCount(layout_)),
      staged_(recorded_.size()) {}

void EntryStore::ChargeIndex() {
  const std::int64_t bytes = keeper_.memory_bytes();
  if (bytes == index_bytes_) return;
  index_charge_.Release();
  index_charge_ = KvMemoryCharge(memory_, bytes);
  index_bytes_ = bytes;
}

std::int64_t EntryStore::WindowStartAt(std::int64_t token_count) const {
  const std::int64_t kept = keeper_.WindowTokens(token_count);
  // Only where entries leave in the pass of the tokens that take their place is a full window full.
  if (kept == 0 && traits_.selects_without_queries) {
    return WindowStart(token_count, window_.capacity());
  }
  return SparseWindowStart(token_count, kept == 0 ? window_.capacity() : kept, window_.capacity());
}

const std::byte* EntryStore::RecentEntry(std::int32_t layer, std::int32_t head,
                                         std::int64_t position, const ChunkEntries& chunk) const {
  if (chunk.data == nullptr || position < chunk.first_position) {
    return window_.Entry(layer, head, position);
  }
  const std::int64_t index = head * chunk.token_count + position - chunk.first_position;
  return chunk.data + index * entry_bytes_;
}

void EntryStore::AppendEntry(std::int32_t layer, std::int32_t head, std::int64_t position,
                             const ChunkEntries& chunk, std::string& out) const {
  if (position < stored_count(layer)) {
    const HeldEntries::Entry* held = held_.Find(layer, head, position);
    CAIRN_CHECK(held != nullptr);
    out += held->bytes;
    return;
  }
  const ClusterHeads heads(layout_, head);
  for (std::int32_t of = heads.first(); of < heads.end(); ++of) {
    out.append(reinterpret_cast<const char*>(RecentEntry(layer, of, position, chunk)),
               static_cast<std::size_t>(entry_bytes_));
  }
}

void EntryStore::FillRows(const ChunkEntries& chunk, LeavingEntries& leaving,
                          std::vector<float>& keys, std::vector<float>& values) const {
  std::vector<const std::byte*> entries;
  entries.reserve(static_cast<std::size_t>(layout_.head_count * leaving.token_count));
  for (std::int32_t head = 0; head < layout_.head_count; ++head) {
    for (std::int64_t i = 0; i < leaving.token_count; ++i) {
      entries.push_back(RecentEntry(leaving.layer, head, leaving.first_position + i, chunk));
    }
  }
  AppendRows(entries, layout_, ClusterHeads(layout_, 0), WithValues(traits_.needs_values), keys,
             values);
  leaving.keys = keys;
  leaving.values = values;
}

bool EntryStore::NeedsIndex(std::int32_t layer, const ChunkEntries& chunk,
                            std::int64_t stored_until) const {
  const std::int64_t first = stored_count(layer);
  return paged_index_ != nullptr &&
         paged_index_->StoreReadsIndex({.layer = layer,
                                        .first_position = first,
                                        .token_count = stored_until - first,
                                        .queries = chunk.queries});
}

StoreActions EntryStore::AskPolicy(std::int32_t layer, const ChunkEntries& chunk,
                                   std::int64_t stored_until, ThreadPool* pool) {
  const std::int64_t first = stored_count(layer);
  if (stored_until <= first) return {};
  const TimelineSpan span(TimelineKind::kCluster, "assign",
                          {{"layer", layer}, {"tokens", stored_until - first}});
  LeavingEntries leaving{.layer = layer,
                         .first_position = first,
                         .token_count = stored_until - first,
                         .queries = chunk.queries,
                         .pool = pool,
                         .of_prompt = chunk.token_count > 1};
  std::vector<float> keys;
  std::vector<float> values;
  if (traits_.needs_keys) FillRows(chunk, leaving, keys, values);
  return keeper_.Store(leaving);
}

absl::Status EntryStore::Send(std::int32_t layer, const ChunkEntries& chunk,
                              std::int64_t stored_until, const StoreActions& actions) {
  const std::int64_t stored_before = stored_count(layer);
  if (stored_until <= stored_before) return absl::OkStatus();
  Append append;
  append.layer = layer;
  std::int64_t bytes = 0;
  const auto send = [&]() -> absl::Status {
    if (append.clusters.empty()) return absl::OkStatus();
    const KvMemoryCharge charge(memory_, bytes);
    bytes = 0;
    return session_.Send(std::exchange(append, Append{.layer = layer, .clusters = {}}));
  };
  for (const Assignment& assignment : actions.appended) {
    const std::int32_t head = assignment.cluster.head;
    const std::int64_t size = assignment.positions.count() * layout_.EntryBytes(head);
    if (bytes > 0 && bytes + size > kAppendBytesMax) CAIRN_RETURN_IF_ERROR(send());
    ClusterEntries entries;
    entries.cluster = assignment.cluster;
    entries.positions = assignment.positions;
    entries.entries.reserve(static_cast<std::size_t>(size));
    assignment.positions.ForEach(
        [&](std::int64_t position) { AppendEntry(layer, head, position, chunk, entries.entries); });
    bytes += size;
    const std::int64_t old_count = assignment.positions.CountBelow(stored_before);
    held_.Remove(layer, head, assignment.positions.Slice(0, old_count));
    append.clusters.push_back(std::move(entries));
  }
  CAIRN_RETURN_IF_ERROR(send());
  for (const HeldEntry& held : actions.held) {
    std::string entry;
    AppendEntry(layer, held.cluster.head, held.position, chunk, entry);
    held_.Add(layer, held, std::move(entry));
  }
  stored_counts_[static_cast<std::size_t>(layer)] = stored_until;
  return absl::OkStatus();
}

absl::Status EntryStore::StoreLayer(std::int32_t layer, const ChunkEntries& chunk,
                                    std::int64_t stored_until, const StopSignal& stop) {
  if (stored_count(layer) < stored_until && NeedsIndex(layer, chunk, stored_until)) {
    CAIRN_RETURN_IF_ERROR(index_.Load(layer, stop));
  }
  CAIRN_RETURN_IF_ERROR(
      Send(layer, chunk, stored_until, AskPolicy(layer, chunk, stored_until, &pool_)));
  index_.Unload(layer);
  ChargeIndex();
  const std::int64_t end = chunk.first_position + chunk.token_count;
  for (std::int32_t head = 0; head < layout_.head_count; ++head) {
    for (std::int64_t at = std::max(chunk.first_position, stored_until); at < end; ++at) {
      std::memcpy(window_.Entry(layer, head, at), RecentEntry(layer, head, at, chunk),
                  static_cast<std::size_t>(entry_bytes_));
    }
  }
  return absl::OkStatus();
}

void EntryStore::AddHeldKeys(std::int32_t layer, LoadedCluster& loaded) const {
  const std::int32_t head = loaded.cluster.head;
  std::vector<const std::byte*> entries;
  for (const HeldEntries::Entry& held : held_.Of(layer, head)) {
    if (held.cluster_id != loaded.cluster.cluster_id) continue;
    entries.push_back(held.data());
    loaded.positions.Append(held.position);
  }
  AppendRows(entries, layout_, ClusterHeads(layout_, head), WithValues(traits_.needs_values),
             loaded.keys, loaded.values);
}

absl::Status EntryStore::SendSplits(std::int32_t layer, std::span<const ClusterSplit> splits) {
  for (const ClusterSplit& split : splits) {
    Replace replace;
    replace.layer = layer;
    replace.head = split.head;
    replace.parent_ids = split.parent_ids;
    replace.children = split.children;
    std::vector<std::int64_t> brought;
    for (const ClusterId parent : split.parent_ids) {
      held_.OfCluster(layer, {split.head, parent}).ForEach([&](std::int64_t position) {
        brought.push_back(position);
      });
    }
    replace.brought_positions = Positions::FromUnsorted(std::move(brought));
    replace.brought_positions.ForEach([&](std::int64_t position) {
      replace.brought_entries += held_.Find(layer, split.head, position)->bytes;
    });
    held_.Remove(layer, split.head, replace.brought_positions);
    CAIRN_RETURN_IF_ERROR(session_.Send(std::move(replace)));
  }
  return absl::OkStatus();
}

bool EntryStore::IndexIsLoaded() const {
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    if (!index_.IsLoaded(layer)) return false;
  }
  return true;
}

absl::Status EntryStore::Settle(std::int64_t token_count,
                                std::vector<std::vector<LoadedCluster>>& loaded,
                                const StopSignal& stop) {
  const std::int64_t stored_until = WindowStartAt(token_count);
  bool nothing = true;
  for (std::size_t layer = 0; layer < stored_counts_.size(); ++layer) {
    if (!loaded[layer].empty() || stored_counts_[layer] < stored_until) nothing = false;
  }
  if (nothing) return absl::OkStatus();
  const TimelineSpan span(TimelineKind::kCluster, "settle");
  const std::int32_t at_once = IndexIsLoaded() ? layout_.layer_count : kStreamedLayers;
  for (std::int32_t first = 0; first < layout_.layer_count; first += at_once) {
    const std::int32_t end = std::min(layout_.layer_count, first + at_once);
    absl::Status status = SettleLayers(first, end, token_count, loaded, stop);
    if (!status.ok()) {
      index_.Reset();
      return status;
    }
  }
  ChargeIndex();
  return absl::OkStatus();
}

absl::Status EntryStore::SettleLayers(std::int32_t first, std::int32_t end,
                                      std::int64_t token_count,
                                      std::vector<std::vector<LoadedCluster>>& loaded,
                                      const StopSignal& stop) {
  const std::int64_t stored_until = WindowStartAt(token_count);
  const std::size_t layer_count = static_cast<std::size_t>(end - first);
  std::vector<std::vector<ClusterSplit>> splits(layer_count);
  std::vector<StoreActions> actions(layer_count);
  for (std::int32_t layer = first; layer < end; ++layer) {
    if (stored_count(layer) < stored_until) CAIRN_RETURN_IF_ERROR(index_.Load(layer, stop));
  }
  pool_.ParallelFor(static_cast<std::int64_t>(layer_count), [&](std::int64_t index) {
    const std::int32_t layer = first + static_cast<std::int32_t>(index);
    const std::size_t at = static_cast<std::size_t>(index);
    std::vector<LoadedCluster>& clusters = loaded[static_cast<std::size_t>(layer)];
    if (!clusters.empty()) {
      const TimelineSpan adapt(TimelineKind::kCluster, "adapt",
                               {{"layer", layer}, {"clusters", std::ssize(clusters)}});
      for (LoadedCluster& cluster : clusters) AddHeldKeys(layer, cluster);
      splits[at] = keeper_.Adapt(layer, clusters);
    }
    actions[at] = AskPolicy(layer, {.first_position = token_count}, stored_until, nullptr);
  });
  for (std::int32_t layer = first; layer < end; ++layer) {
    const std::size_t at = static_cast<std::size_t>(layer - first);
    loaded[static_cast<std::size_t>(layer)].clear();
    CAIRN_RETURN_IF_ERROR(SendSplits(layer, splits[at]));
    CAIRN_RETURN_IF_ERROR(Send(layer, {}, stored_until, actions[at]));
    index_.Unload(layer);
  }
  return absl::OkStatus();
}

CarriedEntries EntryStore::Carry(std::int32_t layer, const ClusterRef& buffer,
                                 const Positions& positions) const {
  CarriedEntries carried;
  carried.head = buffer.head;
  carried.buffer_cluster_id = buffer.cluster_id;
  carried.positions = positions;
  const Positions& recorded = recorded_[RowOf(layer, buffer.head)];
  positions.ForEach([&](std::int64_t at) {
    if (recorded.Contains(at)) return;
    carried.brought_positions.Append(at);
    AppendEntry(layer, buffer.head, at, {}, carried.entries);
  });
  return carried;
}

absl::Status EntryStore::SendCarried(std::int32_t layer, std::int64_t token_count) {
  StageCarried stage;
  stage.layer = layer;
  const std::int64_t first = stored_count(layer);
  const Positions recent = Positions::Range(first, token_count - first);
  for (std::int32_t head = kAllHeads; head < layout_.head_count; ++head) {
    std::set<ClusterId> buffers;
    Positions& carried_here = staged_[RowOf(layer, head)];
    carried_here = Positions();
    for (const HeldEntries::Entry& entry : held_.Of(layer, head)) {
      buffers.insert(entry.cluster_id);
      carried_here.Append(entry.position);
    }
    for (const ClusterId buffer : buffers) {
      stage.carried.push_back(Carry(layer, {head, buffer}, held_.OfCluster(layer, {head, buffer})));
    }
    if (head == kAllHeads) continue;  // the window is each head's own
    stage.carried.push_back(Carry(layer, {head, kWindowBuffer}, recent));
    carried_here.AppendAll(recent);
  }
  std::int64_t bytes = 0;
  for (const CarriedEntries& carried : stage.carried) bytes += std::ssize(carried.entries);
  const KvMemoryCharge charge(memory_, bytes);
  return session_.Send(std::move(stage));
}

absl::Status EntryStore::SendIndexRows(std::int32_t layer) {
  std::vector<IndexRow> rows = paged_index_->TakeChangedRows(layer);
  std::vector<ClusterRef> clusters;
  clusters.reserve(rows.size());
  for (const IndexRow& row : rows) clusters.push_back(row.cluster);
  absl::Status status = SendRows(layer, std::move(rows));
  if (!status.ok()) {
    paged_index_->ReturnRows(layer, clusters);
  } else if (!index_.IsLoaded(layer)) {
    paged_index_->UnloadIndex(layer);  // also what changed since it was unloaded
  }
  return status;
}

absl::Status EntryStore::SendRows(std::int32_t layer, std::vector<IndexRow> rows) {
  PutIndexRows put;
  put.layer = layer;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    bytes += std::ssize(rows[i].row);
    put.rows.push_back(std::move(rows[i]));
    if (bytes < kAppendBytesMax && i + 1 < rows.size()) continue;
    bytes = 0;
    CAIRN_RETURN_IF_ERROR(
        session_.Send(std::exchange(put, PutIndexRows{.layer = layer, .rows = {}})));
  }
  return absl::OkStatus();
}

absl::Status EntryStore::StageCheckpoint(std::int64_t token_count, const PromptSeals& seals) {
  index_.Reset();
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    CAIRN_RETURN_IF_ERROR(SendCarried(layer, token_count));
    if (paged_index_ != nullptr) CAIRN_RETURN_IF_ERROR(SendIndexRows(layer));
  }
  return session_.Send(WrapStoredPolicy(choice_, seals, keeper_.SaveState()));
}

void EntryStore::CheckpointDone(CheckpointEnd end) {
  recorded_ = staged_;
  if (end == CheckpointEnd::kSealed) std::fill(recorded_.begin(), recorded_.end(), Positions());
}

}  // namespace cairn::compute
