#include "kv-node/engine/place/placement_order.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "common/base/check.h"

namespace cairn::kv {
namespace {

using Chain = std::vector<ClusterId>;

// Joins two chains at the given ends of theirs; the second one is empty afterwards.
void Join(Chain& first, ClusterId end_of_first, Chain& second, ClusterId end_of_second) {
  if (first.front() == end_of_first) std::reverse(first.begin(), first.end());
  if (second.back() == end_of_second) std::reverse(second.begin(), second.end());
  CAIRN_CHECK(first.back() == end_of_first && second.front() == end_of_second);
  first.insert(first.end(), second.begin(), second.end());
  second.clear();
}

// The strongest first; of equal ones, an order that depends on nothing else.
void SortLinks(std::vector<ClusterPair>& links) {
  std::sort(links.begin(), links.end(), [](const ClusterPair& x, const ClusterPair& y) {
    return std::tuple(-x.count, x.a, x.b) < std::tuple(-y.count, y.a, y.b);
  });
}

// Joins chains whose ends are linked.
void JoinChains(const std::vector<ClusterPair>& links, std::vector<Chain>& chains,
                std::map<ClusterId, std::size_t>& chain_of) {
  for (const ClusterPair& link : links) {
    const auto a = chain_of.find(link.a);
    const auto b = chain_of.find(link.b);
    if (a == chain_of.end() || b == chain_of.end() || a->second == b->second) continue;
    Chain& first = chains[a->second];
    Chain& second = chains[b->second];
    const auto is_end = [](const Chain& chain, ClusterId id) {
      return chain.front() == id || chain.back() == id;
    };
    if (!is_end(first, link.a) || !is_end(second, link.b)) continue;
    for (const ClusterId id : second) chain_of[id] = a->second;
    Join(first, link.a, second, link.b);
  }
}

std::vector<ClusterId> Concatenate(const std::vector<Chain>& chains) {
  std::vector<ClusterId> out;
  for (const Chain& chain : chains) out.insert(out.end(), chain.begin(), chain.end());
  return out;
}

}  // namespace

std::vector<ClusterId> OrderByLinks(std::vector<ClusterPair> links) {
  SortLinks(links);
  std::vector<Chain> chains;
  std::map<ClusterId, std::size_t> chain_of;
  for (const ClusterPair& link : links) {
    if (link.a == link.b || chain_of.contains(link.a) || chain_of.contains(link.b)) continue;
    chain_of[link.a] = chain_of[link.b] = chains.size();
    chains.push_back({link.a, link.b});
  }
  JoinChains(links, chains, chain_of);
  return Concatenate(chains);
}

std::vector<ClusterId> OrderInChains(const std::vector<ClusterId>& ids,
                                     std::vector<ClusterPair> links) {
  if (links.empty()) return ids;
  SortLinks(links);
  std::set<ClusterId> linked;
  for (const ClusterPair& link : links) linked.insert({link.a, link.b});
  std::vector<Chain> chains;
  std::map<ClusterId, std::size_t> chain_of;
  for (const bool first : {true, false}) {
    for (const ClusterId id : ids) {
      if (linked.contains(id) != first) continue;
      chain_of[id] = chains.size();
      chains.push_back({id});
    }
  }
  JoinChains(links, chains, chain_of);
  return Concatenate(chains);
}

}  // namespace cairn::kv
