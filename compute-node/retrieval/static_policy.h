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
#include <string_view>
#include <vector>

#include "compute-node/retrieval/page_policy.h"
#include "compute-node/retrieval/product_codes.h"
#include "compute-node/retrieval/step_budget.h"

namespace cairn::compute {

class StaticPolicy : public PagePolicy {
 public:
  // `name` is a literal.
  StaticPolicy(std::string_view name, StepBudget::Grows grows, const PolicyOptions& options);

  bool needs_keys() const override { return true; }
  bool rebuilds_from_keys() const override { return true; }
  std::int64_t memory_bytes() const override { return codes_.size_bytes(); }
  std::int64_t WindowTokens(std::int64_t token_count) const override {
    return budget_.WindowTokens(token_count);
  }
  PutPolicyState SaveState() const override;
  absl::Status RestoreState(const StoredPolicyState& stored) override;
  absl::Status Rebuild(std::int32_t layer, std::span<const LoadedCluster> clusters) override {
    return codes_.Rebuild(layer, clusters, stored_trained_count_);
  }

 protected:
  std::vector<std::int64_t> Choose(const SelectionInput& input, std::int32_t head,
                                   std::int64_t count) const override;
  std::int64_t StepTokens(std::int64_t token_count) const override {
    return budget_.StepTokens(token_count);
  }
  void Keep(const LeavingEntries& leaving) override;

 private:
  absl::Status ReadState(const StoredPolicyState& stored);

  StepBudget budget_;
  ProductCodes codes_;
  std::int64_t stored_trained_count_ = 0;  // of the state that was restored
};

}  // namespace cairn::compute
