#include "compute-node/retrieval/clustering/kmeans.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"
#include "common/base/split_mix.h"
#include "compute-node/kernels/centroids.h"

namespace cairn::compute {
namespace {

// Points that one task assigns: a few tasks a head keep all threads busy to the end.
constexpr std::int64_t kTaskPoints = 256;
// Halvings of one set one inside the other. Sets of natural keys need some ten; one from which each
// halving takes a single point would cost the square of its size.
constexpr int kHalvingsMax = 32;

class PointRows {
 public:
  PointRows(std::span<const float> values, std::int64_t dim)
      : values_(values), dim_(static_cast<std::size_t>(dim)) {}
  std::int64_t count() const { return static_cast<std::int64_t>(values_.size() / dim_); }
  std::int64_t dim() const { return static_cast<std::int64_t>(dim_); }
  std::span<const float> values() const { return values_; }
  std::span<const float> Row(std::int64_t index) const {
    return values_.subspan(static_cast<std::size_t>(index) * dim_, dim_);
  }
  std::span<const float> Rows(std::int64_t first, std::int64_t row_count) const {
    return values_.subspan(static_cast<std::size_t>(first) * dim_,
                           static_cast<std::size_t>(row_count) * dim_);
  }

 private:
  std::span<const float> values_;
  std::size_t dim_;
};

float SquaredDistance(std::span<const float> a, std::span<const float> b) {
  // Eight sums, so that additions need not wait for each other.
  float sums[8] = {};
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float difference = a[i] - b[i];
    sums[i % 8] += difference * difference;
  }
  return std::accumulate(std::begin(sums), std::end(sums), 0.0F);
}

// Sides of the points at `indices`.
std::vector<std::uint8_t> SplitPoints(const PointRows& points,
                                      std::span<const std::int64_t> indices) {
  std::vector<std::uint8_t> sides(indices.size());
  SplitInTwo(GatherRows(points.values(), points.dim(), indices), points.dim(), sides);
  return sides;
}

// Brings the indices of the first one's side to the front, each side in its order; how many they
// are.
std::size_t PartitionBySide(std::span<const std::uint8_t> sides, std::span<std::int64_t> indices) {
  std::vector<std::int64_t> others;
  std::size_t count = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (sides[i] == sides[0]) {
      indices[count++] = indices[i];
    } else {
      others.push_back(indices[i]);
    }
  }
  std::copy(others.begin(), others.end(), indices.begin() + static_cast<std::ptrdiff_t>(count));
  return count;
}

// Rearranges `indices` until no piece holds more than `entries_max`, and appends the pieces' sizes.
void HalveUntilCapped(const PointRows& points, std::span<std::int64_t> indices,
                      std::size_t entries_max, int depth, std::vector<std::size_t>& sizes) {
  if (indices.size() <= entries_max) {
    sizes.push_back(indices.size());
    return;
  }
  const std::size_t first = depth < kHalvingsMax
                                ? PartitionBySide(SplitPoints(points, indices), indices)
                                : indices.size() / 2;
  HalveUntilCapped(points, indices.first(first), entries_max, depth + 1, sizes);
  HalveUntilCapped(points, indices.subspan(first), entries_max, depth + 1, sizes);
}

// Rearranges `indices` so that near points are side by side.
void ArrangeByNearness(const PointRows& points, std::span<std::int64_t> indices, int depth) {
  if (indices.size() <= 2 || depth == kHalvingsMax) return;
  const std::size_t first = PartitionBySide(SplitPoints(points, indices), indices);
  ArrangeByNearness(points, indices.first(first), depth + 1);
  ArrangeByNearness(points, indices.subspan(first), depth + 1);
}

// One problem's state between the loops that work on it.
class Problem {
 public:
  Problem(std::span<const float> values, std::int64_t dim, const KMeansOptions& options)
      : points_(values, dim),
        options_(options),
        centroid_count_((points_.count() + options.target_entries - 1) / options.target_entries),
        centroids_(static_cast<std::size_t>(centroid_count_ * dim)),
        panels_(dim, centroid_count_),
        nearest_(static_cast<std::size_t>(points_.count())),
        owners_(nearest_.size(), -1),
        grouped_(nearest_.size()) {
    DrawCentroids();
  }

  std::int64_t block_count() const { return (points_.count() + kTaskPoints - 1) / kTaskPoints; }
  std::int64_t panel_count() const { return panels_.panel_count(); }
  bool is_settled() const { return is_settled_; }

  void AssignBlock(std::int64_t block) {
    const std::int64_t first = block * kTaskPoints;
    const std::int64_t count = std::min(kTaskPoints, points_.count() - first);
    NearestCentroids(points_.Rows(first, count), panels_,
                     std::span(nearest_).subspan(static_cast<std::size_t>(first),
                                                 static_cast<std::size_t>(count)));
  }

