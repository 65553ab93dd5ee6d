#include "compute-node/session/reading/fetch_pipeline.h"

#include <utility>

#include "common/base/check.h"
#include "compute-node/session/reading/fetch_check.h"

namespace cairn::compute {
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
  Request& first = in_flight_.front();
  CAIRN_ASSIGN_OR_RETURN(FetchReply reply, WaitForFetch(*session_, first.layer, first.answer,
                                                        first.slice.clusters.size(), stop));
  Request request = std::move(first);
  in_flight_.pop_front();
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
  while (std::ssize(in_flight_) + 1 < kSlicesInFlightMax) {
    if (planned_.empty()) {
      const bool next_layer_allowed =
          ahead_ && planned_to_ <= layer_ && planned_to_ + 1 < layout_.layer_count;
      if (!next_layer_allowed) return;
      PlanLayer(planned_to_ + 1);
      if (planned_.empty()) return;
    }
    Request request = std::move(planned_.front());
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

absl::StatusOr<ArrivedSlice> FetchPipeline::Check(Request request, FetchReply reply) const {
  const std::vector<PlannedCluster>& planned = request.slice.clusters;
  ArrivedSlice arrived;
  arrived.reply = std::move(reply);
  arrived.charge = std::move(request.charge);
  arrived.entries.resize(planned.size());
  for (std::size_t i = 0; i < planned.size(); ++i) {
    CAIRN_RETURN_IF_ERROR(CheckFetched(request.layer, planned[i], arrived.reply.clusters[i],
                                       layout_, WithPositions::kYes, arrived.entries[i]));
  }
  arrived.planned = std::move(request.slice.clusters);
  return arrived;
}

}  // namespace cairn::compute
