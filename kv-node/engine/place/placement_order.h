// In which order new clusters of one (layer, head) are placed, so that those that are fetched
// together touch. docs/kv-node.md, "Several new clusters at once".
//
// Threading:  pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "common/kv/messages.h"

namespace cairn::kv {

// Two clusters that are fetched together, and how often.
struct ClusterPair {
  ClusterId a;
  ClusterId b;
  std::int64_t count = 0;
};

// The clusters of the links that are paired, each once: the first with the second, the third with
// the fourth, and so on. Pairs are made greedily by count, over all links: a cluster is in one pair
// at most. Pairs follow each other along the strongest of the links that are left. A cluster whose
// partners all have others is not in the result. The same links give the same order.
std::vector<ClusterId> OrderByLinks(std::vector<ClusterPair> links);

// All of `ids`, for places that follow each other without seams: chains along the links, the
// strongest taken first, and a cluster is next to two others at most; then what has no link, as it
// comes. REQUIRES: links are between members of `ids`.
std::vector<ClusterId> OrderInChains(const std::vector<ClusterId>& ids,
                                     std::vector<ClusterPair> links);

}  // namespace cairn::kv
