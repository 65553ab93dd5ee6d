#include "compute-node/session/reading/selected_fetch.h"

#include <algorithm>
#include <array>
#include <utility>

namespace cairn::compute {

void SelectedFetch::Reset() {
  requests_.clear();
  foreseen_.clear();
  layer_ = -1;
}

bool SelectedFetch::NeedsPositions(const PlannedCluster& planned) const {
  return with_positions_ == WithPositions::kYes || planned.adapt || !planned.positions.empty();
}

std::vector<SelectedFetch::Place> SelectedFetch::Ask(
    KvSession& session, std::int32_t layer, std::span<const PlannedCluster* const> clusters) {
  std::array<Fetch, 2> fetches;
  std::array<std::int64_t, 2> bytes{};
  std::vector<Place> places;
  places.reserve(clusters.size());
  for (const PlannedCluster* planned : clusters) {
    const std::size_t kind = NeedsPositions(*planned) ? 1 : 0;
    places.push_back({kind, fetches[kind].clusters.size()});
    fetches[kind].clusters.push_back(planned->cluster);
    bytes[kind] += planned->entry_count * layout_.EntryBytes(planned->cluster.head);
  }
  std::array<std::size_t, 2> request_of{};
  for (std::size_t kind = 0; kind < fetches.size(); ++kind) {
    if (fetches[kind].clusters.empty()) continue;
    request_of[kind] = requests_.size();
    Request request;
    request.cluster_count = fetches[kind].clusters.size();
    request.with_positions = kind == 1 ? WithPositions::kYes : WithPositions::kNo;
    request.charge = KvMemoryCharge(memory_, bytes[kind]);
    fetches[kind].layer = layer;
    fetches[kind].with_positions = kind == 1;
    request.answer = session.StartRead(std::move(fetches[kind]));
    requests_.push_back(std::move(request));
  }
  for (Place& place : places) place.request = request_of[place.request];
  return places;
}

bool SelectedFetch::IsWorthPredicting(std::int32_t layer) const {
  const Foresight& foresight = foresight_[static_cast<std::size_t>(layer)];
  return foresight.used_share >= kUsedShareMin || foresight.skipped_steps + 1 >= kProbeSteps;
}

void SelectedFetch::NoteForesight(std::int32_t layer, std::int64_t foreseen_count) {
  constexpr double kNewestShare = 0.25;
  Foresight& foresight = foresight_[static_cast<std::size_t>(layer)];
  if (foreseen_.empty()) {
    ++foresight.skipped_steps;
    return;
  }
  foresight.skipped_steps = 0;
  const double used_share =
      static_cast<double>(foreseen_count) / static_cast<double>(foreseen_.size());
  foresight.used_share += kNewestShare * (used_share - foresight.used_share);
}

void SelectedFetch::Predict(KvSession& session, std::int32_t layer,
                            const std::vector<FetchSlice>& plan) {
  Reset();
  layer_ = layer;
  std::vector<const PlannedCluster*> asked;
  for (const FetchSlice& slice : plan) {
    asked.clear();
    for (const PlannedCluster& planned : slice.clusters) {
      if (FindKept(layer, planned) == nullptr) asked.push_back(&planned);
    }
    const std::vector<Place> places = Ask(session, layer, asked);
    for (std::size_t i = 0; i < asked.size(); ++i) {
      foreseen_.push_back({asked[i]->cluster, places[i]});
    }
    counts_.predicted_count += std::ssize(asked);
  }
  std::sort(foreseen_.begin(), foreseen_.end(),
            [](const Foreseen& a, const Foreseen& b) { return a.cluster < b.cluster; });
}

const SelectedFetch::Place* SelectedFetch::Find(const PlannedCluster& planned) const {
  const auto found = std::lower_bound(
      foreseen_.begin(), foreseen_.end(), planned.cluster,
      [](const Foreseen& a, const ClusterRef& wanted) { return a.cluster < wanted; });
  if (found == foreseen_.end() || found->cluster != planned.cluster) return nullptr;
  const bool lacks_positions = NeedsPositions(planned) &&
                               requests_[found->place.request].with_positions == WithPositions::kNo;
  return lacks_positions ? nullptr : &found->place;
}

std::shared_ptr<const KeptCluster> SelectedFetch::FindKept(std::int32_t layer,
                                                           const PlannedCluster& planned) const {
  return kept_.Find(layer, planned, WithPositions{NeedsPositions(planned)});
}

std::vector<SelectedFetch::Place> SelectedFetch::PlacesOf(KvSession& session, std::int32_t layer,
                                                          const std::vector<FetchSlice>& plan,
                                                          SelectedClusters& taken) {
  const std::int64_t foreseen_before = counts_.foreseen_count;
  std::vector<Place> places;
  std::vector<const PlannedCluster*> missing;
  std::vector<std::size_t> missing_places;
  for (const FetchSlice& slice : plan) {
    missing.clear();
    missing_places.clear();
    for (const PlannedCluster& planned : slice.clusters) {
      ++counts_.selected_count;
      if (std::shared_ptr<const KeptCluster> kept = FindKept(layer, planned)) {
        ++counts_.kept_count;
        places.push_back({.index = taken.kept.size(), .is_kept = true});
        taken.kept.push_back(std::move(kept));
        continue;
      }
      const Place* place = Find(planned);
      if (place != nullptr) {
        ++counts_.foreseen_count;
      } else {
        missing.push_back(&planned);
        missing_places.push_back(places.size());
      }
      places.push_back(place != nullptr ? *place : Place());
    }
    const std::vector<Place> asked = Ask(session, layer, missing);
    for (std::size_t i = 0; i < asked.size(); ++i) places[missing_places[i]] = asked[i];
  }
  NoteForesight(layer, counts_.foreseen_count - foreseen_before);
  for (const Place& place : places) {
    if (!place.is_kept) requests_[place.request].wanted = true;
  }
  return places;
}

absl::Status SelectedFetch::WaitForWanted(KvSession& session, std::int32_t layer,
                                          const StopSignal& stop, SelectedClusters& taken) {
  taken.replies.resize(requests_.size());
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    Request& request = requests_[i];
    if (!request.wanted) continue;
    CAIRN_ASSIGN_OR_RETURN(taken.replies[i], WaitForFetch(session, layer, request.answer,
                                                          request.cluster_count, stop));
    taken.charges.push_back(std::move(request.charge));
  }
  return absl::OkStatus();
}

