// CoFetches counts which clusters a session fetches together, so that they can be placed together:
// pairs within one (layer, head), from about one fetch in kCoFetchSample. In memory only: an
// attachment begins without counts.
//
// Limits:     kCoFetchClustersMax clusters with kRelatedMax links each; of a fetch the first
//             kCoFetchNamedMax clusters of each head. What is above them is not counted.
// Threading:  the engine thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "common/kv/messages.h"
#include "kv-node/layout/rows.h"

namespace cairn::kv {

inline constexpr std::uint64_t kCoFetchSample = 16;
inline constexpr std::size_t kCoFetchClustersMax = 4096;
inline constexpr std::size_t kCoFetchNamedMax = 32;
inline constexpr std::size_t kRelatedMax = 8;

class CoFetches {
 public:
  // A fetch is being answered: counts it if it is one of the sample. Returns whether it was. The
  // sample follows no period: fetches come in the same order of layers at every step.
  bool Note(std::int32_t layer, std::span<const ClusterRef> clusters);
  void Count(std::int32_t layer, std::span<const ClusterRef> clusters);
  // The clusters that were most often fetched with it, strongest first, at most kRelatedMax.
  std::vector<ClusterId> RelatedTo(const ClusterKey& key) const;
  // The cluster is gone.
  void Forget(const ClusterKey& key) { links_.erase(key); }

  std::int64_t memory_bytes() const;

 private:
  struct Link {
    ClusterId cluster;
    std::int32_t count = 0;
  };
  void CountPair(const ClusterKey& key, ClusterId with);
  void MakeRoom();

  std::uint64_t random_ = 1;  // of a linear congruential generator: the same in every run
  std::map<ClusterKey, std::vector<Link>> links_;
};

}  // namespace cairn::kv
