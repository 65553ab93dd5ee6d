// How EntryStore brings whole clusters into memory, and lets the policy make others of them.
#include <utility>

#include "common/timeline/timeline.h"
#include "compute-node/kernels/kv_entry.h"
#include "compute-node/session/entries/entry_store.h"
#include "compute-node/session/reading/fetch_check.h"

namespace cairn::compute {
namespace {

// Entries that are loaded at once for the policy to look at.
constexpr std::int64_t kLoadBytesMax = std::int64_t{2} << 20;

}  // namespace

void AppendRows(std::span<const std::byte* const> entries, const EntryLayout& layout,
                const ClusterHeads& heads, WithValues with_values, std::vector<float>& keys,
                std::vector<float>& values) {
  const std::size_t dim = static_cast<std::size_t>(layout.head_dim);
  const std::size_t floats = entries.size() * static_cast<std::size_t>(heads.count()) * dim;
  const bool keeps_values = with_values == WithValues::kYes;
  std::size_t at = keys.size();
  std::size_t value_at = values.size();
  keys.resize(at + floats);
  if (keeps_values) values.resize(value_at + floats);
  std::vector<float> unwanted(keeps_values ? 0 : dim);
  for (const std::byte* entry : entries) {
    for (std::int32_t head = heads.first(); head < heads.end(); ++head) {
      const std::span<float> value =
          keeps_values ? std::span(values).subspan(value_at, dim) : std::span(unwanted);
      LoadKvEntry(heads.PartOf(head, entry), layout.kv_format, std::span(keys).subspan(at, dim),
                  value);
      at += dim;
      value_at += dim;
    }
  }
}

absl::StatusOr<std::vector<LoadedCluster>> EntryStore::Load(
    std::int32_t layer, std::span<const ClusterRef> clusters,
    std::span<const std::int64_t> entry_counts, const StopSignal& stop) {
  std::vector<LoadedCluster> loaded;
  std::size_t next = 0;
  while (next < clusters.size()) {
    Fetch fetch;
    fetch.layer = layer;
    fetch.with_positions = true;
    const std::size_t first = next;
    for (std::int64_t bytes = 0; next < clusters.size(); ++next) {
      bytes += entry_counts[next] * layout_.EntryBytes(clusters[next].head);
      const bool full = bytes > kLoadBytesMax || next - first == kFetchClusterCountMax;
      if (full && next > first) break;
      fetch.clusters.push_back(clusters[next]);
    }
    std::future<absl::StatusOr<ReadReply>> answer = session_.StartRead(std::move(fetch));
    CAIRN_ASSIGN_OR_RETURN(const FetchReply reply,
                           WaitForFetch(session_, layer, answer, next - first, stop));
    for (std::size_t i = first; i < next; ++i) {
      PlannedCluster planned;
      planned.cluster = clusters[i];
      planned.entry_count = entry_counts[i];
      const FetchedCluster& fetched = reply.clusters[i - first];
      std::vector<const std::byte*> entries;
      CAIRN_RETURN_IF_ERROR(
          CheckFetched(layer, planned, fetched, layout_, WithPositions::kYes, entries));
      LoadedCluster cluster{.cluster = clusters[i]};
      for (const Span& span : fetched.spans) cluster.positions.AppendAll(span.positions);
      cluster.stored_count = cluster.positions.count();
      AppendRows(entries, layout_, ClusterHeads(layout_, cluster.cluster.head),
                 WithValues(traits_.needs_values), cluster.keys, cluster.values);
      loaded.push_back(std::move(cluster));
    }
    CAIRN_RETURN_IF_ERROR(CheckIntact(reply));
  }
  return loaded;
}

absl::StatusOr<bool> EntryStore::RegroupLayer(std::int32_t layer, const StopSignal& stop) {
  const TimelineSpan span(TimelineKind::kCluster, "regroup", {{"layer", layer}});
  CAIRN_RETURN_IF_ERROR(index_.Load(layer, stop));
  const std::vector<ClusterGroup> groups = keeper_.Regroup(layer);
  for (std::size_t next = 0; next < groups.size();) {
    std::vector<std::vector<LoadedCluster>> loaded;
    std::int64_t bytes = 0;
    for (; next < groups.size(); ++next) {
      std::int64_t more = 0;
      for (std::size_t i = 0; i < groups[next].clusters.size(); ++i) {
        more += groups[next].entry_counts[i] * layout_.EntryBytes(groups[next].clusters[i].head);
      }
      if (!loaded.empty() && bytes + more > kLoadBytesMax) break;
      bytes += more;
      CAIRN_ASSIGN_OR_RETURN(std::vector<LoadedCluster> group,
                             Load(layer, groups[next].clusters, groups[next].entry_counts, stop));
      for (LoadedCluster& cluster : group) AddHeldKeys(layer, cluster);
      loaded.push_back(std::move(group));
    }
    // Rows as floats; the entries themselves are gone again.
    const std::int64_t rows = bytes / entry_bytes_ * (traits_.needs_values ? 2 : 1);
    const KvMemoryCharge charge(memory_, rows * layout_.head_dim * std::int64_t{4});
    CAIRN_RETURN_IF_ERROR(SendSplits(layer, keeper_.Recluster(layer, loaded, pool_)));
  }
  index_.Unload(layer);
  return !groups.empty();
}

absl::StatusOr<bool> EntryStore::Regroup(const StopSignal& stop) {
  bool any = false;
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    CAIRN_ASSIGN_OR_RETURN(const bool changed, RegroupLayer(layer, stop));
    any = any || changed;
  }
  ChargeIndex();
  return any;
}

}  // namespace cairn::compute
