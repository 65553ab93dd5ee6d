#include "compute-node/retrieval/baselines/product_codes.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/split_mix.h"
#include "compute-node/kernels/centroids.h"
#include "compute-node/retrieval/baselines/token_scores.h"
#include "compute-node/retrieval/clustering/kmeans.h"
#include "compute-node/retrieval/fetch_plan.h"

namespace cairn::compute {
namespace {

constexpr int kTrainingRounds = 20;

// Means of the clusters' points.
std::vector<float> Means(std::span<const float> points, std::size_t dim,
                         const PointClusters& clusters) {
  std::vector<float> means(static_cast<std::size_t>(clusters.cluster_count()) * dim, 0.0F);
  for (std::int64_t i = 0; i < clusters.cluster_count(); ++i) {
    MeanOfRows(points, clusters.cluster(i),
               std::span(means).subspan(static_cast<std::size_t>(i) * dim, dim));
  }
  return means;
}

}  // namespace

ProductCodes::ProductCodes(const EntryLayout& layout, std::uint64_t seed)
    : layout_(layout),
      half_dim_(static_cast<std::size_t>(layout.head_dim) / kSubVectors),
      seed_(seed),
      collected_(layout) {
  CAIRN_CHECK_EQ(half_dim_ * kSubVectors, static_cast<std::size_t>(layout.head_dim));
  Clear();
}

void ProductCodes::Clear() {
  Layer empty;
  empty.heads.resize(static_cast<std::size_t>(layout_.head_count));
  layers_.assign(static_cast<std::size_t>(layout_.layer_count), empty);
  collected_.Clear();
}

void ProductCodes::Append(const LeavingEntries& leaving) {
  Layer& layer = layers_[static_cast<std::size_t>(leaving.layer)];
  if (layer.trained_count == 0) {
    collected_.Append(leaving);
    const std::int64_t count = collected_.count(leaving.layer, 0);
    if (count >= kTrainingKeysMin) Train(leaving.layer, count, leaving.pool);
    return;
  }
  const std::size_t floats = static_cast<std::size_t>(leaving.token_count * layout_.head_dim);
  CAIRN_CHECK_EQ(leaving.keys.size(), floats * layer.heads.size());
  CAIRN_CHECK_EQ(std::ssize(layer.heads[0][0].codes), leaving.first_position);
  for (std::size_t head = 0; head < layer.heads.size(); ++head) {
    Encode(leaving.keys.subspan(head * floats, floats), layer.heads[head]);
  }
}

absl::Status ProductCodes::Rebuild(std::int32_t layer, std::span<const LoadedCluster> clusters,
                                   std::int64_t trained_count) {
  Layer& rebuilt = layers_[static_cast<std::size_t>(layer)];
  rebuilt.trained_count = 0;
  CAIRN_RETURN_IF_ERROR(collected_.Rebuild(layer, clusters));
  const std::int64_t count = collected_.count(layer, 0);
  const std::int64_t training = trained_count == 0 ? count : std::min(trained_count, count);
  if (training >= kTrainingKeysMin) Train(layer, training, nullptr);
  return absl::OkStatus();
}

void ProductCodes::Train(std::int32_t layer, std::int64_t count, ThreadPool* pool) {
  Layer& trained = layers_[static_cast<std::size_t>(layer)];
  const std::size_t floats = static_cast<std::size_t>(count * layout_.head_dim);
  std::vector<std::vector<float>> halves;
  for (std::int32_t head = 0; head < layout_.head_count; ++head) {
    for (std::size_t half = 0; half < kSubVectors; ++half) {
      halves.push_back(HalvesOf(collected_.Of(layer, head).first(floats), half));
    }
  }
  const std::vector<std::span<const float>> problems(halves.begin(), halves.end());
  const std::vector<PointClusters> clusters =
      KMeans(pool, problems, static_cast<std::int64_t>(half_dim_),
             {.target_entries = (count + kSubCentroids - 1) / kSubCentroids,
              .entries_max = count,
              .rounds = kTrainingRounds,
              .seed = SplitMix({seed_, static_cast<std::uint64_t>(layer)}).Next()});
  ForEachHead(pool, layout_.head_count, [&](std::int32_t head) {
    Head& of_head = trained.heads[static_cast<std::size_t>(head)];
    for (std::size_t half = 0; half < kSubVectors; ++half) {
      const std::size_t problem = static_cast<std::size_t>(head) * kSubVectors + half;
      Half& of_half = of_head[half];
      of_half.codes.clear();
      of_half.centroids = Means(halves[problem], half_dim_, clusters[problem]);
      of_half.half_squares.clear();
      for (std::size_t i = 0; i < of_half.centroids.size(); i += half_dim_) {
        of_half.half_squares.push_back(
            HalfSquare(std::span(of_half.centroids).subspan(i, half_dim_)));
      }
    }
    Encode(collected_.Of(layer, head), of_head);
  });
  trained.trained_count = count;
  collected_.ClearLayer(layer);
}

void ProductCodes::Encode(std::span<const float> keys, Head& head) const {
  for (std::size_t half = 0; half < kSubVectors; ++half) {
    const std::vector<float> points = HalvesOf(keys, half);
    std::vector<std::int32_t> nearest(points.size() / half_dim_);
    NearestCentroids(points, head[half].centroids, head[half].half_squares, nearest);
    for (const std::int32_t centroid : nearest) {
      // None is near a key whose squared length is beyond the range of floats.
      head[half].codes.push_back(static_cast<std::uint8_t>(std::max(centroid, 0)));
    }
  }
}

std::vector<float> ProductCodes::HalvesOf(std::span<const float> keys, std::size_t half) const {
  const std::size_t dim = half_dim_ * kSubVectors;
  std::vector<float> halves;
  halves.reserve(keys.size() / kSubVectors);
  for (std::size_t key = 0; key < keys.size(); key += dim) {
    AppendFinite(keys.subspan(key + half * half_dim_, half_dim_), halves);
  }
  return halves;
}

void ProductCodes::Score(std::int32_t layer, std::int32_t head, std::span<const float> query,
                         std::span<float> scores) const {
  const Head& of_head =
      layers_[static_cast<std::size_t>(layer)].heads[static_cast<std::size_t>(head)];
  CAIRN_CHECK_EQ(scores.size(), of_head[0].codes.size());
  std::array<std::array<float, kSubCentroids>, kSubVectors> products = {};
  for (std::size_t half = 0; half < kSubVectors; ++half) {
    const std::vector<float>& centroids = of_head[half].centroids;
    for (std::size_t i = 0; i * half_dim_ < centroids.size(); ++i) {
      products[half][i] = Dot(query.data() + half * half_dim_, centroids.data() + i * half_dim_,
                              static_cast<std::int64_t>(half_dim_));
    }
  }
  for (std::size_t key = 0; key < scores.size(); ++key) {
    scores[key] = products[0][of_head[0].codes[key]] + products[1][of_head[1].codes[key]];
  }
}

std::int64_t ProductCodes::size_bytes() const {
  std::size_t bytes = 0;
  for (const Layer& layer : layers_) {
    for (const Head& head : layer.heads) {
      for (const Half& half : head) {
        bytes +=
            half.codes.size() + sizeof(float) * (half.centroids.size() + half.half_squares.size());
      }
    }
  }
  return collected_.size_bytes() + static_cast<std::int64_t>(bytes);
}

}  // namespace cairn::compute
