#include "kv-node/engine/fetch/hot_clusters.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace cairn::kv {
namespace {

// Far from where a double ends; then all of a layer's heats are divided by it.
constexpr double kUnitMax = 1e100;

}  // namespace

HotClusters::HotClusters(std::int32_t layer_count)
    : layer_count_max_(static_cast<std::size_t>(std::clamp(
          kHotClustersMax / layer_count, kHotClustersMinOfLayer, kHotClustersMaxOfLayer))),
      layers_(static_cast<std::size_t>(layer_count)) {}

void HotClusters::Note(std::int32_t layer, std::span<const ClusterRef> clusters) {
  Layer& hot = layers_[static_cast<std::size_t>(layer)];
  hot.unit *= std::exp2(1 / kHeatHalfLife);
  hot.total += hot.unit;
  for (const ClusterRef& cluster : clusters) hot.heat[cluster] += hot.unit;
  if (hot.heat.size() > layer_count_max_) Trim(hot);
  if (hot.unit < kUnitMax) return;
  for (auto& [cluster, heat] : hot.heat) heat /= hot.unit;
  hot.total /= hot.unit;
  hot.unit = 1;
}

void HotClusters::Trim(Layer& layer) const {
  std::vector<double> heats;
  heats.reserve(layer.heat.size());
  for (const auto& [cluster, heat] : layer.heat) heats.push_back(heat);
  const auto last = heats.begin() + static_cast<std::ptrdiff_t>(layer_count_max_) - 1;
  std::nth_element(heats.begin(), last, heats.end(), std::greater<>());
  const double coldest = *last;
  // Of those that are as hot as the coldest that stays, some must go too.
  for (auto it = layer.heat.begin(); it != layer.heat.end();) {
    it = it->second < coldest ? layer.heat.erase(it) : std::next(it);
  }
  for (auto it = layer.heat.begin();
       layer.heat.size() > layer_count_max_ && it != layer.heat.end();) {
    it = it->second == coldest ? layer.heat.erase(it) : std::next(it);
  }
}

std::vector<ClusterRef> HotClusters::Of(std::int32_t layer, double share_min) const {
  const Layer& hot = layers_[static_cast<std::size_t>(layer)];
  std::vector<std::pair<double, ClusterRef>> by_heat;
  by_heat.reserve(hot.heat.size());
  const double least = share_min * hot.total;
  for (const auto& [cluster, heat] : hot.heat) {
    if (heat >= least) by_heat.emplace_back(heat, cluster);
  }
  std::stable_sort(by_heat.begin(), by_heat.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<ClusterRef> out;
  out.reserve(by_heat.size());
  for (const auto& [heat, cluster] : by_heat) out.push_back(cluster);
  return out;
}

std::int64_t HotClusters::memory_bytes() const {
  // A tree's nodes are half full at least.
  constexpr std::size_t kEntryBytes = 2 * sizeof(std::pair<ClusterRef, double>);
  std::size_t count = 0;
  for (const Layer& layer : layers_) count += layer.heat.size();
  return static_cast<std::int64_t>(count * kEntryBytes + layers_.size() * sizeof(Layer));
}

std::int64_t StageBudget::OnHint(std::chrono::steady_clock::time_point now, std::int64_t read_bytes,
                                 std::int64_t bytes_per_second) {
  const auto passed = now - last_hint_;
  const auto read = static_cast<double>(read_bytes - last_read_bytes_);
  const bool counts = has_hint_ && passed <= layer_time_max_;
  has_hint_ = true;
  last_hint_ = now;
  last_read_bytes_ = read_bytes;
  if (counts) {
    const double seconds = std::chrono::duration<double>(passed).count();
    const double weight = has_time_ ? kStageFollow : 1;
    has_time_ = true;
    layer_seconds_ += weight * (seconds - layer_seconds_);
    layer_read_bytes_ += weight * (read - layer_read_bytes_);
  }
  if (!has_time_) return 0;
  const double idle = layer_seconds_ * static_cast<double>(bytes_per_second) - layer_read_bytes_;
  return static_cast<std::int64_t>(std::clamp(idle, 0.0, 1e15));
}

}  // namespace cairn::kv
