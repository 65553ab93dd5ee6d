#include "compute-node/eval/cluster_shift.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "common/base/check.h"
#include "compute-node/retrieval/baselines/local_policy.h"
#include "compute-node/retrieval/clustering/cluster_index.h"
#include "compute-node/retrieval/clustering/kmeans.h"

namespace cairn::eval {
namespace {

constexpr std::int64_t kPublishedLocalEntries = compute::kLocalBatchEntries / 8;

double SquaredDistance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return sum;
}

// Of rows of `dim`, at least one: the nearest to `key`.
std::size_t NearestRow(std::span<const float> rows, std::span<const float> key) {
  std::size_t nearest = 0;
  float least = std::numeric_limits<float>::infinity();
  for (std::size_t row = 0; row * key.size() < rows.size(); ++row) {
    const float* const values = rows.data() + row * key.size();
    float sum = 0;
    for (std::size_t i = 0; i < key.size(); ++i) {
      sum += (values[i] - key[i]) * (values[i] - key[i]);
    }
    if (sum < least) {
      least = sum;
      nearest = row;
    }
  }
  return nearest;
}

}  // namespace

std::vector<float> ClusterShift::CentroidOf(std::span<const float> keys,
                                            std::span<const std::int64_t> positions) const {
  return compute::MomentsOf(compute::GatherRows(keys, dim_, positions), dim_).centroid;
}

void ClusterShift::AddCluster(std::span<const float> keys, std::span<const std::int64_t> positions,
                              PartitionMoments& moments) const {
  const std::vector<float> centroid = CentroidOf(keys, positions);
  ++moments.cluster_count;
  for (const std::int64_t position : positions) {
    const double square = SquaredDistance(Row(keys, position), centroid);
    ++moments.entry_count;
    moments.square_sum += square;
    if (position < new_first_) continue;
    ++moments.new_count;
    moments.new_square_sum += square;
  }
}

void ClusterShift::AddKMeans(std::span<const float> keys, std::int64_t first, std::int64_t end,
                             std::int64_t target_entries, PartitionMoments& moments) const {
  const std::span<const float> problem = keys.subspan(
      static_cast<std::size_t>(first * dim_), static_cast<std::size_t>((end - first) * dim_));
  const compute::PointClusters found =
      compute::KMeans(problem, dim_,
                      {.target_entries = target_entries,
                       .entries_max = std::max(target_entries, end - first),
                       .seed = seed_});
  for (std::int64_t i = 0; i < found.cluster_count(); ++i) {
    std::vector<std::int64_t> positions;
    for (const std::int64_t member : found.cluster(i)) positions.push_back(first + member);
    AddCluster(keys, positions, moments);
  }
}

void ClusterShift::Start(std::span<const float> keys,
                         const std::vector<std::vector<std::int64_t>>& clusters) {
  for (const std::vector<std::int64_t>& positions : clusters) {
    AddCluster(keys, positions, static_);
    const std::vector<float> centroid = CentroidOf(keys, positions);
    fixed_.insert(fixed_.end(), centroid.begin(), centroid.end());
  }
  moving_ = fixed_;
  greedy_ = clusters;
}

void ClusterShift::GrowStatic(std::span<const float> keys, std::int64_t end) {
  static_.new_count = 0;
  static_.new_square_sum = 0;
  for (std::int64_t position = new_first_; position < end; ++position) {
    const std::span<const float> key = Row(keys, position);
    const std::size_t at = NearestRow(fixed_, key) * key.size();
    static_.new_square_sum += SquaredDistance(key, std::span(fixed_).subspan(at, key.size()));
    ++static_.new_count;
  }
  static_.entry_count += static_.new_count;
  static_.square_sum += static_.new_square_sum;
}

PartitionMoments ClusterShift::GrowGreedy(std::span<const float> keys, std::int64_t end) {
  for (std::int64_t position = new_first_; position < end; ++position) {
    const std::span<const float> key = Row(keys, position);
    const std::size_t nearest = NearestRow(moving_, key);
    greedy_[nearest].push_back(position);
    const float share = 1.0F / static_cast<float>(greedy_[nearest].size());
    const std::span<float> centroid = std::span(moving_).subspan(nearest * key.size(), key.size());
    for (std::size_t i = 0; i < key.size(); ++i) centroid[i] += (key[i] - centroid[i]) * share;
  }
  PartitionMoments moments;
  for (const std::vector<std::int64_t>& positions : greedy_) AddCluster(keys, positions, moments);
  return moments;
}

void ClusterShift::GrowLocal(std::span<const float> keys, std::int64_t end, Local& local) const {
  local.moments.new_count = 0;
  local.moments.new_square_sum = 0;
  for (; local.until + compute::kLocalBatchEntries <= end;
       local.until += compute::kLocalBatchEntries) {
    AddKMeans(keys, local.until, local.until + compute::kLocalBatchEntries, local.target_entries,
              local.moments);
  }
}

ShiftSample ClusterShift::Sample(std::span<const float> keys, std::int64_t first, std::int64_t end,
                                 const std::vector<std::vector<std::int64_t>>& adaptive) {
  CAIRN_CHECK(!adaptive.empty());
  CAIRN_CHECK_LE(end * dim_, std::ssize(keys));
  ShiftSample sample;
  const auto moments_of = [&](Partition partition) -> PartitionMoments& {
    return sample.partitions[static_cast<std::size_t>(partition)];
  };
  const bool starts = greedy_.empty();
  if (starts) {
    new_first_ = first;
    Start(keys, adaptive);
    locals_[0] = {.target_entries = kPublishedLocalEntries, .until = end};
    locals_[1] = {.target_entries = cluster_entries_, .until = end};
    for (Local& local : locals_) {
      AddKMeans(keys, first, end, local.target_entries, local.moments);
    }
    moments_of(Partition::kGreedy) = static_;
  } else {
    GrowStatic(keys, end);
    moments_of(Partition::kGreedy) = GrowGreedy(keys, end);
    for (Local& local : locals_) GrowLocal(keys, end, local);
  }
  for (const std::vector<std::int64_t>& positions : adaptive) {
    AddCluster(keys, positions, moments_of(Partition::kAdaptive));
  }
  moments_of(Partition::kStatic) = static_;
  moments_of(Partition::kLocal) = locals_[0].moments;
  moments_of(Partition::kLocalSmall) = locals_[1].moments;
  const auto made_anew = [&](Partition partition, std::int64_t cluster_count) {
    AddKMeans(keys, first, end, std::max<std::int64_t>(1, (end - first) / cluster_count),
              moments_of(partition));
  };
  made_anew(Partition::kGlobalFew, std::ssize(greedy_));
  made_anew(Partition::kGlobal, std::ssize(adaptive));
  PartitionMoments all;
  std::vector<std::int64_t> everything(static_cast<std::size_t>(end - first));
  std::iota(everything.begin(), everything.end(), first);
  AddCluster(keys, everything, all);
  sample.total_variance = all.variance();
  new_first_ = end;
  return sample;
}

}  // namespace cairn::eval
