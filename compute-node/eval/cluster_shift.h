// ClusterShift compares ways to keep a conversation's keys in clusters while it grows: how far from
// the centroid that stands for them entries lie, of all and of those that are new. All ways get the
// same keys, and distances are those by which the policy makes its clusters.
//
// Units:      squared distances; entries are those that left the window, without sinks.
// Threading:  one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace cairn::eval {

enum class Partition : std::uint8_t {
  kAdaptive,  // the policy's clusters, without what is held back
  // Each entry in the nearest of the clusters behind the prompt; these stay as they were.
  kStatic,
  kGreedy,  // the same, but their centroids become those of what they hold
  // Those of the prompt stay, and each 320 entries that come become clusters of 40 on average; or
  // of as many entries as the policy's have.
  kLocal,
  kLocalSmall,
  // K-means over all that is there: as many clusters as kStatic has, and as kAdaptive.
  kGlobalFew,
  kGlobal
};
inline constexpr std::array<std::string_view, 7> kPartitionNames = {
    "adaptive", "static", "greedy", "local-40", "local", "global-few", "global"};
inline constexpr std::size_t kPartitionCount = kPartitionNames.size();

struct PartitionMoments {
  std::int64_t cluster_count = 0;
  std::int64_t entry_count = 0;
  double square_sum = 0;
  std::int64_t new_count = 0;  // of the entries, those that are there since the last sample
  double new_square_sum = 0;

  double variance() const {
    return entry_count == 0 ? 0 : square_sum / static_cast<double>(entry_count);
  }
  double new_variance() const {
    return new_count == 0 ? 0 : new_square_sum / static_cast<double>(new_count);
  }
};

// Of one (layer, KV head).
struct ShiftSample {
  double total_variance = 0;  // of all entries around their mean
  std::array<PartitionMoments, kPartitionCount> partitions{};
};

// Of one (layer, KV head), from the prompt on.
class ClusterShift {
 public:
  // Of clusters: entries on average.
  ClusterShift(std::int64_t dim, std::int64_t cluster_entries, std::uint64_t seed)
      : dim_(dim), cluster_entries_(cluster_entries), seed_(seed) {}

  // `keys` has a row for each position, those of before unchanged; [first, end) are the entries.
  // `adaptive` are the policy's clusters, their positions below `end`. The first call is behind the
  // prompt.
  ShiftSample Sample(std::span<const float> keys, std::int64_t first, std::int64_t end,
                     const std::vector<std::vector<std::int64_t>>& adaptive);

 private:
  // Clusters that were made and stay: what is known of them.
  struct Local {
    std::int64_t target_entries = 0;
    std::int64_t until = 0;  // entries from here on wait
    PartitionMoments moments{};
  };

  std::span<const float> Row(std::span<const float> keys, std::int64_t position) const {
    return keys.subspan(static_cast<std::size_t>(position * dim_), static_cast<std::size_t>(dim_));
  }
  void Start(std::span<const float> keys, const std::vector<std::vector<std::int64_t>>& clusters);
  std::vector<float> CentroidOf(std::span<const float> keys,
                                std::span<const std::int64_t> positions) const;
  // Adds the entries of one cluster.
  void AddCluster(std::span<const float> keys, std::span<const std::int64_t> positions,
                  PartitionMoments& moments) const;
  // Those of clusters that K-means makes of the entries [first, end).
  void AddKMeans(std::span<const float> keys, std::int64_t first, std::int64_t end,
                 std::int64_t target_entries, PartitionMoments& moments) const;
  void GrowStatic(std::span<const float> keys, std::int64_t end);
  PartitionMoments GrowGreedy(std::span<const float> keys, std::int64_t end);
  void GrowLocal(std::span<const float> keys, std::int64_t end, Local& local) const;

  std::int64_t dim_;
  std::int64_t cluster_entries_;
  std::uint64_t seed_;
  std::int64_t new_first_ = 0;  // entries below it were in the last sample
  std::vector<float> fixed_;    // centroids of the prompt's clusters, (cluster, dim)
  PartitionMoments static_;
  std::vector<float> moving_;                      // centroids of greedy_
  std::vector<std::vector<std::int64_t>> greedy_;  // positions by cluster
  std::array<Local, 2> locals_;                    // of kLocal, kLocalSmall
};

}  // namespace cairn::eval
