#include "compute-node/retrieval/policy.h"

#include <array>

#include <fmt/ranges.h>

#include "compute-node/kernels/centroids.h"
#include "compute-node/retrieval/bound_policies.h"
#include "compute-node/retrieval/dynakv_policy.h"
#include "compute-node/retrieval/full_policy.h"
#include "compute-node/retrieval/local_policy.h"
#include "compute-node/retrieval/static_policy.h"
#include "compute-node/retrieval/token_policy.h"

namespace cairn::compute {
namespace {

constexpr std::array<std::string_view, 12> kPolicyNames = {"full",
                                                           "dynakv",
                                                           "oracle",
                                                           "no-cluster",
                                                           "static-cluster",
                                                           "static-cluster-fixed",
                                                           "local-cluster",
                                                           "local-cluster-fixed",
                                                           "local-cluster-40",
                                                           "local-cluster-40-fixed",
                                                           "streaming",
                                                           "random"};

// Each batch becomes 8 clusters, as published, or 40: those of dynakv's size.
constexpr std::int64_t kPublishedEntries = kLocalBatchEntries / 8;
constexpr std::int64_t kSmallEntries = kLocalBatchEntries / 40;
constexpr LocalPolicy::Variant kLocalVariants[] = {
    {"local-cluster", kPublishedEntries, StepBudget::Grows::kWithContext},
    {"local-cluster-fixed", kPublishedEntries, StepBudget::Grows::kInFirstPrompt},
    {"local-cluster-40", kSmallEntries, StepBudget::Grows::kWithContext},
    {"local-cluster-40-fixed", kSmallEntries, StepBudget::Grows::kInFirstPrompt},
};

}  // namespace

absl::Status PolicyOptions::Validate() const {
  CAIRN_RETURN_IF_ERROR(layout.Validate());
  if (part_bytes_max < 1) {
    return InvalidArgument("part_bytes_max is {}: it must be positive", part_bytes_max);
  }
  if (fetch_slice_bytes < 1 || fetch_slice_bytes > kFetchBytesMax) {
    return InvalidArgument("fetch_slice_bytes is {}: it must be 1 to {}", fetch_slice_bytes,
                           kFetchBytesMax);
  }
  if (group_size < 1) return InvalidArgument("group_size is {}: it must be positive", group_size);
  return selection.Validate();
}

std::span<const std::string_view> PolicyNames() { return kPolicyNames; }

absl::StatusOr<std::unique_ptr<RetrievalPolicy>> MakePolicy(std::string_view name,
                                                            const PolicyOptions& options) {
  CAIRN_RETURN_IF_ERROR(options.Validate());
  if (name == "full") return std::make_unique<FullPolicy>(options);
  if (name == "dynakv") {
    if (options.layout.head_dim > kCodeDimMax) {
      return InvalidArgument("policy dynakv takes heads of at most {} numbers, the model has {}",
                             kCodeDimMax, options.layout.head_dim);
    }
    auto policy = std::make_unique<DynaKvPolicy>(options);
    if (policy->state_bytes() > kPolicyStateBytesMax) {
      return InvalidArgument(
          "policy dynakv takes models of which it stores at most {} bytes: for {} layers of {} KV "
          "heads of {} numbers these are {}",
          kPolicyStateBytesMax, options.layout.layer_count, options.layout.head_count,
          options.layout.head_dim, policy->state_bytes());
    }
    return policy;
  }
  if (name == "oracle") {
    return std::make_unique<TokenPolicy>("oracle", TokenPolicy::Score::kAttention, options);
  }
  if (name == "no-cluster") {
    return std::make_unique<TokenPolicy>("no-cluster", TokenPolicy::Score::kQuerySum, options);
  }
  if (name == "static-cluster") {
    return std::make_unique<StaticPolicy>("static-cluster", StepBudget::Grows::kWithContext,
                                          options);
  }
  if (name == "static-cluster-fixed") {
    return std::make_unique<StaticPolicy>("static-cluster-fixed", StepBudget::Grows::kInFirstPrompt,
                                          options);
  }
  for (const LocalPolicy::Variant& variant : kLocalVariants) {
    if (name == variant.name) return std::make_unique<LocalPolicy>(variant, options);
  }
  if (name == "streaming") return std::make_unique<StreamingPolicy>(options);
  if (name == "random") return std::make_unique<RandomPolicy>(options);
  return InvalidArgument("unknown retrieval policy '{}': known are: {}", name,
                         fmt::join(kPolicyNames, ", "));
}

}  // namespace cairn::compute
