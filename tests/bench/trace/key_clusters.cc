#include "tests/bench/trace/key_clusters.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "common/base/check.h"

namespace cairn::bench {
namespace {

constexpr int kPromptRounds = 4;
constexpr int kSplitRounds = 8;

float Product(std::span<const float> a, std::span<const float> b) {
  // Four sums, so that additions need not wait for each other.
  float sums[4] = {};
  std::size_t i = 0;
  for (; i + 4 <= a.size(); i += 4) {
    for (std::size_t j = 0; j < 4; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < a.size(); ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The larger, the nearer a key is.
struct Centre {
  std::vector<float> at;
  float half_square = 0;
  explicit Centre(std::span<const float> row) : at(row.begin(), row.end()) {
    half_square = Product(at, at) / 2;
  }
  float Nearness(std::span<const float> key) const { return Product(at, key) - half_square; }
};

std::size_t Nearest(const std::vector<Centre>& centres, std::span<const float> key) {
  std::size_t best = 0;
  float most = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < centres.size(); ++i) {
    const float nearness = centres[i].Nearness(key);
    if (nearness <= most) continue;
    most = nearness;
    best = i;
  }
  return best;
}

void AddRow(std::span<const float> row, std::vector<float>& sum) {
  for (std::size_t i = 0; i < row.size(); ++i) sum[i] += row[i];
}

void Divide(const std::vector<float>& sum, std::int64_t count, std::vector<float>& out) {
  out.resize(sum.size());
  for (std::size_t i = 0; i < sum.size(); ++i) out[i] = sum[i] / static_cast<float>(count);
}

}  // namespace

absl::StatusOr<Order> ParseOrder(std::string_view text) {
  if (text == "cluster") return Order::kCluster;
  if (text == "sequence") return Order::kSequence;
  return InvalidArgument("order \"{}\": expected cluster or sequence", text);
}

KeyClusters::KeyClusters(const KeyRows& keys, Order order, std::int64_t mean_count,
                         std::int64_t cap_count)
    : keys_(keys), order_(order), mean_count_(mean_count), cap_count_(cap_count) {
  CAIRN_CHECK_GE(mean_count, 1);
  CAIRN_CHECK_GE(cap_count, mean_count);
}

void KeyClusters::SetCentroid(Cluster& cluster) {
  Divide(cluster.sum, std::ssize(cluster.positions), cluster.centroid);
  cluster.half_square = Product(cluster.centroid, cluster.centroid) / 2;
}

std::int64_t KeyClusters::Make(const std::vector<std::int64_t>& positions) {
  CAIRN_CHECK(!positions.empty());
  Cluster& cluster = clusters_[next_id_];
  cluster.positions = positions;
  cluster.sum.resize(static_cast<std::size_t>(keys_.dim));
  for (const std::int64_t position : positions) AddRow(keys_.At(position), cluster.sum);
  SetCentroid(cluster);
  entry_count_ += std::ssize(positions);
  return next_id_++;
}

std::vector<std::vector<std::int64_t>> KeyClusters::KMeans(
    const std::vector<std::int64_t>& positions, std::int64_t count, int rounds) const {
  std::vector<Centre> centres;
  for (std::int64_t i = 0; i < count; ++i) {
    centres.emplace_back(
        keys_.At(positions[static_cast<std::size_t>(i * std::ssize(positions) / count)]));
  }
  std::vector<std::vector<std::int64_t>> groups;
  for (int round = 0; round < rounds; ++round) {
    groups.assign(centres.size(), {});
    for (const std::int64_t position : positions) {
      groups[Nearest(centres, keys_.At(position))].push_back(position);
    }
    std::erase_if(groups, [](const auto& group) { return group.empty(); });
    centres.clear();
    for (const std::vector<std::int64_t>& group : groups) {
      std::vector<float> mean(static_cast<std::size_t>(keys_.dim));
      for (const std::int64_t position : group) AddRow(keys_.At(position), mean);
      Divide(std::vector<float>(mean), std::ssize(group), mean);
      centres.emplace_back(mean);
    }
  }
  return groups;
}

void KeyClusters::AddCapped(const std::vector<std::int64_t>& positions,
                            std::vector<std::int64_t>& ids) {
  if (std::ssize(positions) <= cap_count_) {
    ids.push_back(Make(positions));
    return;
  }
  std::vector<std::vector<std::int64_t>> halves = KMeans(positions, 2, kSplitRounds);
  if (halves.size() < 2) {  // keys that are all alike
    const auto middle = positions.begin() + std::ssize(positions) / 2;
    halves = {{positions.begin(), middle}, {middle, positions.end()}};
  }
  for (const std::vector<std::int64_t>& half : halves) AddCapped(half, ids);
}

std::vector<std::int64_t> KeyClusters::AddPrompt(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> ids;
  if (count == 0) return ids;
  std::vector<std::int64_t> positions(static_cast<std::size_t>(count));
  std::iota(positions.begin(), positions.end(), first);
  if (order_ == Order::kSequence) {
    for (const std::int64_t position : positions) {
      const std::int64_t id = Add(position);
      if (ids.empty() || ids.back() != id) ids.push_back(id);
    }
    return ids;
  }
  const std::int64_t groups = std::max<std::int64_t>(1, count / mean_count_);
  for (const auto& group : KMeans(positions, groups, kPromptRounds)) AddCapped(group, ids);
  return ids;
}

std::int64_t KeyClusters::Add(std::int64_t position) {
  const std::span<const float> key = keys_.At(position);
  std::map<std::int64_t, Cluster>::iterator target = clusters_.end();
  if (order_ == Order::kSequence) {
    if (!clusters_.empty()) target = std::prev(clusters_.end());
    if (target != clusters_.end() && std::ssize(target->second.positions) >= mean_count_) {
      target = clusters_.end();
    }
  } else {
    float most = -std::numeric_limits<float>::infinity();
    for (auto cluster = clusters_.begin(); cluster != clusters_.end(); ++cluster) {
      const float nearness = Product(cluster->second.centroid, key) - cluster->second.half_square;
      if (nearness <= most) continue;
      most = nearness;
      target = cluster;
    }
  }
  if (target == clusters_.end()) return Make({position});
  Cluster& cluster = target->second;
  CAIRN_CHECK_LT(cluster.positions.back(), position);
  cluster.positions.push_back(position);
  AddRow(key, cluster.sum);
  SetCentroid(cluster);
  ++entry_count_;
  return target->first;
}

std::optional<KeyClusters::Split> KeyClusters::SplitIfOver(std::int64_t id) {
  const std::vector<std::int64_t> positions = clusters_.at(id).positions;
  if (order_ == Order::kSequence || std::ssize(positions) <= cap_count_) return std::nullopt;
  std::vector<std::vector<std::int64_t>> halves = KMeans(positions, 2, kSplitRounds);
  if (halves.size() < 2) {
    const auto middle = positions.begin() + std::ssize(positions) / 2;
    halves = {{positions.begin(), middle}, {middle, positions.end()}};
  }
  entry_count_ -= std::ssize(positions);
  clusters_.erase(id);
  Split split{id, {}};
  split.child_ids[0] = Make(halves[0]);
  split.child_ids[1] = Make(halves[1]);
  return split;
}

std::vector<std::int64_t> KeyClusters::Select(std::span<const float> queries,
                                              std::int64_t entry_count) const {
  const auto dim = static_cast<std::size_t>(keys_.dim);
  std::vector<std::pair<float, std::int64_t>> scores;
  scores.reserve(clusters_.size());
  for (const auto& [id, cluster] : clusters_) {
    float most = -std::numeric_limits<float>::infinity();
    for (std::size_t row = 0; row < queries.size(); row += dim) {
      most = std::max(most, Product(queries.subspan(row, dim), cluster.centroid));
    }
    scores.emplace_back(-most, id);
  }
  std::sort(scores.begin(), scores.end());
  std::vector<std::int64_t> ids;
  std::int64_t held = 0;
  for (const auto& [score, id] : scores) {
    if (held >= entry_count) break;
    held += std::ssize(clusters_.at(id).positions);
    ids.push_back(id);
  }
  return ids;
}

}  // namespace cairn::bench
