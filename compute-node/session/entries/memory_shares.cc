#include "compute-node/session/entries/memory_shares.h"

#include <algorithm>

namespace cairn::compute {
namespace {

constexpr std::int64_t kBudgetShare = 2;

}  // namespace

std::int64_t MemoryShares::KeptBytes(std::int32_t layer) const {
  if (!limits_.keep_clusters) return 0;
  const std::int64_t clusters_bytes =
      index_ == nullptr ? 0 : index_->ClusterBytes(layer) * layer_count_;
  const std::int64_t room =
      limits_.dram_budget_bytes / kBudgetShare - window_bytes_ - clusters_bytes;
  return std::max<std::int64_t>(0, room / layer_count_);
}

}  // namespace cairn::compute
