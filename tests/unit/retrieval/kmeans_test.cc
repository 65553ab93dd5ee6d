#include "compute-node/retrieval/clustering/kmeans.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/rng.h"
#include "tests/tools/seed.h"

namespace cairn::compute {
namespace {

struct Points {
  std::int64_t dim = 0;
  std::vector<float> values;
  std::int64_t count() const { return std::ssize(values) / dim; }
  float At(std::int64_t point, std::int64_t i) const {
    return values[static_cast<std::size_t>(point * dim + i)];
  }
};

Points NormalPoints(test::Rng& rng, std::int64_t count, std::int64_t dim) {
  Points points{dim, std::vector<float>(static_cast<std::size_t>(count * dim))};
  for (float& value : points.values) {
    value = rng.Normal();
  }
  return points;
}

// Point i is near centre i % centre_count; centres are `distance` from zero in each dimension.
Points BlobPoints(test::Rng& rng, std::int64_t count, std::int64_t dim, std::int64_t centre_count,
                  float distance) {
  const Points centres = NormalPoints(rng, centre_count, dim);
  Points points = NormalPoints(rng, count, dim);
  for (std::int64_t p = 0; p < count; ++p) {
    for (std::int64_t i = 0; i < dim; ++i) {
      points.values[static_cast<std::size_t>(p * dim + i)] +=
          distance * centres.At(p % centre_count, i);
    }
  }
  return points;
}

PointClusters Cluster(const Points& points, const KMeansOptions& options, int thread_count = 2) {
  ThreadPool pool(thread_count);
  const std::span<const float> problem = points.values;
  return KMeans(&pool, {&problem, 1}, points.dim, options)[0];
}

void ExpectPartition(const PointClusters& clusters, std::int64_t count,
                     const KMeansOptions& options) {
  ASSERT_FALSE(clusters.starts.empty());
  EXPECT_EQ(clusters.starts.front(), 0);
  EXPECT_EQ(clusters.starts.back(), count);
  for (std::int64_t c = 0; c < clusters.cluster_count(); ++c) {
    const std::span<const std::int64_t> cluster = clusters.cluster(c);
    EXPECT_GE(std::ssize(cluster), 1);
    EXPECT_LE(std::ssize(cluster), options.entries_max);
    EXPECT_TRUE(std::is_sorted(cluster.begin(), cluster.end()));
  }
  std::vector<std::int64_t> sorted = clusters.order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(sorted, all);
}

// Squared distances from the means, summed.
double SquaresWithin(const Points& points, const std::vector<std::vector<std::int64_t>>& groups) {
  double sum = 0.0;
  for (const std::vector<std::int64_t>& group : groups) {
    for (std::int64_t i = 0; i < points.dim; ++i) {
      double mean = 0.0;
      for (const std::int64_t p : group) {
        mean += static_cast<double>(points.At(p, i)) / static_cast<double>(group.size());
      }
      for (const std::int64_t p : group) {
        const double difference = static_cast<double>(points.At(p, i)) - mean;
        sum += difference * difference;
      }
    }
  }
  return sum;
}

std::vector<std::vector<std::int64_t>> Groups(const PointClusters& clusters) {
  std::vector<std::vector<std::int64_t>> groups;
  for (std::int64_t c = 0; c < clusters.cluster_count(); ++c) {
    const std::span<const std::int64_t> cluster = clusters.cluster(c);
    groups.emplace_back(cluster.begin(), cluster.end());
  }
  return groups;
}

// Lloyd's algorithm in double precision; empty groups stay empty.
std::vector<std::vector<std::int64_t>> ReferenceKMeans(test::Rng& rng, const Points& points,
                                                       std::int64_t group_count, int rounds) {
  const auto dim = static_cast<std::size_t>(points.dim);
  std::vector<std::vector<double>> means;
  while (std::ssize(means) < group_count) {
    const auto at = static_cast<std::ptrdiff_t>(
        rng.Below(static_cast<std::uint64_t>(points.count())) * static_cast<std::uint64_t>(dim));
    means.emplace_back(points.values.begin() + at,
                       points.values.begin() + at + static_cast<std::ptrdiff_t>(dim));
  }
  std::vector<std::vector<std::int64_t>> groups;
  for (int round = 0; round < rounds; ++round) {
    groups.assign(means.size(), {});
    for (std::int64_t p = 0; p < points.count(); ++p) {
      std::size_t best = 0;
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t m = 0; m < means.size(); ++m) {
        double distance = 0.0;
        for (std::size_t i = 0; i < dim; ++i) {
          const double d =
              static_cast<double>(points.At(p, static_cast<std::int64_t>(i))) - means[m][i];
          distance += d * d;
        }
        if (distance < least) {
          least = distance;
          best = m;
        }
      }
      groups[best].push_back(p);
    }
    for (std::size_t m = 0; m < means.size(); ++m) {
      for (std::size_t i = 0; !groups[m].empty() && i < dim; ++i) {
        means[m][i] = 0.0;
        for (const std::int64_t p : groups[m]) {
          means[m][i] += static_cast<double>(points.At(p, static_cast<std::int64_t>(i))) /
                         static_cast<double>(groups[m].size());
        }
      }
    }
  }
  return groups;
}

TEST(KMeansTest, EveryPointIsInOneClusterAndNoneIsAboveTheCap) {
  test::Rng rng(test::TestSeed());
  for (int repeat = 0; repeat < 60; ++repeat) {
    const auto dim = static_cast<std::int64_t>(1 + rng.Below(130));
    const auto count = static_cast<std::int64_t>(rng.Below(700));
    Points points = BlobPoints(rng, count, dim, static_cast<std::int64_t>(1 + rng.Below(20)),
                               static_cast<float>(rng.Below(5)));
    // Many equal points: of few values.
    if (rng.Below(3) == 0) {
      for (float& value : points.values) {
        value = std::round(value / 4);
      }
    }
    KMeansOptions options;
    options.target_entries = static_cast<std::int64_t>(1 + rng.Below(12));
    options.entries_max = options.target_entries + static_cast<std::int64_t>(rng.Below(20));
    options.rounds = static_cast<int>(1 + rng.Below(12));
    options.seed = rng.Next();
    SCOPED_TRACE(testing::Message() << count << " points of " << dim << ", clusters of "
                                    << options.target_entries << " to " << options.entries_max);
    ExpectPartition(Cluster(points, options), count, options);
  }
}

TEST(KMeansTest, ThreadsAndOtherProblemsChangeNothing) {
  test::Rng rng(test::TestSeed());
  constexpr std::int64_t kDim = 24;
  std::vector<Points> heads;
  for (const std::int64_t count : {900, 0, 1, 257, 1500}) {
    heads.push_back(BlobPoints(rng, count, kDim, 30, 1.0F));
  }
  std::vector<std::span<const float>> problems;
  problems.reserve(heads.size());
  for (const Points& head : heads) {
    problems.emplace_back(head.values);
  }
  const KMeansOptions options{.seed = rng.Next()};
  for (int thread_count = 1; thread_count <= 4; ++thread_count) {
    ThreadPool pool(thread_count);
    const std::vector<PointClusters> together = KMeans(&pool, problems, kDim, options);
    ASSERT_EQ(together.size(), heads.size());
    for (std::size_t h = 0; h < heads.size(); ++h) {
      const PointClusters alone = Cluster(heads[h], options, 1);
      EXPECT_EQ(together[h].order, alone.order);
      EXPECT_EQ(together[h].starts, alone.starts);
    }
  }
}

// A centroid that has not come to rest may still lie between blobs.
TEST(KMeansTest, SeparateBlobsAreHardlyEverMixed) {
  test::Rng rng(test::TestSeed());
  constexpr std::int64_t kBlobs = 40;
  constexpr std::int64_t kBlobPoints = 10;
  std::int64_t cluster_count = 0;
  std::int64_t mixed_count = 0;
  for (int repeat = 0; repeat < 10; ++repeat) {
    const Points points = BlobPoints(rng, kBlobs * kBlobPoints, 32, kBlobs, 20.0F);
    const KMeansOptions options{
        .target_entries = kBlobPoints, .entries_max = kBlobPoints, .seed = rng.Next()};
    const PointClusters clusters = Cluster(points, options);
    cluster_count += clusters.cluster_count();
    for (std::int64_t c = 0; c < clusters.cluster_count(); ++c) {
      const std::span<const std::int64_t> cluster = clusters.cluster(c);
      const bool is_mixed = std::any_of(cluster.begin(), cluster.end(), [&](std::int64_t point) {
        return point % kBlobs != cluster[0] % kBlobs;
      });
      mixed_count += is_mixed ? 1 : 0;
    }
  }
  EXPECT_GE(cluster_count, 10 * kBlobs);
  EXPECT_LE(mixed_count, cluster_count / 100);
}

TEST(KMeansTest, NearClustersLieSideBySide) {
  test::Rng rng(test::TestSeed());
  constexpr std::int64_t kRegions = 8;
  const Points points = BlobPoints(rng, 1600, 64, kRegions, 20.0F);
  const PointClusters clusters = Cluster(points, {.seed = rng.Next()});
  EXPECT_EQ(clusters.cluster(0)[0], 0);
  std::int64_t changes = 0;
  for (std::int64_t c = 1; c < clusters.cluster_count(); ++c) {
    changes += clusters.cluster(c)[0] % kRegions != clusters.cluster(c - 1)[0] % kRegions ? 1 : 0;
  }
  EXPECT_EQ(changes, kRegions - 1);
}

// All but 16 points are equal: most first centroids are drawn among those, and one of them takes
// them all.
TEST(KMeansTest, EmptyClustersGetPointsThatLieFarFromTheirCentroid) {
  test::Rng rng(test::TestSeed());
  for (int repeat = 0; repeat < 20; ++repeat) {
    Points points = NormalPoints(rng, 80, 16);
    std::fill(points.values.begin() + 256, points.values.end(), 0.0F);
    const PointClusters clusters =
        Cluster(points, {.target_entries = 8, .entries_max = 80, .seed = rng.Next()});
    EXPECT_EQ(clusters.cluster_count(), 10);
  }
}

TEST(KMeansTest, EqualPointsAreHalvedUntilTheyFit) {
  for (const std::int64_t count : {1, 8, 9, 16, 17, 500}) {
    const Points points{8, std::vector<float>(static_cast<std::size_t>(count * 8), 1.25F)};
    const KMeansOptions options;
    const PointClusters clusters = Cluster(points, options);
    ExpectPartition(clusters, count, options);
    // No cluster is made for points that lie on a centroid.
    EXPECT_LE(clusters.cluster_count(), 2 * ((count + 15) / 16));
  }
}

TEST(KMeansTest, FewPointsAreOneCluster) {
  test::Rng rng(test::TestSeed());
  for (std::int64_t count = 1; count <= 8; ++count) {
    const PointClusters clusters = Cluster(NormalPoints(rng, count, 16), {});
    EXPECT_EQ(clusters.cluster_count(), 1);
    EXPECT_EQ(clusters.starts.back(), count);
  }
  EXPECT_EQ(Cluster(NormalPoints(rng, 0, 16), {}).cluster_count(), 0);
}

// Each is as far from zero as all before it together: a halving parts few of them.
TEST(KMeansTest, PointsThatHalveBadlyAreCapped) {
  constexpr std::int64_t kCount = 80;
  Points points{1, {}};
  for (std::int64_t p = 0; p < kCount; ++p) {
    points.values.push_back(std::pow(1.7F, static_cast<float>(p)));
  }
  KMeansOptions options{.target_entries = kCount, .entries_max = kCount};
  EXPECT_EQ(Cluster(points, options).cluster_count(), 1);
  options = {.target_entries = 1, .entries_max = 1};
  EXPECT_EQ(Cluster(points, options).cluster_count(), kCount);
  options = {.target_entries = 16, .entries_max = 16, .rounds = 1};
  ExpectPartition(Cluster(points, options), kCount, options);
}

TEST(KMeansTest, SquaresBeyondTheRangeOfFloatsStillGetClusters) {
  test::Rng rng(test::TestSeed());
  for (const float factor : {1e19F, 1e25F, 9e37F}) {
    Points points = NormalPoints(rng, 300, 64);
    for (float& value : points.values) {
      value *= factor;
    }
    ExpectPartition(Cluster(points, {}), 300, {});
  }
}

TEST(KMeansTest, VarianceIsThatOfTheReference) {
  test::Rng rng(test::TestSeed());
  constexpr std::int64_t kCount = 600;
  constexpr int kRuns = 4;
  // Where blobs are apart, which of them the first centroids miss makes a difference between runs.
  struct Case {
    float distance;
    double ratio_max;
  };
  for (const auto [distance, ratio_max] : {Case{0.0F, 1.05}, Case{1.0F, 1.05}, Case{4.0F, 1.25}}) {
    const Points points = BlobPoints(rng, kCount, 24, 50, distance);
    double ours = 0.0;
    double reference = 0.0;
    double capped = 0.0;
    for (int run = 0; run < kRuns; ++run) {
      const KMeansOptions loose{.entries_max = kCount, .seed = rng.Next()};
      ours += SquaresWithin(points, Groups(Cluster(points, loose)));
      capped += SquaresWithin(points, Groups(Cluster(points, {.seed = loose.seed})));
      reference += SquaresWithin(
          points, ReferenceKMeans(rng, points, kCount / loose.target_entries, loose.rounds));
    }
    EXPECT_LT(ours, ratio_max * reference) << distance;
    // Halving a cluster takes squares away.
    EXPECT_LE(capped, ours) << distance;
    std::cout << "distance " << distance << ": squares " << ours / reference
              << " of the reference's, capped " << capped / reference << "\n";
  }
}

}  // namespace
}  // namespace cairn::compute
