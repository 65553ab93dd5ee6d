// TokenPolicy chooses the best single tokens of each KV head, with all keys in memory (KeptKeys)
// and entries in sequence order on flash.
//
// As `no-cluster` a token's score is its key times the query, summed over the heads of the group:
// the baseline of the DynaKV paper, which pays for every token with a read of its own. As `oracle`
// it is the attention that the token gets: each query head's softmax over what has left the window,
// summed over the group. No policy that reads as much sees more of it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "compute-node/retrieval/baselines/kept_keys.h"
#include "compute-node/retrieval/baselines/page_policy.h"

namespace cairn::compute {

class TokenPolicy : public PagePolicy {
 public:
  enum class Score : std::uint8_t { kQuerySum, kAttention };

  // `name` is a literal.
  TokenPolicy(std::string_view name, Score score, const PolicyOptions& options);

  absl::Status RestoreState(const StoredPolicyState& stored) override;
  absl::Status Rebuild(std::int32_t layer, std::span<const LoadedCluster> clusters) override {
    return keys_.Rebuild(layer, clusters);
  }

 protected:
  std::vector<std::int64_t> Choose(const SelectionInput& input, std::int32_t head,
                                   std::int64_t count) const override;
  void Keep(const LeavingEntries& leaving) override { keys_.Append(leaving); }

 private:
  std::vector<float> Scores(const SelectionInput& input, std::int32_t head) const;

  const Score score_;
  KeptKeys keys_;
};

}  // namespace cairn::compute
