// LandmarkPolicy chooses chunks of 8 consecutive tokens by their landmark, the mean of their keys:
// how ShadowKV chooses (Sun et al., "ShadowKV: KV Cache in Shadows for High-Throughput Long-Context
// LLM Inference", 2024), one of the baselines of KVSwap. A chunk's score is each query head's
// softmax over the landmarks, summed over the group. What it does beside, keys in memory by their
// low rank so that only values are read, is not done here: it is compared for what it chooses.
//
// Threading:  as RetrievalPolicy; Choose may run for several heads at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compute-node/retrieval/baselines/kept_keys.h"
#include "compute-node/retrieval/baselines/page_policy.h"

namespace cairn::compute {

inline constexpr std::int64_t kLandmarkTokens = 8;

class LandmarkPolicy : public PagePolicy {
 public:
  explicit LandmarkPolicy(const PolicyOptions& options)
      : PagePolicy({.name = "shadowkv", .needs_keys = true, .rebuilds_from_keys = true}, options),
        keys_(options.layout) {}

  absl::Status RestoreState(const StoredPolicyState& stored) override {
    keys_.Clear();
    return PagePolicy::RestoreState(stored);
  }
  absl::Status Rebuild(std::int32_t layer, std::span<const LoadedCluster> clusters) override {
    return keys_.Rebuild(layer, clusters);
  }

 protected:
  std::vector<std::int64_t> Choose(const SelectionInput& input, std::int32_t head,
                                   std::int64_t count) const override;
  void Keep(const LeavingEntries& leaving) override { keys_.Append(leaving); }

 private:
  // Of the chunks of a head, the last one as far as it goes: (chunk, head_dim).
  std::vector<float> Landmarks(std::int32_t layer, std::int32_t head) const;

  KeptKeys keys_;
};

}  // namespace cairn::compute