absl::StatusOr<SelectedClusters> SelectedFetch::Take(KvSession& session, std::int32_t layer,
                                                     std::vector<FetchSlice> plan,
                                                     const StopSignal& stop,
                                                     const std::function<void()>& meanwhile) {
  if (layer_ != layer) Reset();
  SelectedClusters taken;
  const std::vector<Place> places = PlacesOf(session, layer, plan, taken);
  if (meanwhile) meanwhile();
  CAIRN_RETURN_IF_ERROR(WaitForWanted(session, layer, stop, taken));
  taken.clusters.reserve(places.size());
  std::size_t next = 0;
  for (FetchSlice& slice : plan) {
    for (PlannedCluster& planned : slice.clusters) {
      const Place place = places[next++];
      SelectedClusters::Cluster cluster;
      cluster.first_entry = taken.entries.size();
      cluster.was_kept = place.is_kept;
      if (place.is_kept) planned = taken.kept[place.index]->PlanOfCopy(std::move(planned));
      cluster.fetched = place.is_kept ? &taken.kept[place.index]->fetched()
                                      : &taken.replies[place.request].clusters[place.index];
      cluster.with_positions = place.is_kept ? taken.kept[place.index]->with_positions()
                                             : requests_[place.request].with_positions;
      CAIRN_RETURN_IF_ERROR(CheckFetched(layer, planned, *cluster.fetched, layout_,
                                         cluster.with_positions, taken.entries));
      cluster.planned = std::move(planned);
      taken.clusters.push_back(std::move(cluster));
    }
  }
  Reset();
  return taken;
}

void SelectedFetch::Keep(std::int32_t layer, const SelectedClusters& taken,
                         std::int64_t bytes_max) {
  kept_.Shrink(layer, bytes_max);
  if (bytes_max == 0) return;
  for (const SelectedClusters::Cluster& cluster : taken.clusters) {
    if (cluster.was_kept) {
      kept_.Touch(layer, cluster.planned.cluster);
      continue;
    }
    if (cluster.planned.adapt) continue;  // about to be replaced
    kept_.Put(layer,
              std::make_shared<KeptCluster>(*cluster.fetched, taken.EntriesOf(cluster),
                                            cluster.planned.attended,
                                            layout_.EntryBytes(cluster.planned.cluster.head),
                                            cluster.with_positions, memory_),
              bytes_max);
  }
}

}  // namespace cairn::compute
