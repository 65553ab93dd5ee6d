// LokiPolicy chooses single tokens by what the axes on which a KV head's keys differ most have of
// the products with the query: Loki (Singhania et al., "Loki: Low-rank Keys for Efficient Sparse
// Attention", 2024), one of the baselines of KVSwap. A token's score is each query head's softmax
// over these products, summed over the group. Entries lie in sequence order.
//
// The axes are those of the first kBasisTokensMax keys behind the sinks that leave the window, and
// until there are so many, of the first kBasisTokensMin; until then the newest are attended that
// fit. Published axes are made from other texts in advance. Their codes have 8 bits.
//
// Keys are kept whole besides, to make codes anew when the axes change: they are not charged.
//
// Threading:  as RetrievalPolicy; Choose may run for several heads at once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "compute-node/retrieval/baselines/kept_keys.h"
#include "compute-node/retrieval/baselines/page_policy.h"
#include "compute-node/retrieval/kvswap/key_basis.h"
#include "compute-node/retrieval/kvswap/small_keys.h"

namespace cairn::compute {

class LokiPolicy : public PagePolicy {
 public:
  explicit LokiPolicy(const PolicyOptions& options);

  std::int64_t memory_bytes() const override;
  absl::Status RestoreState(const StoredPolicyState& stored) override;
  absl::Status Rebuild(std::int32_t layer, std::span<const LoadedCluster> clusters) override;

 protected:
  std::vector<std::int64_t> Choose(const SelectionInput& input, std::int32_t head,
                                   std::int64_t count) const override;
  void Keep(const LeavingEntries& leaving) override;

 private:
  struct Head {
    explicit Head(const KeyCodeShape& shape) : codes(shape) {}

    std::optional<KeyBasis> basis;
    std::int64_t learned_count = 0;  // keys that the basis is of
    SmallKeys codes;
  };

  std::size_t Row(std::int32_t layer, std::int32_t head) const {
    return static_cast<std::size_t>(std::int64_t{layer} * options().layout.head_count + head);
  }
  Head& HeadAt(std::int32_t layer, std::int32_t head) { return heads_[Row(layer, head)]; }
  const Head& HeadAt(std::int32_t layer, std::int32_t head) const {
    return heads_[Row(layer, head)];
  }
  // Gives codes to what has none of the newest axes.
  void Encode(std::int32_t layer, std::int32_t head);
  void Clear();

  const KeyCodeShape shape_;
  KeptKeys keys_;
  std::vector<Head> heads_;  // by (layer, head)
};

}  // namespace cairn::compute
