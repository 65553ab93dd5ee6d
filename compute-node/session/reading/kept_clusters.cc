#include "compute-node/session/reading/kept_clusters.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "common/base/check.h"

namespace cairn::compute {
namespace {

// What a kept cluster takes beside its entries, about.
constexpr std::int64_t kKeptOverheadBytes = 200;

Positions PositionsAt(const Positions& positions, std::span<const std::int32_t> indices) {
  Positions at;
  for (const std::int32_t index : indices) at.Append(positions.at(index));
  return at;
}

}  // namespace

KeptCluster::KeptCluster(const FetchedCluster& fetched, std::span<const std::byte* const> entries,
                         std::span<const std::int32_t> attended, std::int64_t entry_bytes,
                         WithPositions with_positions, KvMemory& memory)
    : bytes_((attended.empty() ? entries.size() : attended.size()) *
             static_cast<std::size_t>(entry_bytes)),
      indices_(attended.begin(), attended.end()),
      with_positions_(with_positions),
      charge_(memory, std::ssize(bytes_) + kKeptOverheadBytes) {
  CAIRN_CHECK(!entries.empty());
  const std::size_t count = attended.empty() ? entries.size() : attended.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t from = attended.empty() ? i : static_cast<std::size_t>(attended[i]);
    std::memcpy(bytes_.data() + i * static_cast<std::size_t>(entry_bytes), entries[from],
                static_cast<std::size_t>(entry_bytes));
  }
  fetched_.cluster = fetched.cluster;
  Span all;
  all.part_id = fetched.spans.front().part_id;
  all.entry_count = static_cast<std::int64_t>(count);
  all.bytes = bytes_;
  if (with_positions == WithPositions::kYes) {
    for (const Span& span : fetched.spans) all.positions.AppendAll(span.positions);
    if (!attended.empty()) all.positions = PositionsAt(all.positions, attended);
  }
  fetched_.spans.push_back(std::move(all));
}

std::int64_t KeptCluster::size_bytes() const {
  return std::ssize(bytes_) + (indices_.empty() ? 0 : kKeptOverheadBytes);
}

bool KeptCluster::Serves(const PlannedCluster& planned) const {
  const std::vector<std::int32_t>& attended = planned.attended;
  if (attended.empty() || planned.adapt) {
    return indices_.empty() && entry_count() == planned.entry_count;
  }
  if (indices_.empty()) return attended.back() < entry_count();
  return std::includes(indices_.begin(), indices_.end(), attended.begin(), attended.end());
}

PlannedCluster KeptCluster::PlanOfCopy(PlannedCluster planned) const {
  planned.entry_count = entry_count();
  if (indices_.empty()) {
    planned.positions =
        planned.positions.Slice(0, std::min(entry_count(), planned.positions.count()));
    return planned;
  }
  if (!planned.positions.empty()) planned.positions = PositionsAt(planned.positions, indices_);
  for (std::int32_t& index : planned.attended) {
    const auto at = std::lower_bound(indices_.begin(), indices_.end(), index);
    index = static_cast<std::int32_t>(at - indices_.begin());
  }
  return planned;
}

std::shared_ptr<const KeptCluster> KeptClusters::Find(std::int32_t layer,
                                                      const PlannedCluster& planned,
                                                      WithPositions needed) const {
  const Layer& of_layer = layers_[static_cast<std::size_t>(layer)];
  const auto found = of_layer.by_cluster.find(planned.cluster);
  if (found == of_layer.by_cluster.end()) return nullptr;
  const std::shared_ptr<const KeptCluster>& kept = *found->second;
  if (!kept->Serves(planned)) return nullptr;
  if (needed == WithPositions::kYes && kept->with_positions() == WithPositions::kNo) return nullptr;
  return kept;
}

void KeptClusters::Touch(std::int32_t layer, const ClusterRef& cluster) {
  Layer& of_layer = layers_[static_cast<std::size_t>(layer)];
  const auto found = of_layer.by_cluster.find(cluster);
  if (found == of_layer.by_cluster.end()) return;
  of_layer.order.splice(of_layer.order.begin(), of_layer.order, found->second);
}

void KeptClusters::Put(std::int32_t layer, std::shared_ptr<const KeptCluster> cluster,
                       std::int64_t bytes_max) {
  Layer& of_layer = layers_[static_cast<std::size_t>(layer)];
  const ClusterRef ref = cluster->fetched().cluster;
  const auto before = of_layer.by_cluster.find(ref);
  if (before != of_layer.by_cluster.end()) Drop(of_layer, before->second);
  of_layer.bytes += cluster->size_bytes();
  of_layer.order.push_front(std::move(cluster));
  of_layer.by_cluster.emplace(ref, of_layer.order.begin());
  Shrink(layer, bytes_max);
}

void KeptClusters::Shrink(std::int32_t layer, std::int64_t bytes_max) {
  Layer& of_layer = layers_[static_cast<std::size_t>(layer)];
  while (of_layer.bytes > bytes_max) Drop(of_layer, std::prev(of_layer.order.end()));
}

void KeptClusters::Clear() {
  for (Layer& layer : layers_) layer = Layer();
}

void KeptClusters::Drop(Layer& layer, Order::iterator which) {
  layer.bytes -= (*which)->size_bytes();
  layer.by_cluster.erase((*which)->fetched().cluster);
  layer.order.erase(which);
}

}  // namespace cairn::compute
