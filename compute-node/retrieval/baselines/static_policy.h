// StaticPolicy chooses single tokens by product-quantised keys whose codebooks are trained on the
// first chunk of the first prompt and never change: PQCache (Zhang et al., 2024), the baseline
// "static-cluster". A token's score is each query head's softmax over the approximate products,
// summed over the group. Entries lie in sequence order, as PQCache keeps them.
//
// What becomes of keys that come later, and are unlike those of the first chunk, is what makes it a
// baseline: they get the nearest of the old codes (greedy, static assignment).
//
// A first chunk from which fewer than 64 entries leave the window trains nothing: until 64 have
// left, the newest of them are attended that fit.
#pragma once

#include <cstdint>
#include <vector>

#include "compute-node/retrieval/baselines/page_policy.h"
#include "compute-node/retrieval/baselines/product_codes.h"

namespace cairn::compute {

class StaticPolicy : public PagePolicy {
 public:
  explicit StaticPolicy(const PolicyOptions& options);

  std::int64_t memory_bytes() const override { return codes_.size_bytes(); }
  PutPolicyState SaveState() const override;
  absl::Status RestoreState(const StoredPolicyState& stored) override;
  absl::Status Rebuild(std::int32_t layer, std::span<const LoadedCluster> clusters) override {
    return codes_.Rebuild(layer, clusters, stored_trained_count_);
  }

 protected:
  std::vector<std::int64_t> Choose(const SelectionInput& input, std::int32_t head,
                                   std::int64_t count) const override;
  void Keep(const LeavingEntries& leaving) override { codes_.Append(leaving); }

 private:
  ProductCodes codes_;
  std::int64_t stored_trained_count_ = 0;  // of the state that was restored
};

}  // namespace cairn::compute
