// ProductCodes are product-quantised keys (Jegou, Douze, Schmid, "Product quantization for nearest
// neighbor search", 2011), as PQCache keeps them: a key is cut into 2 halves, each of which stands
// for the nearest of 64 centroids of its own, so that a key is 2 codes, and its product with a
// query two look-ups.
//
// Centroids are trained once for each (layer, KV head), by K-means over the keys that are there
// when the first 64 are, and never change. Until then keys are collected and nothing has codes.
//
// Numbers that are not finite count as zero.
//
// Determinism: codes depend on the keys, on how many of them were there at the training, and on the
//              seed.
// Threading:   one thread for one layer; different layers may be worked on at the same time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "compute-node/retrieval/baselines/kept_keys.h"
#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

inline constexpr std::size_t kSubVectors = 2;
inline constexpr std::int64_t kSubCentroids = 64;  // 6 bits
// Fewer keys than centroids train nothing.
inline constexpr std::int64_t kTrainingKeysMin = kSubCentroids;

class ProductCodes {
 public:
  ProductCodes(const EntryLayout& layout, std::uint64_t seed);

  void Clear();
  void Append(const LeavingEntries& leaving);
  // As KeptKeys::Rebuild, with how many keys were there at the training; 0: as many as come. If
  // fewer than were are left, those train.
  absl::Status Rebuild(std::int32_t layer, std::span<const LoadedCluster> clusters,
                       std::int64_t trained_count);

  // Keys that trained a layer; 0: none have yet.
  std::int64_t trained_count(std::int32_t layer) const {
    return layers_[static_cast<std::size_t>(layer)].trained_count;
  }
  // scores[i] = the approximate product of the query and key i of all. REQUIRES: trained.
  void Score(std::int32_t layer, std::int32_t head, std::span<const float> query,
             std::span<float> scores) const;
  // Codes, centroids and collected keys.
  std::int64_t size_bytes() const;

 private:
  struct Half {
    std::vector<float> centroids;  // (centroid, half of the dimensions), at most kSubCentroids
    std::vector<float> half_squares;
    std::vector<std::uint8_t> codes;  // by key
  };
  using Head = std::array<Half, kSubVectors>;
  struct Layer {
    std::vector<Head> heads;
    std::int64_t trained_count = 0;
  };

  // Over the first `count` of the collected keys. Then all of them get codes.
  void Train(std::int32_t layer, std::int64_t count, ThreadPool* pool);
  void Encode(std::span<const float> keys, Head& head) const;
  // Half `half` of each key.
  std::vector<float> HalvesOf(std::span<const float> keys, std::size_t half) const;

  const EntryLayout layout_;
  const std::size_t half_dim_;
  const std::uint64_t seed_;
  std::vector<Layer> layers_;
  KeptKeys collected_;  // of layers that are not trained
};

}  // namespace cairn::compute
