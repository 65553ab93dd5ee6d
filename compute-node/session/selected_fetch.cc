#include "compute-node/session/selected_fetch.h"

#include <utility>

#include "compute-node/session/fetch_check.h"

namespace cairn::compute {

void SelectedFetch::Reset() {
  requests_.clear();
  places_.clear();
  layer_ = -1;
}

void SelectedFetch::Ask(KvSession& session, std::int32_t layer,
                        const std::vector<PlannedCluster>& clusters, std::int64_t bytes) {
  Fetch fetch;
  fetch.layer = layer;
  fetch.with_positions = true;
  Request request;
  for (const PlannedCluster& planned : clusters) {
    places_[planned.cluster] = {requests_.size(), request.clusters.size()};
    request.clusters.push_back(planned.cluster);
    fetch.clusters.push_back(planned.cluster);
  }
  request.charge = KvMemoryCharge(memory_, bytes);
  request.answer = session.StartRead(std::move(fetch));
  requests_.push_back(std::move(request));
}

void SelectedFetch::Predict(KvSession& session, std::int32_t layer,
                            const std::vector<FetchSlice>& plan) {
  Reset();
  layer_ = layer;
  for (const FetchSlice& slice : plan) {
    Ask(session, layer, slice.clusters, slice.bytes);
    counts_.predicted_count += std::ssize(slice.clusters);
  }
}

absl::StatusOr<SelectedClusters> SelectedFetch::Take(KvSession& session, std::int32_t layer,
                                                     std::vector<FetchSlice> plan,
                                                     const StopSignal& stop) {
  if (layer_ != layer) Reset();
  std::vector<bool> wanted(requests_.size(), false);
  for (const FetchSlice& slice : plan) {
    std::vector<PlannedCluster> missing;
    std::int64_t missing_bytes = 0;
    for (const PlannedCluster& planned : slice.clusters) {
      ++counts_.selected_count;
      const auto place = places_.find(planned.cluster);
      if (place != places_.end()) {
        ++counts_.foreseen_count;
        wanted[place->second.request] = true;
        continue;
      }
      missing_bytes += planned.entry_count * entry_bytes_;
      missing.push_back(planned);
    }
    if (missing.empty()) continue;
    Ask(session, layer, missing, missing_bytes);
    wanted.push_back(true);
  }
  SelectedClusters taken;
  taken.replies.resize(requests_.size());
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (!wanted[i]) continue;
    CAIRN_ASSIGN_OR_RETURN(taken.replies[i], WaitForFetch(session, layer, requests_[i].answer,
                                                          requests_[i].clusters.size(), stop));
    taken.charges.push_back(std::move(requests_[i].charge));
  }
  for (FetchSlice& slice : plan) {
    for (PlannedCluster& planned : slice.clusters) {
      const Place place = places_.at(planned.cluster);
      SelectedClusters::Cluster cluster;
      cluster.planned = std::move(planned);
      cluster.fetched = &taken.replies[place.request].clusters[place.index];
      CAIRN_RETURN_IF_ERROR(
          CheckFetched(layer, cluster.planned, *cluster.fetched, entry_bytes_, cluster.entries));
      taken.clusters.push_back(std::move(cluster));
    }
  }
  Reset();
  return taken;
}

}  // namespace cairn::compute
