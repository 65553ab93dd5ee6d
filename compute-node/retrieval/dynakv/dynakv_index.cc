// How DynaKvPolicy's index comes from and goes to the rows that checkpoints store.
#include <algorithm>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "compute-node/retrieval/dynakv/dynakv_policy.h"

namespace cairn::compute {
namespace {

// Of a cluster without entries, codes and sketch: 25 to 28 in the index, and 65 to 75 in the KV
// node, whose rows are in memory while the conversation is open.
constexpr std::int64_t kClusterOverheadBytes = 100;
// Room for the clusters that splits make, so that not every head's index moves behind an opening
// and leaves a hole in the heap.
constexpr std::size_t kSpareShare = 16;

template <typename OfCluster>
absl::Status CheckHeads(std::int32_t head_count, std::string_view what,
                        std::span<const OfCluster> all) {
  for (const OfCluster& each : all) {
    const std::int32_t head = each.cluster.head;
    if (head < 0 || head >= head_count) return InvalidArgument("{} of head {}", what, head);
  }
  return absl::OkStatus();
}

struct ByHead {
  bool operator()(const IndexRecord& record, std::int32_t head) const {
    return record.cluster.head < head;
  }
  bool operator()(std::int32_t head, const IndexRecord& record) const {
    return head < record.cluster.head;
  }
};

absl::Status AddRecords(std::span<const IndexRecord> records, ClusterIndex& index) {
  for (const IndexRecord& record : records) {
    CAIRN_RETURN_IF_ERROR(
        index.AddRow(record.cluster.cluster_id, record.entry_count, record.stale, record.row));
  }
  return absl::OkStatus();
}

void AddUnknown(const ClusterInfo& info, ClusterIndex& index) {
  ClusterMoments unknown{.centroid = {index.centre().begin(), index.centre().end()},
                         .variance = 0,
                         .count = info.positions.count()};
  if (index.keeps_values()) unknown.value.assign(static_cast<std::size_t>(index.dim()), 0.0F);
  index.Add(info.cluster.cluster_id, unknown,
            {.pinned = info.cluster.cluster_id == kSinkCluster &&
                       !FailPoint("sinks whose row was lost are a cluster like others"),
             .missing = true});
}

// All clusters of a head, whose records may be of more or fewer entries than there are.
absl::Status AddClusters(std::int32_t head, std::span<const ClusterInfo> clusters,
                         std::span<const IndexRecord> records, ClusterIndex& index) {
  for (const ClusterInfo& info : clusters) {
    if (info.cluster.head != head) continue;
    const auto at = std::lower_bound(records.begin(), records.end(), info.cluster,
                                     [](const IndexRecord& record, const ClusterRef& wanted) {
                                       return record.cluster < wanted;
                                     });
    if (at == records.end() || at->cluster != info.cluster) {
      AddUnknown(info, index);
      continue;
    }
    const std::int64_t count = info.positions.count();
    const bool stale = at->stale || at->entry_count != count;
    CAIRN_RETURN_IF_ERROR(index.AddRow(info.cluster.cluster_id, count, stale, at->row));
    // The next checkpoint stores it with the count that there is now.
    const std::size_t slot = index.slot_count() - 1;
    if (stale) index.SetFlags(slot, index.flags(slot));
  }
  return absl::OkStatus();
}

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

absl::Status DynaKvPolicy::RestoreIndex(std::int32_t layer, std::span<const IndexRecord> records,
                                        const std::vector<ClusterInfo>* clusters,
                                        ThreadPool& pool) {
  const std::span<Head> heads = HeadsOf(layer);
  const std::int32_t head_count = options_.layout.head_count;
  CAIRN_RETURN_IF_ERROR(clusters == nullptr ? CheckHeads(head_count, "index row", records)
                                            : CheckHeads(head_count, "cluster",
                                                         std::span<const ClusterInfo>(*clusters)));
  std::vector<absl::Status> statuses(heads.size());
  pool.ParallelFor(std::ssize(heads), [&](std::int64_t at) {
    const auto head = static_cast<std::int32_t>(at);
    ClusterIndex& index = heads[static_cast<std::size_t>(at)].index;
    const auto [first, last] = std::equal_range(records.begin(), records.end(), head, ByHead());
    const std::span<const IndexRecord> of_head(first, last);
    index.Clear();
    // Codes of rows that hold all of a cluster come again when they are needed.
    if (clusters == nullptr && !traits().needs_values) index.Unload();
    index.Reserve(of_head.size() + of_head.size() / kSpareShare);
    statuses[static_cast<std::size_t>(at)] = clusters == nullptr
                                                 ? AddRecords(of_head, index)
                                                 : AddClusters(head, *clusters, of_head, index);
  });
  for (absl::Status& status : statuses) CAIRN_RETURN_IF_ERROR(std::move(status));
  return absl::OkStatus();
}

std::int64_t DynaKvPolicy::ClusterBytes(std::int32_t layer) const {
  std::int64_t bytes = 0;
  for (const Head& head : HeadsOf(layer)) {
    bytes += head.index.cluster_count() * (kClusterOverheadBytes + dim() / 2);
    // What means are attended by stays: UnloadIndex is not called.
    if (traits().needs_values) bytes += head.index.code_bytes();
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
