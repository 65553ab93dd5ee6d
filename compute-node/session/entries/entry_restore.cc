// What EntryStore reads back from a session's last checkpoint.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "common/timeline/timeline.h"
#include "compute-node/session/entries/entry_store.h"
#include "compute-node/session/entries/stored_policy.h"
#include "compute-node/session/reading/fetch_check.h"

namespace cairn::compute {
namespace {

// Layers whose rows are on their way, and take memory, while one is made usable.
constexpr std::size_t kLayersAhead = 2;

absl::Status NotAsStored(const KvSession& session, std::int32_t layer, std::string_view what) {
  return DataLoss("open conversation {}: layer {}: {}", session.attachment().session_id, layer,
                  what);
}

}  // namespace

absl::Status EntryStore::Restore(std::optional<StoredPolicy> stored, std::string& random_state) {
  std::fill(recorded_.begin(), recorded_.end(), Positions());
  std::fill(stored_counts_.begin(), stored_counts_.end(), 0);
  held_.Clear();
  index_.Reset();
  index_time_ = std::chrono::nanoseconds(0);
  CAIRN_RETURN_IF_ERROR(RestorePolicy(std::move(stored), random_state));
  if (session_.attachment().token_count == 0) return absl::OkStatus();
  StoredIndex index(session_);
  std::deque<LayerReads> reads;
  for (std::int32_t layer = 0, next = 0; layer < layout_.layer_count; ++layer) {
    const TimelineSpan span(TimelineKind::kTurn, "restore", {{"layer", layer}});
    for (; next < layout_.layer_count && reads.size() <= kLayersAhead; ++next) {
      reads.push_back({.carried = session_.StartRead(GetCarried{next})});
      if (paged_index_ != nullptr) reads.back().index = index.Ask(next);
    }
    CAIRN_RETURN_IF_ERROR(RestoreLayer(layer, std::move(reads.front()), index));
    reads.pop_front();
    if (traits_.rebuilds_from_keys) CAIRN_RETURN_IF_ERROR(RebuildFromKeys(layer));
  }
  // The next message, which would bring them along, may be long in coming.
  session_.ReturnLeases();
  ChargeIndex();
  return absl::OkStatus();
}

absl::Status EntryStore::RestorePolicy(std::optional<StoredPolicy> read,
                                       std::string& random_state) {
  const Attachment& attachment = session_.attachment();
  const bool is_new = attachment.token_count == 0;
  StoredPolicy stored;
  if (!is_new) {
    if (!read.has_value()) {
      CAIRN_ASSIGN_OR_RETURN(read, ReadStoredPolicy(session_));
    }
    stored = *std::move(read);
    if (!(stored.choice == choice_)) {
      return DataLoss("open conversation {}: the store says {}, but it was {}",
                      attachment.session_id, Describe(stored.choice, choice_),
                      Describe(choice_, stored.choice));
    }
  }
  const std::vector<std::int64_t> next_ids =
      is_new ? std::vector<std::int64_t>() : attachment.next_cluster_ids;
  CAIRN_RETURN_IF_ERROR(
      Annotate(keeper_.RestoreState({.version = stored.version,
                                     .state = stored.state,
                                     .next_cluster_ids = next_ids,
                                     .token_count = attachment.token_count,
                                     .state_token_count = attachment.policy_token_count}),
               fmt::format("open conversation {}", attachment.session_id)));
  // A fork from an earlier token begins with random numbers of its own.
  const bool forked = attachment.token_count < attachment.policy_token_count;
  random_state = forked ? std::string() : std::move(stored.random_state);
  return absl::OkStatus();
}

absl::Status EntryStore::RestoreLayer(std::int32_t layer, LayerReads reads, StoredIndex& index) {
  CAIRN_ASSIGN_OR_RETURN(const CarriedReply reply, Wait<CarriedReply>(std::move(reads.carried)));
  CAIRN_RETURN_IF_ERROR(RestoreWindow(layer, reply));
  if (paged_index_ != nullptr) {
    CAIRN_RETURN_IF_ERROR(RestoreIndex(layer, reply, std::move(reads.index), index));
    index_.Unload(layer);
  }
  return RestoreHeld(layer, reply);
}

absl::Status EntryStore::RestoreWindow(std::int32_t layer, const CarriedReply& reply) {
  const Attachment& attachment = session_.attachment();
  // A fork from before the window has none.
  std::int64_t window_first = attachment.token_count;
  std::int64_t window_count = 0;
  for (const CarriedEntries& carried : reply.carried) {
    if (carried.buffer_cluster_id != kWindowBuffer) continue;
    CAIRN_RETURN_IF_ERROR(RestoreCarried(layer, carried, window_first));
    ++window_count;
  }
  const bool forked = attachment.token_count < attachment.policy_token_count;
  if (window_count != layout_.head_count && !(window_count == 0 && forked)) {
    return NotAsStored(
        session_, layer,
        fmt::format("the window of {} heads came, not of {}", window_count, layout_.head_count));
  }
  stored_counts_[static_cast<std::size_t>(layer)] = window_first;
  return absl::OkStatus();
}

absl::Status EntryStore::RestoreCarried(std::int32_t layer, const CarriedEntries& carried,
                                        std::int64_t& window_first) {
  const std::int64_t token_count = session_.attachment().token_count;
  const Positions& positions = carried.positions;
  const std::int64_t count = positions.count();
  const bool newest = !positions.empty() && count <= window_.capacity() &&
                      positions == Positions::Range(token_count - count, count);
  const bool as_the_others =
      window_first == token_count || positions.empty() || positions.first() == window_first;
  if (carried.head < 0 || carried.head >= layout_.head_count || !newest || !as_the_others ||
      std::ssize(carried.entries) != count * entry_bytes_) {
    return NotAsStored(session_, layer,
                       fmt::format("window of head {}: {} positions in {} bytes before token {}",
                                   carried.head, count, carried.entries.size(), token_count));
  }
  window_first = positions.first();
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(window_.Entry(layer, carried.head, window_first + i),
                carried.entries.data() + i * entry_bytes_, static_cast<std::size_t>(entry_bytes_));
  }
  recorded_[RowOf(layer, carried.head)] = carried.brought_positions;
  return absl::OkStatus();
}

