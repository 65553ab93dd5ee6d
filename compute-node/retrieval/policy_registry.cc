#include "compute-node/retrieval/policy_registry.h"

#include <algorithm>
#include <iterator>

#include <absl/strings/str_join.h>

#include "compute-node/kernels/centroids.h"
#include "compute-node/retrieval/baselines/full_policy.h"
#include "compute-node/retrieval/baselines/local_policy.h"
#include "compute-node/retrieval/baselines/page_policy.h"
#include "compute-node/retrieval/baselines/static_policy.h"
#include "compute-node/retrieval/baselines/token_policy.h"
#include "compute-node/retrieval/dynakv/dynakv_policy.h"
#include "compute-node/retrieval/kvswap/kvswap_policy.h"

namespace cairn::compute {
namespace {

using Made = absl::StatusOr<PolicyKind::Policy>;

template <typename Policy>
Made Make(const PolicyOptions& options) {
  return std::make_unique<Policy>(options);
}

Made MakeDynaKv(const PolicyOptions& options) {
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

constexpr PolicyKind kKinds[] = {
    {.name = "full", .attends_everything = true, .make = Make<FullPolicy>},
    {.name = "dynakv", .may_select_ahead = true, .make = MakeDynaKv},
    {.name = "kvswap", .may_select_ahead = true, .make = Make<KvSwapPolicy>},
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
