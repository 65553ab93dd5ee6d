#include "compute-node/session/memory_shares.h"

#include <algorithm>

namespace cairn::compute {
namespace {

constexpr std::int64_t kBudgetShare = 2;
// Of a cluster without its entries and codes: 25 to 28 in the index, and 65 to 75 in the KV node,
// whose rows are in memory while the conversation is open.
constexpr std::int64_t kClusterBytes = 100;

}  // namespace

std::int64_t MemoryShares::Room(std::int32_t layer) const {
  const std::int64_t clusters_bytes = policy_.ClusterCount(layer) * kClusterBytes * layer_count_;
  return std::max<std::int64_t>(
      0, limits_.dram_budget_bytes / kBudgetShare - window_bytes_ - clusters_bytes);
}

bool MemoryShares::KeepsIndex(std::int32_t layer) const {
  return limits_.keep_index && policy_.IndexBytes(layer) * (layer + 1) <= Room(layer);
}

std::int64_t MemoryShares::KeptBytes(std::int32_t layer) const {
  if (!limits_.keep_clusters) return 0;
  const std::int64_t room = Room(layer);
  if (!limits_.keep_index) return room / layer_count_;
  return std::max<std::int64_t>(0, room / layer_count_ - policy_.IndexBytes(layer));
}

}  // namespace cairn::compute