bool EntryStore::IsBuffer(std::int32_t layer, const CarriedEntries& carried) const {
  const Positions& positions = carried.positions;
  return carried.head >= kAllHeads && carried.head < layout_.head_count && !positions.empty() &&
         positions.last() < stored_count(layer) &&
         std::ssize(carried.entries) == positions.count() * layout_.EntryBytes(carried.head);
}

absl::Status EntryStore::RestoreHeld(std::int32_t layer, const CarriedReply& reply) {
  struct Found {
    HeldEntry held;
    std::string_view entry;
  };
  std::vector<Found> found;
  std::map<std::int32_t, std::vector<std::int64_t>> recorded;  // by head
  for (const CarriedEntries& carried : reply.carried) {
    if (carried.buffer_cluster_id == kWindowBuffer) continue;
    const Positions& positions = carried.positions;
    if (!IsBuffer(layer, carried)) {
      return NotAsStored(
          session_, layer,
          fmt::format("buffer {} of head {}: {} positions in {} bytes", carried.buffer_cluster_id,
                      carried.head, positions.count(), carried.entries.size()));
    }
    std::string_view rest = carried.entries;
    const std::size_t entry_bytes = static_cast<std::size_t>(layout_.EntryBytes(carried.head));
    positions.ForEach([&](std::int64_t position) {
      found.push_back(
          {{{carried.head, carried.buffer_cluster_id}, position}, rest.substr(0, entry_bytes)});
      rest.remove_prefix(entry_bytes);
    });
    carried.brought_positions.ForEach(
        [&](std::int64_t position) { recorded[carried.head].push_back(position); });
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::pair(a.held.position, a.held.cluster.head) <
           std::pair(b.held.position, b.held.cluster.head);
  });
  for (const Found& each : found) {
    CAIRN_RETURN_IF_ERROR(keeper_.RestoreHeld(layer, each.held));
    held_.Add(layer, each.held, std::string(each.entry));
  }
  for (auto& of_head : recorded) {
    std::vector<std::int64_t>& more = of_head.second;
    Positions& all = recorded_[RowOf(layer, of_head.first)];
    all.ForEach([&](std::int64_t position) { more.push_back(position); });
    all = Positions::FromUnsorted(std::move(more));
  }
  return absl::OkStatus();
}

bool EntryStore::CountEntries(std::int32_t cluster_head, std::int64_t entry_count,
                              std::vector<std::int64_t>& counts) const {
  if (cluster_head < kAllHeads || cluster_head >= layout_.head_count) return false;
  const ClusterHeads heads(layout_, cluster_head);
  for (std::int32_t head = heads.first(); head < heads.end(); ++head) {
    counts[static_cast<std::size_t>(head)] += entry_count;
  }
  return true;
}

bool EntryStore::IsComplete(std::int32_t layer, std::span<const IndexRecord> records,
                            const CarriedReply& reply) const {
  const Attachment& attachment = session_.attachment();
  if (attachment.token_count < attachment.policy_token_count) return false;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(layout_.head_count), 0);
  for (const IndexRecord& record : records) {
    if (record.stale || !CountEntries(record.cluster.head, record.entry_count, counts)) {
      return false;
    }
  }
  return CountHeld(reply, counts) && IsAllStored(layer, counts);
}

bool EntryStore::CountHeld(const CarriedReply& reply, std::vector<std::int64_t>& counts) const {
  return std::all_of(reply.carried.begin(), reply.carried.end(), [&](const CarriedEntries& each) {
    return each.buffer_cluster_id == kWindowBuffer ||
           CountEntries(each.head, each.positions.count(), counts);
  });
}

