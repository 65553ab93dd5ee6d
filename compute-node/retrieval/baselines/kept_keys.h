// KeptKeys are the keys of all entries that have left the window, as floats in memory: what a
// policy that scores single tokens needs and a small memory does not have. Policies that keep them
// are compared for what they choose: their keys are not charged.
//
// Keys are finite: what is not (a format that could not hold a number) counts as zero.
//
// Threading:  one thread for one layer; different layers may be worked on at the same time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compute-node/retrieval/cluster_keeper.h"

namespace cairn::compute {

// Appends keys as K-means wants them: what is not finite becomes zero.
void AppendFinite(std::span<const float> from, std::vector<float>& to);

class KeptKeys {
 public:
  explicit KeptKeys(const EntryLayout& layout);

  void Clear();
  void ClearLayer(std::int32_t layer);
  void Append(const LeavingEntries& leaving);
  // As ClusterKeeper::Rebuild, of clusters in sequence order. DATA_LOSS unless each head has the
  // same positions, all from 0 on.
  absl::Status Rebuild(std::int32_t layer, std::span<const LoadedCluster> clusters);

  // Of a head, by position.
  std::span<const float> Of(std::int32_t layer, std::int32_t head) const {
    return keys_[Row(layer, head)];
  }
  // Positions that a head has.
  std::int64_t count(std::int32_t layer, std::int32_t head) const {
    return std::ssize(keys_[Row(layer, head)]) / layout_.head_dim;
  }
  std::int64_t size_bytes() const;

 private:
  std::size_t Row(std::int32_t layer, std::int32_t head) const {
    return static_cast<std::size_t>(std::int64_t{layer} * layout_.head_count + head);
  }

  const EntryLayout layout_;
  std::vector<std::vector<float>> keys_;  // by (layer, head)
};

}  // namespace cairn::compute
