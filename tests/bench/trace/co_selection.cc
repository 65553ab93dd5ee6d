#include "tests/bench/trace/co_selection.h"

#include <algorithm>
#include <utility>

namespace cairn::bench {

void CoSelection::Count(std::span<const std::int64_t> ids) {
  for (const std::int64_t id : ids) {
    for (const std::int64_t with : ids) {
      if (with != id) ++counts_[id][with];
    }
  }
}

std::vector<ClusterNeighbours> CoSelection::StrongestNeighbours(std::int32_t head) const {
  std::int64_t most = 0;
  for (const auto& [id, row] : counts_) {
    for (const auto& [with, count] : row) most = std::max(most, count);
  }
  std::vector<ClusterNeighbours> out;
  for (const auto& [id, row] : counts_) {
    std::vector<std::pair<std::int64_t, std::int64_t>> order;  // minus the count, id
    order.reserve(row.size());
    for (const auto& [with, count] : row) order.emplace_back(-count, with);
    std::sort(order.begin(), order.end());
    if (std::ssize(order) > kNeighbourCountMax) order.resize(kNeighbourCountMax);
    ClusterNeighbours neighbours;
    neighbours.cluster = {head, ClusterId(id)};
    for (const auto& [minus_count, with] : order) {
      neighbours.neighbours.push_back(
          {ClusterId(with), static_cast<float>(-minus_count) / static_cast<float>(most)});
    }
    out.push_back(std::move(neighbours));
  }
  return out;
}

}  // namespace cairn::bench