bool EntryStore::IsAllStored(std::int32_t layer, std::span<const std::int64_t> counts) const {
  return std::all_of(counts.begin(), counts.end(),
                     [&](std::int64_t count) { return count == stored_count(layer); });
}

absl::Status EntryStore::RestoreIndex(std::int32_t layer, const CarriedReply& reply,
                                      StoredIndex::Answer answer, StoredIndex& index) {
  const TimelineSpan span(TimelineKind::kTurn, "restore_index", {{"layer", layer}});
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  for (int retries_left = kTornRetriesMax;; --retries_left) {
    CAIRN_RETURN_IF_ERROR(index.Take(layer, std::move(answer)));
    absl::Status status = MakeIndex(layer, index.records(), reply);
    absl::Status intact = index.CheckIntact();
    index.Clear();
    if (!intact.ok() && retries_left == 0) return intact;
    if (intact.ok()) {
      index_time_ += std::chrono::steady_clock::now() - start;
      return status;
    }
    answer = index.Ask(layer);
  }
}

absl::Status EntryStore::MakeIndex(std::int32_t layer, std::span<const IndexRecord> records,
                                   const CarriedReply& reply) {
  if (IsComplete(layer, records, reply)) {
    return paged_index_->RestoreIndex(layer, records, nullptr, pool_);
  }
  // A fork, which may lie in the middle of clusters, or a row that was lost.
  CAIRN_ASSIGN_OR_RETURN(const ClustersReply clusters,
                         Wait<ClustersReply>(session_.StartRead(GetClusters{layer})));
  std::vector<std::int64_t> counts(static_cast<std::size_t>(layout_.head_count), 0);
  const bool counted =
      std::all_of(clusters.clusters.begin(), clusters.clusters.end(), [&](const ClusterInfo& info) {
        return CountEntries(info.cluster.head, info.positions.count(), counts);
      });
  if (!counted || !CountHeld(reply, counts) || !IsAllStored(layer, counts)) {
    return NotAsStored(session_, layer,
                       fmt::format("{} clusters do not hold each of {} positions once",
                                   clusters.clusters.size(), stored_count(layer)));
  }
  return paged_index_->RestoreIndex(layer, records, &clusters.clusters, pool_);
}

absl::Status EntryStore::RebuildFromKeys(std::int32_t layer) {
  CAIRN_ASSIGN_OR_RETURN(const ClustersReply reply,
                         Wait<ClustersReply>(session_.StartRead(GetClusters{layer})));
  std::vector<ClusterRef> clusters;
  std::vector<std::int64_t> entry_counts;
  for (const ClusterInfo& info : reply.clusters) {
    clusters.push_back(info.cluster);
    entry_counts.push_back(info.positions.count());
  }
  const StopSignal never;
  CAIRN_ASSIGN_OR_RETURN(std::vector<LoadedCluster> loaded,
                         Load(layer, clusters, entry_counts, never));
  std::vector<std::int64_t> counts(static_cast<std::size_t>(layout_.head_count), 0);
  for (const LoadedCluster& cluster : loaded) {
    CountEntries(cluster.cluster.head, cluster.positions.count(), counts);
  }
  const std::int64_t held_for_all = std::ssize(held_.Of(layer, kAllHeads));
  for (std::int32_t head = 0; head < layout_.head_count; ++head) {
    const std::int64_t held = std::ssize(held_.Of(layer, head)) + held_for_all;
    if (counts[static_cast<std::size_t>(head)] + held == stored_count(layer)) continue;
    return NotAsStored(
        session_, layer,
        fmt::format("head {} has {} entries in clusters and {} held, of {}", head,
                    counts[static_cast<std::size_t>(head)], held, stored_count(layer)));
  }
  AddHeld(layer, loaded);
  return keeper_.Rebuild(layer, loaded);
}

void EntryStore::AddHeld(std::int32_t layer, std::vector<LoadedCluster>& loaded) const {
  std::set<ClusterRef> waited_for;
  for (std::int32_t head = kAllHeads; head < layout_.head_count; ++head) {
    for (const HeldEntries::Entry& held : held_.Of(layer, head)) {
      waited_for.insert({head, held.cluster_id});
    }
  }
  for (LoadedCluster& cluster : loaded) {
    if (waited_for.erase(cluster.cluster) > 0) AddHeldKeys(layer, cluster);
  }
  for (const ClusterRef& cluster : waited_for) {
    AddHeldKeys(layer, loaded.emplace_back(LoadedCluster{.cluster = cluster}));
  }
  std::sort(loaded.begin(), loaded.end(),
            [](const LoadedCluster& a, const LoadedCluster& b) { return a.cluster < b.cluster; });
}

}  // namespace cairn::compute
