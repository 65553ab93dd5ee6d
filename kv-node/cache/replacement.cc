#include "kv-node/cache/replacement.h"

#include <algorithm>

#include "common/base/check.h"

namespace cairn::kv {
namespace {

constexpr std::pair<ReplacementPolicy, std::string_view> kNames[] = {
    {ReplacementPolicy::kClusterAligned, "cluster_aligned"},
    {ReplacementPolicy::kLru, "lru"},
    {ReplacementPolicy::kLfu, "lfu"},
    {ReplacementPolicy::kFifo, "fifo"}};

}  // namespace

absl::StatusOr<ReplacementPolicy> ParseReplacementPolicy(std::string_view name) {
  for (const auto& [policy, known] : kNames) {
    if (name == known) return policy;
  }
  return InvalidArgument("\"{}\" is none of cluster_aligned, lru, lfu, fifo", name);
}

std::string_view ReplacementPolicyName(ReplacementPolicy policy) {
  for (const auto& [known, name] : kNames) {
    if (policy == known) return name;
  }
  CAIRN_CHECK(false);
  return {};
}

void Replacement::Insert(Key key, std::int64_t page_count, ReplacementRank& rank) {
  rank.use_count = 1;
  Place(key, page_count, rank);
}

void Replacement::Touch(Key key, std::int64_t page_count, ReplacementRank& rank) {
  ++rank.use_count;
  if (policy_ == ReplacementPolicy::kFifo && rank.rank >= 0) return;
  Erase(key, rank);
  Place(key, page_count, rank);
}

void Replacement::Place(Key key, std::int64_t page_count, ReplacementRank& rank) {
  rank.sequence = ++last_sequence_;
  switch (policy_) {
    case ReplacementPolicy::kClusterAligned:
      rank.rank = age_ + 1.0 / static_cast<double>(page_count);
      break;
    case ReplacementPolicy::kLfu:
      rank.rank = static_cast<double>(rank.use_count);
      break;
    case ReplacementPolicy::kLru:
    case ReplacementPolicy::kFifo:
      rank.rank = 0;  // the sequence decides
      break;
  }
  CAIRN_CHECK(order_.insert({rank.rank, rank.sequence, key}).second);
}

void Replacement::MoveToFront(Key key, ReplacementRank& rank) {
  Erase(key, rank);
  rank.rank = -1;
  rank.sequence = ++last_sequence_;
  CAIRN_CHECK(order_.insert({rank.rank, rank.sequence, key}).second);
}

void Replacement::Erase(Key key, const ReplacementRank& rank) {
  CAIRN_CHECK_EQ(order_.erase({rank.rank, rank.sequence, key}), std::size_t{1});
}

void Replacement::Evicted(const ReplacementRank& rank) {
  if (policy_ == ReplacementPolicy::kClusterAligned) age_ = std::max(age_, rank.rank);
}

}  // namespace cairn::kv
