#include "compute-node/session/reading/fetch_check.h"

#include <utility>

#include "common/base/check.h"
#include "common/timeline/timeline.h"

namespace cairn::compute {
namespace {

absl::Status ClusterError(std::int32_t layer, const ClusterRef& cluster, std::string_view what) {
  return DataLoss("fetch layer {} head {} cluster {}: {}", layer, cluster.head, cluster.cluster_id,
                  what);
}

// A disk that does not answer may still have it.
absl::Status Unreadable(std::int32_t layer, const ClusterRef& cluster) {
  return Unavailable(
      "fetch layer {} head {} cluster {}: the KV node cannot read it now, and nothing is known to "
      "be lost; check the KV node's disk, whose answer is in its log, and try again",
      layer, cluster.head, cluster.cluster_id);
}

}  // namespace

absl::Status CheckFetched(std::int32_t layer, const PlannedCluster& planned,
                          const FetchedCluster& fetched, const EntryLayout& layout,
                          WithPositions with_positions, std::vector<const std::byte*>& arrived) {
  const ClusterRef& cluster = planned.cluster;
  if (fetched.cluster != cluster) {
    return ClusterError(layer, cluster,
                        fmt::format("the answer is about head {} cluster {}", fetched.cluster.head,
                                    fetched.cluster.cluster_id));
  }
  if (fetched.outcome == FetchOutcome::kUnreadable) return Unreadable(layer, cluster);
  if (fetched.outcome == FetchOutcome::kLost) {
    return ClusterError(layer, cluster, "a part failed its check, each of two times it was read");
  }
  if (fetched.outcome != FetchOutcome::kFound) {
    return ClusterError(layer, cluster, "the KV node does not know it");
  }
  const std::int64_t entry_bytes = layout.EntryBytes(cluster.head);
  const bool has_positions = with_positions == WithPositions::kYes;
  CAIRN_CHECK(has_positions || planned.positions.empty());
  Positions positions;
  std::int64_t count = 0;
  for (const Span& span : fetched.spans) {
    const bool whole = span.entry_count >= 1 && span.entry_count <= planned.entry_count &&
                       std::ssize(span.bytes) == span.entry_count * entry_bytes &&
                       (!has_positions || span.positions.count() == span.entry_count);
    if (!whole) {
      return ClusterError(
          layer, cluster,
          fmt::format("part {}: {} entries in {} bytes with {} positions", span.part_id,
                      span.entry_count, span.bytes.size(), span.positions.count()));
    }
    if (has_positions) {
      if (!positions.empty() && span.positions.first() <= positions.last()) {
        return ClusterError(layer, cluster, "its spans are not in position order");
      }
      positions.AppendAll(span.positions);
    }
    count += span.entry_count;
    for (std::int64_t i = 0; i < span.entry_count; ++i) {
      arrived.push_back(span.Entry(i, entry_bytes));
    }
  }
  if (count != planned.entry_count) {
    return ClusterError(
        layer, cluster,
        fmt::format("{} entries came, {} were expected", count, planned.entry_count));
  }
  if (!planned.positions.empty() && !(positions == planned.positions)) {
    return ClusterError(
        layer, cluster,
        fmt::format("{} entries came, positions {} to {} were expected", positions.count(),
                    planned.positions.first(), planned.positions.last()));
  }
  return absl::OkStatus();
}

absl::Status CheckIntact(const FetchReply& reply) {
  for (const FetchedCluster& cluster : reply.clusters) {
    for (const Span& span : cluster.spans) {
      if (!span.WasIntact()) return Aborted("the KV node took back memory that was being read");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<FetchReply> WaitForFetch(KvSession& session, std::int32_t layer,
                                        std::future<absl::StatusOr<ReadReply>>& answer,
                                        std::size_t cluster_count, const StopSignal& stop) {
  if (answer.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    const TimelineSpan span(TimelineKind::kWait, "wait_for_fetch", {{"layer", layer}});
    const auto wait = session.fetch_clock().Wait();
    while (answer.wait_for(kStopCheckInterval) != std::future_status::ready) {
      CAIRN_RETURN_IF_ERROR(stop.Check());
    }
  }
  CAIRN_ASSIGN_OR_RETURN(FetchReply reply, Wait<FetchReply>(std::move(answer)));
  if (reply.clusters.size() != cluster_count) {
    return DataLoss("fetch layer {}: {} clusters were asked for, {} came", layer, cluster_count,
                    reply.clusters.size());
  }
  return reply;
}

}  // namespace cairn::compute