  // Takes the assignment over: groups the points by it.
  void Regroup() {
    // No centroid is nearest when squares are beyond the range of floats.
    std::replace(nearest_.begin(), nearest_.end(), -1, 0);
    is_settled_ = nearest_ == owners_;
    if (is_settled_) return;
    owners_ = nearest_;
    starts_.assign(static_cast<std::size_t>(centroid_count_) + 1, 0);
    for (const std::int32_t owner : owners_) {
      ++starts_[static_cast<std::size_t>(owner) + 1];
    }
    FillEmpty();
    std::partial_sum(starts_.begin(), starts_.end(), starts_.begin());
    std::vector<std::int64_t> ends(starts_.begin(), starts_.end() - 1);
    for (std::size_t p = 0; p < owners_.size(); ++p) {
      grouped_[static_cast<std::size_t>(ends[static_cast<std::size_t>(owners_[p])]++)] =
          static_cast<std::int64_t>(p);
    }
  }

  // Moves the centroids of one panel to the means of their points. An empty one stays.
  void MoveCentroids(std::int64_t panel) {
    const std::int64_t first = panel * CentroidPanels::kPanelCentroids;
    const std::int64_t end = std::min(first + CentroidPanels::kPanelCentroids, centroid_count_);
    for (std::int64_t c = first; c < end; ++c) {
      const std::span<const std::int64_t> group = Group(c);
      if (group.empty()) continue;
      MeanOfRows(points_.values(), group, Centroid(c));
      panels_.Set(c, Centroid(c), HalfSquare(Centroid(c)));
    }
  }

  // Caps the clusters and puts them in order.
  PointClusters Finish() {
    std::vector<std::size_t> sizes;
    for (std::int64_t c = 0; c < centroid_count_; ++c) {
      if (Group(c).empty()) continue;
      HalveUntilCapped(points_, Group(c), static_cast<std::size_t>(options_.entries_max), 0, sizes);
    }
    const std::size_t dim = static_cast<std::size_t>(points_.dim());
    std::vector<std::span<const std::int64_t>> pieces;
    std::vector<float> means(sizes.size() * dim);
    for (std::size_t begin = 0; const std::size_t size : sizes) {
      const std::span<std::int64_t> piece = std::span(grouped_).subspan(begin, size);
      MeanOfRows(points_.values(), piece, std::span(means).subspan(pieces.size() * dim, dim));
      pieces.push_back(piece);
      begin += size;
    }
    // By their first points, so that the first piece of a set that is halved has the first one.
    std::vector<std::int64_t> order(pieces.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return pieces[static_cast<std::size_t>(a)][0] < pieces[static_cast<std::size_t>(b)][0];
    });
    ArrangeByNearness(PointRows(means, points_.dim()), order, 0);
    PointClusters clusters;
    clusters.order.reserve(grouped_.size());
    for (const std::int64_t index : order) {
      const std::span<const std::int64_t> piece = pieces[static_cast<std::size_t>(index)];
      clusters.order.insert(clusters.order.end(), piece.begin(), piece.end());
      clusters.starts.push_back(std::ssize(clusters.order));
    }
    return clusters;
  }

 private:
  // The first of a shuffled sequence of all points.
  void DrawCentroids() {
    std::vector<std::int64_t> shuffled(owners_.size());
    std::iota(shuffled.begin(), shuffled.end(), 0);
    SplitMix random(options_.seed);
    for (std::int64_t c = 0; c < centroid_count_; ++c) {
      const auto at = static_cast<std::size_t>(c);
      const std::int64_t drawn = c + random.Below(points_.count() - c);
      std::swap(shuffled[at], shuffled[static_cast<std::size_t>(drawn)]);
      const std::span<const float> point = points_.Row(shuffled[at]);
      std::copy(point.begin(), point.end(), Centroid(c).begin());
      panels_.Set(c, point, HalfSquare(point));
    }
  }

  // Gives each empty cluster the point that lies farthest from its centroid, of those that are not
  // alone; nothing while starts_[c + 1] is the number of points of c.
  void FillEmpty() {
    std::vector<float> distances;
    for (std::int64_t c = 0; c < centroid_count_; ++c) {
      if (starts_[static_cast<std::size_t>(c) + 1] > 0) continue;
      if (distances.empty()) {
        for (std::int64_t p = 0; p < points_.count(); ++p) {
          distances.push_back(
              SquaredDistance(points_.Row(p), Centroid(owners_[static_cast<std::size_t>(p)])));
        }
      }
      std::size_t farthest = distances.size();
      float most = 0.0F;
      for (std::size_t p = 0; p < distances.size(); ++p) {
        if (distances[p] > most && starts_[static_cast<std::size_t>(owners_[p]) + 1] > 1) {
          most = distances[p];
          farthest = p;
        }
      }
      if (farthest == distances.size()) return;
      --starts_[static_cast<std::size_t>(owners_[farthest]) + 1];
      ++starts_[static_cast<std::size_t>(c) + 1];
      owners_[farthest] = static_cast<std::int32_t>(c);
      distances[farthest] = 0.0F;
    }
  }

  std::span<float> Centroid(std::int64_t index) {
    const auto dim = static_cast<std::size_t>(points_.dim());
    return std::span(centroids_).subspan(static_cast<std::size_t>(index) * dim, dim);
  }
  std::span<std::int64_t> Group(std::int64_t centroid) {
    const auto c = static_cast<std::size_t>(centroid);
    return std::span(grouped_).subspan(static_cast<std::size_t>(starts_[c]),
                                       static_cast<std::size_t>(starts_[c + 1] - starts_[c]));
  }

  PointRows points_;
  const KMeansOptions& options_;
  std::int64_t centroid_count_;
  std::vector<float> centroids_;  // (centroid, dim)
  CentroidPanels panels_;         // the same
  std::vector<std::int32_t> nearest_;
  std::vector<std::int32_t> owners_;   // nearest_ of the last round, with empty clusters filled
  std::vector<std::int64_t> starts_;   // of each centroid's points in grouped_, and their number
  std::vector<std::int64_t> grouped_;  // points by owner, ascending
  bool is_settled_ = false;
};

