#include "compute-node/session/fetch_pipeline.h"

#include <chrono>
#include <utility>

#include "common/base/check.h"

namespace cairn::compute {
namespace {

// How often a waiting pass looks at its stop signal.
constexpr std::chrono::milliseconds kFetchStopCheckInterval{20};

absl::Status ClusterError(std::int32_t layer, const ClusterRef& cluster, std::string_view what) {
  return DataLoss(
      "fetch layer {} head {} cluster {}: {}; delete the conversation or restore the store", layer,
      cluster.head, cluster.cluster_id, what);
}

}  // namespace

void FetchPipeline::StartPass(KvSession& session, Plan plan, bool ahead) {
  Reset();
  session_ = &session;
  plan_ = std::move(plan);
  ahead_ = ahead;
  if (ahead_) RequestMore();
}

void FetchPipeline::StartLayer(std::int32_t layer) {
  CAIRN_CHECK_EQ(layer, layer_ + 1);
  CAIRN_CHECK(layer_ < 0 || !HasNext());
  layer_ = layer;
  if (planned_to_ < layer) PlanLayer(layer);
  RequestMore();
}

bool FetchPipeline::HasNext() const {
  if (!in_flight_.empty()) return in_flight_.front().layer == layer_;
  return !planned_.empty() && planned_.front().layer == layer_;
}

absl::StatusOr<ArrivedSlice> FetchPipeline::Next(const StopSignal& stop) {
  CAIRN_CHECK(HasNext());
  while (in_flight_.front().answer.wait_for(kFetchStopCheckInterval) != std::future_status::ready) {
    CAIRN_RETURN_IF_ERROR(stop.Check());
  }
  InFlight request = std::move(in_flight_.front());
  in_flight_.pop_front();
  CAIRN_ASSIGN_OR_RETURN(FetchReply reply, Wait<FetchReply>(std::move(request.answer)));
  CAIRN_ASSIGN_OR_RETURN(ArrivedSlice arrived, Check(std::move(request), std::move(reply)));
  RequestMore();
  return arrived;
}

void FetchPipeline::Reset() {
  in_flight_.clear();
  planned_.clear();
  session_ = nullptr;
  plan_ = nullptr;
  layer_ = -1;
  planned_to_ = -1;
}

void FetchPipeline::PlanLayer(std::int32_t layer) {
  for (FetchSlice& slice : plan_(layer)) planned_.push_back({layer, std::move(slice)});
  planned_to_ = layer;
}

void FetchPipeline::RequestMore() {
  // One slice is with the attention while Next's caller works, so it counts.
  while (std::ssize(in_flight_) + 1 < options_.slices_in_flight_max) {
    if (planned_.empty()) {
      const bool next_layer_allowed =
          ahead_ && planned_to_ <= layer_ && planned_to_ + 1 < options_.layer_count;
      if (!next_layer_allowed) return;
      PlanLayer(planned_to_ + 1);
      if (planned_.empty()) return;
    }
    InFlight request;
    request.layer = planned_.front().layer;
    request.slice = std::move(planned_.front().slice);
    planned_.pop_front();
    Fetch fetch;
    fetch.layer = request.layer;
    fetch.with_positions = true;
    for (const PlannedCluster& planned : request.slice.clusters) {
      fetch.clusters.push_back(planned.cluster);
    }
    request.charge = KvMemoryCharge(memory_, request.slice.bytes);
    request.answer = session_->StartRead(std::move(fetch));
    in_flight_.push_back(std::move(request));
  }
}

absl::StatusOr<ArrivedSlice> FetchPipeline::Check(InFlight request, FetchReply reply) const {
  const std::vector<PlannedCluster>& planned = request.slice.clusters;
  if (reply.clusters.size() != planned.size()) {
    return DataLoss("fetch layer {}: {} clusters were asked for, {} came", request.layer,
                    planned.size(), reply.clusters.size());
  }
  ArrivedSlice arrived;
  arrived.reply = std::move(reply);
  arrived.charge = std::move(request.charge);
  arrived.clusters.resize(planned.size());
  for (std::size_t i = 0; i < planned.size(); ++i) {
    CAIRN_RETURN_IF_ERROR(
        CheckCluster(request.layer, planned[i], arrived.reply.clusters[i], arrived.clusters[i]));
  }
  arrived.planned = std::move(request.slice.clusters);
  return arrived;
}

absl::Status FetchPipeline::CheckCluster(std::int32_t layer, const PlannedCluster& planned,
                                         const FetchedCluster& fetched, EntryRun& arrived) const {
  const ClusterRef& cluster = planned.cluster;
  if (fetched.cluster != cluster) {
    return ClusterError(layer, cluster,
                        fmt::format("the answer is about head {} cluster {}", fetched.cluster.head,
                                    fetched.cluster.cluster_id));
  }
  if (fetched.outcome == FetchOutcome::kLost) {
    return ClusterError(layer, cluster, "a part failed its check");
  }
  if (fetched.outcome != FetchOutcome::kFound) {
    return ClusterError(layer, cluster, "the KV node does not know it");
  }
  arrived.head = cluster.head;
  Positions positions;
  for (const Span& span : fetched.spans) {
    const bool whole = span.entry_count >= 1 && span.positions.count() == span.entry_count &&
                       span.entry_count <= planned.entry_count &&
                       std::ssize(span.bytes) == span.entry_count * options_.entry_bytes;
    if (!whole) {
      return ClusterError(
          layer, cluster,
          fmt::format("part {}: {} entries in {} bytes with {} positions", span.part_id,
                      span.entry_count, span.bytes.size(), span.positions.count()));
    }
    if (!positions.empty() && span.positions.first() <= positions.last()) {
      return ClusterError(layer, cluster, "its spans are not in position order");
    }
    positions.AppendAll(span.positions);
    for (std::int64_t i = 0; i < span.entry_count; ++i) {
      arrived.entries.push_back(span.Entry(i, options_.entry_bytes));
    }
  }
  if (positions.count() != planned.entry_count) {
    return ClusterError(
        layer, cluster,
        fmt::format("{} entries came, {} were expected", positions.count(), planned.entry_count));
  }
  if (!planned.positions.empty() && !(positions == planned.positions)) {
    return ClusterError(
        layer, cluster,
        fmt::format("{} entries came, positions {} to {} were expected", positions.count(),
                    planned.positions.first(), planned.positions.last()));
  }
  return absl::OkStatus();
}

}  // namespace cairn::compute
