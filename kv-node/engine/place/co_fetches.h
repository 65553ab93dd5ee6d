// CoFetches knows which clusters a session fetches together, so that they can be placed together:
// pairs within one (layer, head), as links with a count. About one fetch in kCoFetchSample is
// counted. What it holds is kept in rows of family `coretrieval`; losing it costs places, never
// what is read.
//
// Limits:     kCoFetchClustersMax clusters with kLinksOfClusterMax links each; of a fetch the first
//             kCoFetchNamedMax clusters of each head. When it is full, all counts are halved until
//             those that become zero have made room: it follows what is fetched now. A checkpoint
//             takes kLinkRowsPerCheckpointMax rows, at most 120 bytes each; the rest waits for the
//             next one.
// Threading:  the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "common/kv/messages.h"
#include "kv-node/layout/rows.h"

namespace cairn::kv {

inline constexpr std::uint64_t kCoFetchSample = 16;
inline constexpr std::size_t kCoFetchClustersMax = 4096;
inline constexpr std::size_t kCoFetchNamedMax = 32;
inline constexpr std::size_t kLinkRowsPerCheckpointMax = 1024;

class CoFetches {
 public:
  // A fetch is being answered: counts it if it is one of the sample. Returns whether it was. The
  // sample follows no period: fetches come in the same order of layers at every step.
  bool Note(std::int32_t layer, std::span<const ClusterRef> clusters);
  void Count(std::int32_t layer, std::span<const ClusterRef> clusters);
  // The cluster is gone: its links and those to it.
  void Forget(const ClusterKey& key);

  // The links of a cluster, strongest first, at most kLinksOfClusterMax.
  std::span<const ClusterLink> LinksOf(const ClusterKey& key) const;

  // ---- rows ----
  // A stored row. `own`: of the open segment; rows of older segments come behind, and do not count
  // where a newer one is known. Ignored when it is full.
  void Load(const ClusterKey& key, std::vector<ClusterLink> links, bool own);
  struct Changes {
    std::vector<std::pair<ClusterKey, std::vector<ClusterLink>>> put;
    std::vector<ClusterKey> gone;  // rows to be deleted
  };
  // What differs enough from the rows: order and members of a cluster's links, and counts by
  // powers of two. Rows to be deleted come first, so that no more than kCoFetchClustersMax are
  // stored. A cluster for which `exists` is false waits.
  Changes TakeChanges(const std::function<bool(const ClusterKey&)>& exists);
  // The open segment was sealed: the next one has no rows yet. What is stored stays with the sealed
  // one, and is read from there.
  void BeginSegment();

  std::int64_t memory_bytes() const;

 private:
  struct Entry {
    std::vector<ClusterLink> links;  // strongest first
    bool stored = false;             // the open segment has a row
  };
  Entry& Insert(const ClusterKey& key);
  void Erase(const ClusterKey& key);
  void CountPair(const ClusterKey& key, ClusterId with);
  void Halve();

  std::uint64_t random_ = 1;  // of a linear congruential generator: the same in every run
  std::map<ClusterKey, Entry> links_;
  std::set<ClusterKey> changed_;  // of those in links_
  std::set<ClusterKey> gone_;     // not in links_, and the open segment has a row
};

}  // namespace cairn::kv