// Calls body(problem, part) for parts [0, count(problem)) of all problems that are not settled, in
// one loop.
template <typename Count, typename Body>
void ForEachPart(ThreadPool& pool, std::vector<Problem>& problems, const Count& count,
                 const Body& body) {
  struct Part {
    Problem* problem;
    std::int64_t index;
  };
  std::vector<Part> parts;
  for (Problem& problem : problems) {
    for (std::int64_t index = 0; !problem.is_settled() && index < count(problem); ++index) {
      parts.push_back({&problem, index});
    }
  }
  pool.ParallelFor(std::ssize(parts), [&](std::int64_t i) {
    const Part& part = parts[static_cast<std::size_t>(i)];
    body(*part.problem, part.index);
  });
}

}  // namespace

std::vector<float> GatherRows(std::span<const float> rows, std::int64_t dim,
                              std::span<const std::int64_t> indices) {
  std::vector<float> gathered;
  gathered.reserve(indices.size() * static_cast<std::size_t>(dim));
  for (const std::int64_t index : indices) {
    const float* row = rows.data() + index * dim;
    gathered.insert(gathered.end(), row, row + dim);
  }
  return gathered;
}

void MeanOfRows(std::span<const float> rows, std::span<const std::int64_t> indices,
                std::span<float> mean) {
  std::fill(mean.begin(), mean.end(), 0.0F);
  for (const std::int64_t index : indices) {
    const float* row = rows.data() + static_cast<std::size_t>(index) * mean.size();
    for (std::size_t i = 0; i < mean.size(); ++i) {
      mean[i] += row[i];
    }
  }
  for (float& value : mean) {
    value /= static_cast<float>(indices.size());
  }
}

std::vector<PointClusters> KMeans(ThreadPool* pool,
                                  std::span<const std::span<const float>> problems,
                                  std::int64_t dim, const KMeansOptions& options) {
  CAIRN_CHECK_GE(dim, 1);
  CAIRN_CHECK_GE(options.target_entries, 1);
  CAIRN_CHECK_GE(options.entries_max, options.target_entries);
  CAIRN_CHECK_GE(options.rounds, 1);
  ThreadPool alone(1);
  if (pool == nullptr) pool = &alone;
  std::vector<Problem> states;
  states.reserve(problems.size());
  for (const std::span<const float> points : problems) {
    CAIRN_CHECK_EQ(std::ssize(points) % dim, 0);
    states.emplace_back(points, dim, options);
  }
  const auto blocks = [](const Problem& problem) { return problem.block_count(); };
  const auto panels = [](const Problem& problem) { return problem.panel_count(); };
  const auto one = [](const Problem& /*problem*/) { return std::int64_t{1}; };
  for (int round = 0; round < options.rounds; ++round) {
    if (round > 0) {
      ForEachPart(*pool, states, panels,
                  [](Problem& problem, std::int64_t panel) { problem.MoveCentroids(panel); });
    }
    ForEachPart(*pool, states, blocks,
                [](Problem& problem, std::int64_t block) { problem.AssignBlock(block); });
    ForEachPart(*pool, states, one,
                [](Problem& problem, std::int64_t /*part*/) { problem.Regroup(); });
  }
  std::vector<PointClusters> clusters(states.size());
  pool->ParallelFor(std::ssize(states), [&](std::int64_t i) {
    clusters[static_cast<std::size_t>(i)] = states[static_cast<std::size_t>(i)].Finish();
  });
  return clusters;
}

PointClusters KMeans(std::span<const float> points, std::int64_t dim,
                     const KMeansOptions& options) {
  return KMeans(nullptr, {&points, 1}, dim, options).front();
}

}  // namespace cairn::compute
