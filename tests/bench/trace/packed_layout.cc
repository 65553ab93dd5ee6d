#include "tests/bench/trace/packed_layout.h"

#include "common/base/check.h"

namespace cairn::bench {

std::pair<std::size_t, std::int64_t> PackedLayout::Find(std::int64_t id) const {
  std::int64_t behind = 0;
  for (std::size_t i = clusters_.size(); i > 0; --i) {
    if (clusters_[i - 1].first == id) return {i - 1, behind};
    behind += clusters_[i - 1].second;
  }
  return {clusters_.size(), 0};
}

void PackedLayout::Append(std::int64_t id, std::int64_t count, bool together) {
  const auto [index, behind] = Find(id);
  if (index == clusters_.size()) {
    clusters_.emplace_back(id, count);
    return;
  }
  clusters_[index].second += count;
  if (!together) moved_ += behind;
}

void PackedLayout::Split(std::int64_t parent, std::int64_t stays, std::int64_t stays_count,
                         std::int64_t moves, std::int64_t moves_count) {
  const auto [index, behind] = Find(parent);
  CAIRN_CHECK_LT(index, clusters_.size());
  clusters_[index] = {stays, stays_count};
  clusters_.emplace_back(moves, moves_count);
  moved_ += behind + moves_count;
}

}  // namespace cairn::bench
