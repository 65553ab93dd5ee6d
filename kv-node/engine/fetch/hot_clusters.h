// HotClusters remembers which clusters of each layer a session's fetches name most, and lately; it
// is what a layer hint stages. Names cost little: it knows more clusters than the cache has room
// for. In memory only: an attachment begins knowing none.
//
// StageBudget says how much may be staged for a hint: what the device can read between two hints,
// less what fetches read of it. Both are measured, and follow changes with kStageFollow.
//
// Limits:     kHotClustersMax clusters of a session, as many of each layer, of one layer at most
//             kHotClustersMaxOfLayer; the coldest go.
// Threading:  the engine thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include <absl/container/btree_map.h>

#include "common/kv/messages.h"

namespace cairn::kv {

// The slots that the default arena has room for, if each has one page.
inline constexpr std::int64_t kHotClustersMax = 4096;
inline constexpr std::int64_t kHotClustersMaxOfLayer = 512;
inline constexpr std::int64_t kHotClustersMinOfLayer = 4;
// Fetches of a layer after which a fetch counts half.
inline constexpr double kHeatHalfLife = 8;
// The share of the last fetches that named a cluster, from which on it is staged. What is named
// more seldom costs more reads than it saves (docs/benchmarks.md, "Staging").
inline constexpr double kStageShareMin = 0.25;
// Weight of the newest measurement.
inline constexpr double kStageFollow = 0.125;

class HotClusters {
 public:
  explicit HotClusters(std::int32_t layer_count);

  // A fetch names these clusters. REQUIRES: the layer exists.
  void Note(std::int32_t layer, std::span<const ClusterRef> clusters);
  // Those that at least this share of the last fetches named, hottest first.
  std::vector<ClusterRef> Of(std::int32_t layer, double share_min) const;

  std::int64_t memory_bytes() const;

 private:
  struct Layer {
    double unit =
        1;  // what a fetch adds: it grows, which makes all that was added before weigh less
    double total = 0;  // what all fetches have added: the heat of a cluster that each of them named
    absl::btree_map<ClusterRef, double> heat;
  };
  void Trim(Layer& layer) const;

  const std::size_t layer_count_max_;  // clusters of one layer
  std::vector<Layer> layers_;
};

class StageBudget {
 public:
  // A longer time between two hints is a pause of the session and says nothing about its layers.
  explicit StageBudget(std::chrono::milliseconds layer_time_max)
      : layer_time_max_(layer_time_max) {}

  // A hint comes; the session's fetches have read `read_bytes` of the device since its attach.
  // Returns the bytes that may be staged for it: 0 until a time was measured, and for an unknown
  // bandwidth (0).
  std::int64_t OnHint(std::chrono::steady_clock::time_point now, std::int64_t read_bytes,
                      std::int64_t bytes_per_second);

 private:
  const std::chrono::milliseconds layer_time_max_;
  bool has_hint_ = false;
  bool has_time_ = false;
  std::chrono::steady_clock::time_point last_hint_;
  std::int64_t last_read_bytes_ = 0;
  double layer_seconds_ = 0;
  double layer_read_bytes_ = 0;
};

}  // namespace cairn::kv
