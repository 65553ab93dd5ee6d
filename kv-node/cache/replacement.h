// Replacement says which slot of the cache leaves first. Four policies, so that they can be
// compared: the default is made for clusters, the others are the textbook's.
//
// kClusterAligned: small slots stay, large ones go first, because a large one costs more memory for
//   the one request that it saves; weighted by age as GreedyDual-Size does it with equal costs (Cao
//   and Irani, "Cost-Aware WWW Proxy Caching Algorithms", 1997, section 3). What was updated lately
//   is kept apart in a share of its own (DynaKV, section 6.2, principles 1 and 2).
//
// Threading:  not synchronised.
#pragma once

#include <cstdint>
#include <set>
#include <string_view>
#include <utility>

#include "common/base/status.h"

namespace cairn::kv {

enum class ReplacementPolicy : std::uint8_t { kClusterAligned, kLru, kLfu, kFifo };

// "cluster_aligned", "lru", "lfu" or "fifo"; INVALID_ARGUMENT otherwise.
absl::StatusOr<ReplacementPolicy> ParseReplacementPolicy(std::string_view name);
std::string_view ReplacementPolicyName(ReplacementPolicy policy);

// An item's place in the order. The item holds it; only Replacement reads it.
struct ReplacementRank {
  double rank = 0;             // below 0: moved to the front
  std::uint64_t sequence = 0;  // breaks ties: the older leaves first
  std::int64_t use_count = 0;
};

class Replacement {
 public:
  using Key = std::uint64_t;  // names an item

  explicit Replacement(ReplacementPolicy policy) : policy_(policy) {}

  void Insert(Key key, std::int64_t page_count, ReplacementRank& rank);
  // The item was used once more.
  void Touch(Key key, std::int64_t page_count, ReplacementRank& rank);
  // The item is first in the order until it is used again; of two such the older is.
  void MoveToFront(Key key, ReplacementRank& rank);
  void Erase(Key key, const ReplacementRank& rank);
  // The first item in the order for which `may_leave(key)` holds; 0: there is none. It stays in the
  // order until it is erased.
  template <typename Fn>
  Key Victim(Fn&& may_leave) {
    for (const Entry& entry : order_) {
      if (may_leave(entry.key)) return entry.key;
    }
    return 0;
  }
  // An item left because of its rank: what comes later ranks above it.
  void Evicted(const ReplacementRank& rank);

 private:
  struct Entry {
    double rank;
    std::uint64_t sequence;
    Key key;
    friend bool operator<(const Entry& a, const Entry& b) {
      return std::pair(a.rank, a.sequence) < std::pair(b.rank, b.sequence);
    }
  };
  void Place(Key key, std::int64_t page_count, ReplacementRank& rank);

  const ReplacementPolicy policy_;
  std::set<Entry> order_;
  std::uint64_t last_sequence_ = 0;
  double age_ = 0;  // the rank of the last victim of kClusterAligned
};

}  // namespace cairn::kv
