// How DynaKvPolicy's index comes from and goes to the rows that checkpoints store.
#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "compute-node/retrieval/dynakv_policy.h"

namespace cairn::compute {
namespace {

// Of a cluster without entries, codes and sketch: 25 to 28 in the index, and 65 to 75 in the KV
// node, whose rows are in memory while the conversation is open.
constexpr std::int64_t kClusterOverheadBytes = 100;
// Room for the clusters that splits make, so that not every head's index moves behind an opening
// and leaves a hole in the heap.
constexpr std::size_t kSpareShare = 16;

}  // namespace

std::vector<IndexRow> DynaKvPolicy::TakeChangedRows(std::int32_t layer) {
  std::vector<IndexRow> rows;
  for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
    ClusterIndex& index = heads_[HeadOf(layer, head)].index;
    for (const std::size_t slot : index.TakeChanged()) {
      // What is stored of it, if anything, says more than zeros; the next step computes it again.
      if (index.flags(slot).missing) continue;
      IndexRow row;
      row.cluster = {head, index.id(slot)};
      row.row = index.Row(slot);
      row.stale = index.flags(slot).stale;
      row.entry_count = index.count(slot);
      rows.push_back(std::move(row));
    }
    index.Compact();
  }
  return rows;
}

void DynaKvPolicy::ReturnRows(std::int32_t layer, std::span<const ClusterRef> clusters) {
  for (const ClusterRef& cluster : clusters) {
    ClusterIndex& index = heads_[HeadOf(layer, cluster.head)].index;
    const std::optional<std::size_t> slot = index.Find(cluster.cluster_id);
    CAIRN_CHECK(slot.has_value());
    index.SetFlags(*slot, index.flags(*slot));
  }
}

void DynaKvPolicy::ReserveSlots(std::int32_t layer, std::span<const IndexRow> rows) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(options_.layout.head_count), 0);
  for (const IndexRow& row : rows) {
    const bool known = row.cluster.head >= 0 && row.cluster.head < options_.layout.head_count;
    if (known) ++counts[static_cast<std::size_t>(row.cluster.head)];
  }
  for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
    const std::size_t count = counts[static_cast<std::size_t>(head)];
    heads_[HeadOf(layer, head)].index.Reserve(count + count / kSpareShare);
  }
}

absl::Status DynaKvPolicy::RestoreIndex(std::int32_t layer, std::span<const IndexRow> rows,
                                        const std::vector<ClusterInfo>* clusters) {
  std::vector<const IndexRow*> sorted;
  sorted.reserve(rows.size());
  for (const IndexRow& row : rows) sorted.push_back(&row);
  const auto by_cluster = [](const IndexRow* a, const IndexRow* b) {
    return a->cluster < b->cluster;
  };
  std::sort(sorted.begin(), sorted.end(), by_cluster);
  const auto index_of = [&](const ClusterRef& cluster) -> ClusterIndex* {
    const bool known = cluster.head >= 0 && cluster.head < options_.layout.head_count;
    return known ? &heads_[HeadOf(layer, cluster.head)].index : nullptr;
  };
  ReserveSlots(layer, rows);
  if (clusters == nullptr) {
    for (const IndexRow* row : sorted) {
      ClusterIndex* index = index_of(row->cluster);
      if (index == nullptr) return InvalidArgument("index row of head {}", row->cluster.head);
      CAIRN_RETURN_IF_ERROR(
          index->AddRow(row->cluster.cluster_id, row->entry_count, row->stale, row->row));
    }
    return absl::OkStatus();
  }
  for (const ClusterInfo& info : *clusters) {
    ClusterIndex* index = index_of(info.cluster);
    if (index == nullptr) return InvalidArgument("cluster of head {}", info.cluster.head);
    IndexRow wanted;
    wanted.cluster = info.cluster;
    const auto at = std::lower_bound(sorted.begin(), sorted.end(), &wanted, by_cluster);
    const std::int64_t count = info.positions.count();
    if (at == sorted.end() || (*at)->cluster != info.cluster) {
      ClusterMoments unknown{.centroid = {index->centre().begin(), index->centre().end()},
                             .variance = 0,
                             .count = count};
      if (needs_values()) unknown.value.assign(static_cast<std::size_t>(dim()), 0.0F);
      index->Add(info.cluster.cluster_id, unknown, {.missing = true});
      continue;
    }
    const bool stale = (*at)->stale || (*at)->entry_count != count;
    CAIRN_RETURN_IF_ERROR(index->AddRow(info.cluster.cluster_id, count, stale, (*at)->row));
    // The next checkpoint stores it with the count that there is now.
    const std::size_t slot = index->slot_count() - 1;
    if (stale) index->SetFlags(slot, index->flags(slot));
  }
  return absl::OkStatus();
}

std::int64_t DynaKvPolicy::ClusterBytes(std::int32_t layer) const {
  std::int64_t bytes = 0;
  for (const Head& head : HeadsOf(layer)) {
    bytes += head.index.cluster_count() * (kClusterOverheadBytes + dim() / 2);
    // What means are attended by stays: UnloadIndex is not called.
    if (needs_values()) bytes += head.index.code_bytes();
  }
  return bytes;
}

std::int64_t DynaKvPolicy::IndexBytes(std::int32_t layer) const {
  std::int64_t bytes = 0;
  for (const Head& head : HeadsOf(layer)) bytes += head.index.code_bytes();
  return bytes;
}

bool DynaKvPolicy::IndexIsLoaded(std::int32_t layer) const {
  const std::span<const Head> heads = HeadsOf(layer);
  return std::all_of(heads.begin(), heads.end(),
                     [](const Head& head) { return head.index.is_loaded(); });
}

// A chunk becomes clusters of its own; only the first one changes those that there are.
bool DynaKvPolicy::StoreReadsIndex(const LeavingEntries& leaving) const {
  const std::span<const Head> heads = HeadsOf(leaving.layer);
  const bool is_chunk =
      leaving.first_position >= kSinkTokens && leaving.token_count >= kChunkEntriesMin &&
      std::all_of(heads.begin(), heads.end(),
                  [](const Head& head) { return head.partitioned && head.metric.has_learned(); });
  return !is_chunk;
}

std::int64_t DynaKvPolicy::LoadIndex(std::int32_t layer, std::span<const IndexRecords> records,
                                     ThreadPool& pool) {
  const std::span<Head> heads = HeadsOf(layer);
  std::vector<std::int64_t> unknown_counts(heads.size(), 0);
  pool.ParallelFor(std::ssize(heads), [&](std::int64_t head) {
    ClusterIndex& index = heads[static_cast<std::size_t>(head)].index;
    if (index.is_loaded()) return;
    unknown_counts[static_cast<std::size_t>(head)] = index.Load([&](auto&& take) {
      for (const IndexRecords& run : records) {
        run.ForEachOfHead(static_cast<std::int32_t>(head), take);
      }
    });
  });
  return std::accumulate(unknown_counts.begin(), unknown_counts.end(), std::int64_t{0});
}

void DynaKvPolicy::FlagUnknown(std::int32_t layer) {
  for (Head& head : HeadsOf(layer)) head.index.MarkMissing();
}

void DynaKvPolicy::UnloadIndex(std::int32_t layer) {
  for (Head& head : HeadsOf(layer)) head.index.Unload();
}

}  // namespace cairn::compute
