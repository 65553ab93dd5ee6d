#include "compute-node/retrieval/policy_registry.h"

#include <algorithm>
#include <iterator>

#include <absl/strings/str_join.h>

#include "compute-node/kernels/centroids.h"
#include "compute-node/retrieval/baselines/full_policy.h"
#include "compute-node/retrieval/baselines/landmark_policy.h"
#include "compute-node/retrieval/baselines/local_policy.h"
#include "compute-node/retrieval/baselines/loki_policy.h"
#include "compute-node/retrieval/baselines/page_policy.h"
#include "compute-node/retrieval/baselines/static_policy.h"
#include "compute-node/retrieval/baselines/token_policy.h"
#include "compute-node/retrieval/dynakv/dynakv_policy.h"
#include "compute-node/retrieval/eviction/attention_profile.h"
#include "compute-node/retrieval/eviction/eviction_policy.h"
#include "compute-node/retrieval/kvswap/kvswap_policy.h"

namespace cairn::compute {
namespace {

using Made = absl::StatusOr<PolicyKind::Policy>;

template <typename Policy>
Made Make(const PolicyOptions& options) {
  return std::make_unique<Policy>(options);
}

// `advice`: what makes it less, or nothing.
absl::Status CheckStateBytes(std::string_view name, std::int64_t bytes, const EntryLayout& layout,
                             std::string_view advice) {
  if (bytes <= kPolicyStateBytesMax) return absl::OkStatus();
  return InvalidArgument(
      "policy {} takes models of which it stores at most {} bytes: for {} layers of {} KV heads of "
      "{} numbers these are {}{}",
      name, kPolicyStateBytesMax, layout.layer_count, layout.head_count, layout.head_dim, bytes,
      advice);
}

Made MakeDynaKv(const PolicyOptions& options) {
  if (options.layout.head_dim > kCodeDimMax) {
    return InvalidArgument("policy dynakv takes heads of at most {} numbers, the model has {}",
                           kCodeDimMax, options.layout.head_dim);
  }
  auto policy = std::make_unique<DynaKvPolicy>(options);
  CAIRN_RETURN_IF_ERROR(CheckStateBytes("dynakv", policy->state_bytes(), options.layout, ""));
  return policy;
}

// InfiniGen (Lee et al., 2024) as KVSwap compares with it: single tokens of all KV heads, by the
// same small keys.
Made MakeInfiniGen(const PolicyOptions& options) {
  PolicyOptions of_tokens = options;
  of_tokens.selection.cluster_target_entries = 1;
  return std::make_unique<KvSwapPolicy>(of_tokens, "infinigen");
}

// Each batch becomes 8 clusters, as published, or 40: those of dynakv's size.
Made MakeLocal(const PolicyOptions& options) {
  return std::make_unique<LocalPolicy>("local-cluster", kLocalBatchEntries / 8, options);
}
Made MakeLocal40(const PolicyOptions& options) {
  return std::make_unique<LocalPolicy>("local-cluster-40", kLocalBatchEntries / 40, options);
}

Made MakeOracle(const PolicyOptions& options) {
  return std::make_unique<TokenPolicy>("oracle", TokenPolicy::Score::kAttention, options);
}
Made MakeNoCluster(const PolicyOptions& options) {
  return std::make_unique<TokenPolicy>("no-cluster", TokenPolicy::Score::kQuerySum, options);
}

Made MakeEviction(const EvictionPolicy::Kind& kind, const PolicyOptions& options) {
  auto policy = std::make_unique<EvictionPolicy>(kind, options);
  CAIRN_RETURN_IF_ERROR(CheckStateBytes(kind.name, policy->state_bytes_max(), options.layout,
                                        "; a lower select_tokens_max makes it less"));
  return policy;
}
template <typename Worth, auto... arguments>
std::unique_ptr<EntryWorth> MakeWorth() {
  return std::make_unique<Worth>(arguments...);
}
using Fusion = AttentionProfile::Fusion;
using Pooling = AttentionProfile::Pooling;
constexpr auto kMakePooledProfile = MakeWorth<AttentionProfile, Fusion::kSum, Pooling::kYes>;

Made MakeMorph(const PolicyOptions& options) {
  return MakeEviction({.name = "morph", .make_worth = kMakePooledProfile}, options);
}
Made MakeMorphRecall(const PolicyOptions& options) {
  return MakeEviction(
      {.name = "morph-recall", .make_worth = kMakePooledProfile, .recalled_share = 0.5}, options);
}
// As published, with either of its two ways to fuse.
Made MakeMorphSum(const PolicyOptions& options) {
  return MakeEviction(
      {.name = "morph-sum", .make_worth = MakeWorth<AttentionProfile, Fusion::kSum, Pooling::kNo>},
      options);
}
Made MakeMorphMax(const PolicyOptions& options) {
  return MakeEviction(
      {.name = "morph-max", .make_worth = MakeWorth<AttentionProfile, Fusion::kMax, Pooling::kNo>},
      options);
}
Made MakeH2o(const PolicyOptions& options) {
  return MakeEviction({.name = "h2o",
                       .prompt_tokens = kAccumulatedPromptTokens,
                       .make_worth = MakeWorth<AccumulatedWorth>},
                      options);
}
Made MakeSnapKv(const PolicyOptions& options) {
  return MakeEviction({.name = "snapkv", .make_worth = MakeWorth<VotedWorth>}, options);
}

constexpr PolicyKind kKinds[] = {
    {.name = "full", .attends_everything = true, .make = Make<FullPolicy>},
    {.name = "dynakv", .may_select_ahead = true, .make = MakeDynaKv},
    {.name = "kvswap",
     .may_select_ahead = true,
     .has_small_keys = true,
     .make = Make<KvSwapPolicy>},
    {.name = "infinigen", .may_select_ahead = true, .has_small_keys = true, .make = MakeInfiniGen},
    {.name = "loki", .make = Make<LokiPolicy>},
    {.name = "shadowkv", .make = Make<LandmarkPolicy>},
    {.name = "morph", .make = MakeMorph},
    {.name = "morph-recall", .make = MakeMorphRecall},
    {.name = "morph-sum", .make = MakeMorphSum},
    {.name = "morph-max", .make = MakeMorphMax},
    {.name = "h2o", .make = MakeH2o},
    {.name = "snapkv", .make = MakeSnapKv},
    {.name = "oracle", .make = MakeOracle},
    {.name = "no-cluster", .make = MakeNoCluster},
    {.name = "static-cluster", .make = Make<StaticPolicy>},
    {.name = "local-cluster", .make = MakeLocal},
    {.name = "local-cluster-40", .make = MakeLocal40},
    {.name = "streaming", .make = Make<StreamingPolicy>},
    {.name = "random", .make = Make<RandomPolicy>},
};

}  // namespace

std::span<const PolicyKind> PolicyKinds() { return kKinds; }

const PolicyKind* FindPolicyKind(std::string_view name) {
  const auto* found = std::ranges::find(kKinds, name, &PolicyKind::name);
  return found == std::end(kKinds) ? nullptr : found;
}

std::string PolicyNames() {
  return absl::StrJoin(kKinds, ", ",
                       [](std::string* out, const PolicyKind& kind) { *out += kind.name; });
}

absl::StatusOr<std::unique_ptr<RetrievalPolicy>> MakePolicy(std::string_view name,
                                                            const PolicyOptions& options) {
  CAIRN_RETURN_IF_ERROR(options.Validate());
  const PolicyKind* kind = FindPolicyKind(name);
  if (kind == nullptr) {
    return InvalidArgument("unknown retrieval policy '{}': known are: {}", name, PolicyNames());
  }
  return kind->make(options);
}

}  // namespace cairn::compute
