// KeyClusters groups the keys of one layer and KV head, as simply as will do for driving the store:
// K-means over a prompt, the nearest cluster for later keys, two halves by 2-means when one has
// grown over its cap. It is no policy.
//
// Threading:  one thread.
// Ownership:  borrows the keys, which outlive it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace cairn::bench {

enum class Order {
  kCluster,   // by what the keys are
  kSequence,  // runs of consecutive positions, never split
};
absl::StatusOr<Order> ParseOrder(std::string_view text);  // "cluster" or "sequence"

// Keys of one layer and KV head: `dim` floats for each position.
struct KeyRows {
  std::int64_t dim = 0;
  std::vector<float> values;
  std::span<const float> At(std::int64_t position) const {
    return std::span(values).subspan(static_cast<std::size_t>(position * dim),
                                     static_cast<std::size_t>(dim));
  }
};

class KeyClusters {
 public:
  struct Cluster {
    std::vector<std::int64_t> positions;  // ascending
    std::vector<float> sum;               // of the keys
    std::vector<float> centroid;
    float half_square = 0;  // of the centroid's length
  };
  struct Split {
    std::int64_t parent_id = 0;
    std::int64_t child_ids[2] = {};
  };

  // Clusters of `mean_count` entries on average; `cap_count` at most, but for sequence order.
  KeyClusters(const KeyRows& keys, Order order, std::int64_t mean_count, std::int64_t cap_count);

  // Groups positions [first, first + count), which are above all others, into new clusters.
  // Returns their ids.
  std::vector<std::int64_t> AddPrompt(std::int64_t first, std::int64_t count);
  // Adds a position above all others to a cluster, and returns its id.
  std::int64_t Add(std::int64_t position);
  // Splits the cluster when it is over its cap. Children have new ids and are never empty.
  std::optional<Split> SplitIfOver(std::int64_t id);
  // Clusters for a query row or several: those with the largest product of a query and the
  // centroid, until they hold `entry_count` entries.
  std::vector<std::int64_t> Select(std::span<const float> queries, std::int64_t entry_count) const;

  const std::map<std::int64_t, Cluster>& clusters() const { return clusters_; }
  std::int64_t next_id() const { return next_id_; }
  std::int64_t entry_count() const { return entry_count_; }

 private:
  // Makes centroid and half_square fit the sum.
  static void SetCentroid(Cluster& cluster);
  std::int64_t Make(const std::vector<std::int64_t>& positions);
  std::vector<std::vector<std::int64_t>> KMeans(const std::vector<std::int64_t>& positions,
                                                std::int64_t count, int rounds) const;
  // Groups of at most cap_count_: those over it are halved again and again.
  void AddCapped(const std::vector<std::int64_t>& positions, std::vector<std::int64_t>& ids);

  const KeyRows& keys_;
  const Order order_;
  const std::int64_t mean_count_;
  const std::int64_t cap_count_;
  std::map<std::int64_t, Cluster> clusters_;
  std::int64_t next_id_ = 1;
  std::int64_t entry_count_ = 0;
};

}  // namespace cairn::bench
