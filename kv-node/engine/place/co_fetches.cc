#include "kv-node/engine/place/co_fetches.h"

#include <algorithm>
#include <bit>

namespace cairn::kv {
namespace {

constexpr auto kStronger = [](const ClusterLink& a, const ClusterLink& b) {
  return a.count > b.count;
};

}  // namespace

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

CoFetches::Entry& CoFetches::Insert(const ClusterKey& key) {
  Entry& entry = links_[key];
  if (gone_.erase(key) > 0) entry.stored = true;
  changed_.insert(key);
  return entry;
}

void CoFetches::Erase(const ClusterKey& key) {
  const auto found = links_.find(key);
  if (found == links_.end()) return;
  if (found->second.stored) gone_.insert(key);
  changed_.erase(key);
  links_.erase(found);
}

// Keeps the most frequent ones: an unknown one takes from the weakest until it can have its place.
void CoFetches::CountPair(const ClusterKey& key, ClusterId with) {
  auto found = links_.find(key);
  if (found == links_.end()) {
    if (links_.size() >= kCoFetchClustersMax) Halve();
    if (links_.size() >= kCoFetchClustersMax) return;
    Insert(key).links.push_back({with, 1});
    return;
  }
  std::vector<ClusterLink>& links = found->second.links;
  auto link = std::find_if(links.begin(), links.end(),
                           [with](const ClusterLink& one) { return one.cluster == with; });
  if (link == links.end()) {
    if (std::ssize(links) < kLinksOfClusterMax) {
      links.push_back({with, 1});
    } else if (--links.back().count == 0) {
      links.back() = {with, 1};
    } else {
      return;
    }
    changed_.insert(key);
    return;
  }
  if (link->count == kLinkCountMax) {
    for (ClusterLink& one : links) one.count = (one.count + 1) / 2;
  }
  ++link->count;
  bool changed = std::has_single_bit(static_cast<std::uint32_t>(link->count));
  for (; link != links.begin() && kStronger(*link, *(link - 1)); --link) {
    std::iter_swap(link, link - 1);
    changed = true;
  }
  if (changed) changed_.insert(key);
}

// Lets go of what becomes zero by it.
void CoFetches::Halve() {
  std::vector<ClusterKey> empty;
  for (auto& [key, entry] : links_) {
    for (ClusterLink& link : entry.links) link.count /= 2;
    std::erase_if(entry.links, [](const ClusterLink& link) { return link.count == 0; });
    if (entry.links.empty()) empty.push_back(key);
  }
  for (const ClusterKey& key : empty) Erase(key);
}

void CoFetches::Forget(const ClusterKey& key) {
  const auto found = links_.find(key);
  if (found == links_.end()) return;
  // Links are mostly mutual: those of others to it, that it does not know, fade away.
  const std::vector<ClusterLink> others = std::move(found->second.links);
  Erase(key);
  for (const ClusterLink& other : others) {
    const ClusterKey other_key{key.layer, key.head, other.cluster};
    const auto entry = links_.find(other_key);
    if (entry == links_.end()) continue;
    const auto removed = std::erase_if(entry->second.links, [&](const ClusterLink& link) {
      return link.cluster == key.cluster_id;
    });
    if (removed == 0) continue;
    changed_.insert(other_key);
    if (entry->second.links.empty()) Erase(other_key);
  }
}

std::span<const ClusterLink> CoFetches::LinksOf(const ClusterKey& key) const {
  const auto found = links_.find(key);
  if (found == links_.end()) return {};
  return found->second.links;
}

void CoFetches::Load(const ClusterKey& key, std::vector<ClusterLink> links, bool own) {
  if (links_.contains(key)) return;
  if (links_.size() >= kCoFetchClustersMax || links.empty()) {
    if (own) gone_.insert(key);
    return;
  }
  Entry& entry = links_[key];
  entry.links = std::move(links);
  entry.stored = own;
}

CoFetches::Changes CoFetches::TakeChanges(const std::function<bool(const ClusterKey&)>& exists) {
  Changes out;
  while (!gone_.empty() && out.gone.size() < kLinkRowsPerCheckpointMax) {
    out.gone.push_back(gone_.extract(gone_.begin()).value());
  }
  if (!gone_.empty()) return out;
  for (auto key = changed_.begin(); key != changed_.end();) {
    if (out.gone.size() + out.put.size() >= kLinkRowsPerCheckpointMax) break;
    if (!exists(*key)) {
      ++key;
      continue;
    }
    Entry& entry = links_.at(*key);
    entry.stored = true;
    out.put.emplace_back(*key, entry.links);
    key = changed_.erase(key);
  }
  return out;
}

void CoFetches::BeginSegment() {
  gone_.clear();
  for (auto& [key, entry] : links_) entry.stored = false;
}

std::int64_t CoFetches::memory_bytes() const {
  constexpr std::size_t kMapNodeBytes = 48;
  constexpr std::size_t kClusterBytes =
      kMapNodeBytes + sizeof(ClusterKey) + sizeof(Entry) + kLinksOfClusterMax * sizeof(ClusterLink);
  constexpr std::size_t kKeyBytes = kMapNodeBytes + sizeof(ClusterKey);
  return static_cast<std::int64_t>(links_.size() * kClusterBytes +
                                   (changed_.size() + gone_.size()) * kKeyBytes);
}

}  // namespace cairn::kv
