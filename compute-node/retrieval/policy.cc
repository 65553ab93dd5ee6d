#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

std::optional<std::vector<Positions>> BasicPolicy::SelectHeld(
    const SelectionInput& /*input*/) const {
  return std::nullopt;
}

std::vector<std::vector<ClusterId>> BasicPolicy::Estimate(
    const SelectionInput& /*input*/, std::span<const FetchSlice> /*plan*/) const {
  return {};
}

void BasicPolicy::LoadMeans(std::int32_t /*layer*/, std::int32_t /*head*/,
                            std::span<const ClusterId> /*clusters*/, KvBlock& block,
                            std::span<float> /*counts*/) const {
  block.entry_count = 0;
}

std::int64_t BasicPolicy::WindowTokens(std::int64_t /*token_count*/) const { return 0; }

std::vector<ClusterSplit> BasicPolicy::Adapt(std::int32_t /*layer*/,
                                             std::span<const LoadedCluster> /*clusters*/) {
  return {};
}

std::vector<ClusterGroup> BasicPolicy::Regroup(std::int32_t /*layer*/) { return {}; }

std::vector<ClusterSplit> BasicPolicy::Recluster(
    std::int32_t /*layer*/, std::span<const std::vector<LoadedCluster>> /*groups*/,
    ThreadPool& /*pool*/) {
  return {};
}

absl::Status BasicPolicy::RestoreHeld(std::int32_t layer, const HeldEntry& held) {
  return InvalidArgument("policy {} holds nothing back, but layer {} has position {} held",
                         traits_.name, layer, held.position);
}

absl::Status BasicPolicy::Rebuild(std::int32_t /*layer*/,
                                  std::span<const LoadedCluster> /*clusters*/) {
  return absl::OkStatus();
}

}  // namespace cairn::compute
