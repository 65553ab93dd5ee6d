// CoSelection counts how often clusters of one layer and KV head are selected by the same query,
// as a compute node does over a prompt.
//
// Threading:  one thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "common/kv/messages.h"

namespace cairn::bench {

class CoSelection {
 public:
  // The clusters that one query selected, each once.
  void Count(std::span<const std::int64_t> ids);

  // For each cluster the kNeighbourCountMax that were most often selected with it; the weight is
  // the share of the most frequent pair's count.
  std::vector<ClusterNeighbours> StrongestNeighbours(std::int32_t head) const;

 private:
  std::map<std::int64_t, std::map<std::int64_t, std::int64_t>> counts_;  // both ways
};

}  // namespace cairn::bench
