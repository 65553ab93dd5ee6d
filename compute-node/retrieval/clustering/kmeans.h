// K-means (Lloyd's algorithm) with a cap on what a cluster holds, for many independent problems at
// once: the KV heads of a layer.
//
// Initial centroids are distinct points, drawn with splitmix64 from the seed. After each round an
// empty cluster gets the point that lies farthest from its centroid, unless that is none away; one
// that stays empty is no cluster. At the end clusters above the cap are halved until none is.
//
// Clusters are ordered by halving their centroids again and again, so that clusters that lie side
// by side are near each other: what a query selects together, and a store that writes clusters in
// their order can read together. The part with the first point comes first.
//
// Determinism: a problem's result depends on its points, the seed and the other options alone: not
//              on the thread count nor on the other problems.
// Threading:   KMeans uses the pool from the calling thread; SplitInTwo may be called by any.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compute-node/kernels/thread_pool.h"

namespace cairn::compute {

struct KMeansOptions {
  // Points of a cluster on average before clusters are capped: ceil(points / target) clusters.
  std::int64_t target_entries = 8;
  // The most that a cluster holds, at least target_entries.
  std::int64_t entries_max = 16;
  // Each assigns all points and moves the centroids; fewer if nothing changes any more.
  int rounds = 10;
  std::uint64_t seed = 0;
};

// The clusters of one problem, none of them empty. Each point is in one.
struct PointClusters {
  // Indices of points, cluster after cluster, ascending within one.
  std::vector<std::int64_t> order;
  // Where each cluster begins in `order`, and the number of points.
  std::vector<std::int64_t> starts = {0};

  std::int64_t cluster_count() const { return std::ssize(starts) - 1; }
  std::span<const std::int64_t> cluster(std::int64_t index) const {
    const auto begin = starts[static_cast<std::size_t>(index)];
    return std::span(order).subspan(
        static_cast<std::size_t>(begin),
        static_cast<std::size_t>(starts[static_cast<std::size_t>(index) + 1] - begin));
  }
};

// One result for each problem: rows of `dim` finite floats. Points whose squared distances are
// beyond the range of floats still come into clusters, of no particular kind.
// `pool`: null for the calling thread alone.
std::vector<PointClusters> KMeans(ThreadPool* pool,
                                  std::span<const std::span<const float>> problems,
                                  std::int64_t dim, const KMeansOptions& options);
// Of one problem, on the calling thread.
PointClusters KMeans(std::span<const float> points, std::int64_t dim, const KMeansOptions& options);

// The rows of `dim` at `indices`, one behind the other.
std::vector<float> GatherRows(std::span<const float> rows, std::int64_t dim,
                              std::span<const std::int64_t> indices);

// The mean of the rows at `indices`, which are as long as `mean`.
void MeanOfRows(std::span<const float> rows, std::span<const std::int64_t> indices,
                std::span<float> mean);

// 2-means of rows: the side, 0 or 1, of each. From two rows on neither side is empty; rows that are
// all equal are halved in their order. Starts from the two sides of the mean along the principal
// axis, so that nothing is random.
void SplitInTwo(std::span<const float> rows, std::int64_t dim, std::span<std::uint8_t> sides);

}  // namespace cairn::compute
