// Speed of the kernels over centroids, each beside what bounds it: bytes of codes a second beside a
// plain read of as many bytes; then the time of K-means over the heads of a layer.
//
// The codes of many heads are gone through in turn, more than any cache holds, as decoding does.
//
// usage: centroids_bench [ROUNDS]
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "common/base/check.h"
#include "compute-node/kernels/centroids.h"
#include "compute-node/retrieval/clustering/kmeans.h"
#include "tests/bench/read_rate.h"
#include "tests/tools/rng.h"

namespace cairn::compute {
namespace {

constexpr std::int64_t kCodeBytes = std::int64_t{512} << 20;
constexpr int kKeyCounts[] = {1, 8};

double Seconds(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double MedianSeconds(int round_count, const std::function<void()>& body) {
  std::vector<double> times;
  for (int round = 0; round < round_count; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    times.push_back(Seconds(begin));
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

std::vector<float> RandomFloats(std::int64_t count) {
  test::Rng rng(static_cast<std::uint64_t>(count));
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value = rng.Normal();
  }
  return values;
}

const std::int8_t* MakeCodes() {
  void* memory =
      mmap(nullptr, kCodeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CAIRN_CHECK(memory != MAP_FAILED);
  madvise(memory, kCodeBytes, MADV_HUGEPAGE);
  auto* words = static_cast<std::uint64_t*>(memory);
  test::Rng rng(1);
  for (std::int64_t i = 0; i < kCodeBytes / 8; ++i) {
    words[i] = rng.Next();
  }
  return static_cast<const std::int8_t*>(memory);
}

void MeasureCodes(ThreadPool& pool, const std::int8_t* codes, std::int64_t dim,
                  std::int64_t row_count, int round_count) {
  const std::int64_t head_bytes = row_count * dim;
  const std::int64_t heads = kCodeBytes / head_bytes;
  const std::vector<float> keys = RandomFloats(8 * dim);
  const std::vector<float> scales(static_cast<std::size_t>(row_count), 0.01F);
  const std::vector<float> half_squares(static_cast<std::size_t>(row_count), 1.0F);
  std::vector<float> scores(static_cast<std::size_t>(heads * row_count));
  std::vector<std::int32_t> nearest(static_cast<std::size_t>(heads * 8));
  const double bytes = static_cast<double>(heads * head_bytes) / 1e9;
  const auto* bytes_begin = reinterpret_cast<const std::byte*>(codes);
  const double read = ReadRate(pool, bytes_begin, kCodeBytes, head_bytes) / 1e9;
  const double score = MedianSeconds(round_count, [&] {
    pool.ParallelFor(heads, [&](std::int64_t head) {
      ScoreSketches(std::span(keys).first(static_cast<std::size_t>(dim)),
                    reinterpret_cast<const std::uint8_t*>(codes + head * head_bytes / 2), scales,
                    std::span(scores).subspan(static_cast<std::size_t>(head * row_count),
                                              static_cast<std::size_t>(row_count)));
    });
  });
  const double sketch_bytes = bytes / 2;
  std::printf("%4ld %6ld %8.1f %8.1f %5.0f %%", dim, row_count, read, sketch_bytes / score,
              100 * sketch_bytes / score / read);
  for (const int key_count : kKeyCounts) {
    const double time = MedianSeconds(round_count, [&] {
      pool.ParallelFor(heads, [&](std::int64_t head) {
        NearestCode(std::span(keys).first(static_cast<std::size_t>(key_count * dim)),
                    {dim, codes + head * head_bytes, scales, half_squares},
                    std::span(nearest).subspan(static_cast<std::size_t>(head * 8),
                                               static_cast<std::size_t>(key_count)));
      });
    });
    std::printf(" %8.1f", bytes / time);
  }
  std::printf("\n");
}

void MeasureNearest(ThreadPool& pool, std::int64_t dim, int round_count) {
  constexpr std::int64_t kHeads = 8;
  constexpr std::int64_t kPoints = 4096;
  constexpr std::int64_t kCentroids = 512;
  constexpr std::int64_t kTaskPoints = 256;
  const std::vector<float> points = RandomFloats(kHeads * kPoints * dim);
  const std::vector<float> centroids = RandomFloats(kCentroids * dim);
  CentroidPanels panels(dim, kCentroids);
  for (std::int64_t i = 0; i < kCentroids; ++i) {
    const auto row = std::span(centroids).subspan(static_cast<std::size_t>(i * dim),
                                                  static_cast<std::size_t>(dim));
    panels.Set(i, row, HalfSquare(row));
  }
  std::vector<std::int32_t> nearest(kHeads * kPoints);
  const double time = MedianSeconds(round_count, [&] {
    pool.ParallelFor(std::ssize(nearest) / kTaskPoints, [&](std::int64_t task) {
      NearestCentroids(
          std::span(points).subspan(static_cast<std::size_t>(task * kTaskPoints * dim),
                                    static_cast<std::size_t>(kTaskPoints * dim)),
          panels,
          std::span(nearest).subspan(static_cast<std::size_t>(task * kTaskPoints), kTaskPoints));
    });
  });
  const double flop = 2.0 * static_cast<double>(std::ssize(nearest) * kCentroids * dim);
  std::printf("%4ld %8.1f GFLOP/s, %6.2f ms a head\n", dim, flop / time / 1e9, time / kHeads * 1e3);
}

void MeasureKMeans(ThreadPool& pool, std::int64_t head_count, std::int64_t dim, int round_count) {
  constexpr std::int64_t kPoints = 4096;
  const std::vector<float> points = RandomFloats(head_count * kPoints * dim);
  std::vector<std::span<const float>> heads;
  for (std::int64_t head = 0; head < head_count; ++head) {
    heads.push_back(std::span(points).subspan(static_cast<std::size_t>(head * kPoints * dim),
                                              static_cast<std::size_t>(kPoints * dim)));
  }
  const double time = MedianSeconds(round_count, [&] {
    const std::vector<PointClusters> clusters = KMeans(&pool, heads, dim, {});
    CAIRN_CHECK(clusters[0].cluster_count() > 0);
  });
  std::printf("%ld heads of %ld points, %4ld dimensions: %6.1f ms\n", head_count, kPoints, dim,
              time * 1e3);
}

int MeasureCentroids(int round_count) {
  const std::int8_t* codes = MakeCodes();
  for (const int thread_count : {1, 2}) {
    ThreadPool pool(thread_count);
    std::printf("%d thread%s\nGB/s of codes\n%4s %6s %8s %8s %7s %8s %8s\n", thread_count,
                thread_count == 1 ? "" : "s", "dim", "rows", "read", "score", "", "1 key",
                "8 keys");
    for (const std::int64_t dim : {64, 128}) {
      for (const std::int64_t row_count : {2048, 4096, 8192, 16384}) {
        MeasureCodes(pool, codes, dim, row_count, round_count);
      }
    }
    std::printf("nearest of 512 centroids, 4096 points a head\n");
    for (const std::int64_t dim : {64, 128}) {
      MeasureNearest(pool, dim, round_count);
    }
    std::printf("K-means, clusters of 8\n");
    MeasureKMeans(pool, 8, 64, round_count);
    MeasureKMeans(pool, 2, 128, round_count);
  }
  return 0;
}

}  // namespace
}  // namespace cairn::compute

int main(int argc, char** argv) {
  return cairn::compute::MeasureCentroids(argc > 1 ? std::atoi(argv[1]) : 5);
}
