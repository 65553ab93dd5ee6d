#include "kv-node/engine/co_fetches.h"

#include <algorithm>

namespace cairn::kv {

bool CoFetches::Note(std::int32_t layer, std::span<const ClusterRef> clusters) {
  random_ = random_ * 6364136223846793005 + 1442695040888963407;
  if ((random_ >> 32) % kCoFetchSample != 0) return false;
  Count(layer, clusters);
  return true;
}

void CoFetches::Count(std::int32_t layer, std::span<const ClusterRef> clusters) {
  std::map<std::int32_t, std::vector<ClusterId>> by_head;
  for (const ClusterRef& cluster : clusters) {
    std::vector<ClusterId>& named = by_head[cluster.head];
    if (named.size() < kCoFetchNamedMax) named.push_back(cluster.cluster_id);
  }
  for (const auto& [head, named] : by_head) {
    for (const ClusterId cluster : named) {
      for (const ClusterId with : named) {
        if (with != cluster) CountPair({layer, head, cluster}, with);
      }
    }
  }
}

// Keeps the most frequent ones: an unknown one takes from the weakest until it can have its place.
void CoFetches::CountPair(const ClusterKey& key, ClusterId with) {
  auto found = links_.find(key);
  if (found == links_.end()) {
    if (links_.size() >= kCoFetchClustersMax) MakeRoom();
    if (links_.size() >= kCoFetchClustersMax) return;
    found = links_.emplace(key, std::vector<Link>()).first;
  }
  std::vector<Link>& links = found->second;
  for (Link& link : links) {
    if (link.cluster != with) continue;
    ++link.count;
    return;
  }
  if (links.size() < kRelatedMax) {
    links.push_back({with, 1});
    return;
  }
  Link& weakest = *std::min_element(links.begin(), links.end(),
                                    [](const Link& a, const Link& b) { return a.count < b.count; });
  if (--weakest.count == 0) weakest = {with, 1};
}

// Halves all counts and lets go of what that makes zero: the table follows what is fetched now.
void CoFetches::MakeRoom() {
  for (auto& [key, links] : links_) {
    for (Link& link : links) link.count /= 2;
    std::erase_if(links, [](const Link& link) { return link.count == 0; });
  }
  std::erase_if(links_, [](const auto& entry) { return entry.second.empty(); });
}

std::vector<ClusterId> CoFetches::RelatedTo(const ClusterKey& key) const {
  std::vector<ClusterId> out;
  const auto found = links_.find(key);
  if (found == links_.end()) return out;
  std::vector<Link> links = found->second;
  std::stable_sort(links.begin(), links.end(),
                   [](const Link& a, const Link& b) { return a.count > b.count; });
  out.reserve(links.size());
  for (const Link& link : links) out.push_back(link.cluster);
  return out;
}

std::int64_t CoFetches::memory_bytes() const {
  constexpr std::size_t kClusterBytes = 96 + kRelatedMax * sizeof(Link);  // with its map node
  return static_cast<std::int64_t>(links_.size() * kClusterBytes);
}

}  // namespace cairn::kv
