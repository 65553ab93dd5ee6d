#include "compute-node/retrieval/clustering/sequence_clusters.h"

#include <algorithm>
#include <iterator>

#include "common/base/check.h"
#include "compute-node/retrieval/fetch_plan.h"
#include "compute-node/retrieval/policy_state.h"

namespace cairn::compute {
namespace {

// Of indices and ids in a stored state: more than any conversation has, and sums cannot overflow.
constexpr std::int64_t kStoredNumberMax = std::int64_t{1} << 48;

}  // namespace

SequenceClusters::SequenceClusters(const Options& options)
    : options_(options),
      cluster_entries_(options.cluster_entries),
      next_ids_(static_cast<std::size_t>(options.layout.layer_count), 1) {}

PlannedCluster SequenceClusters::Plan(std::int32_t head, std::int64_t index,
                                      std::int64_t stored_token_count) const {
  const std::int64_t first = index * cluster_entries_;
  const std::int64_t count = std::min(cluster_entries_, stored_token_count - first);
  return {.cluster = {head, IdAt(index)},
          .entry_count = count,
          .positions = Positions::Range(first, count)};
}

std::vector<FetchSlice> SequenceClusters::PlanAll(const PolicyOptions& options,
                                                  std::int64_t stored_token_count) const {
  std::vector<FetchSlice> plan;
  for (std::int64_t i = 0; i * cluster_entries_ < stored_token_count; ++i) {
    for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
      AddToPlan(options, Plan(head, i, stored_token_count), plan);
    }
  }
  return plan;
}

std::vector<Assignment> SequenceClusters::Store(const LeavingEntries& leaving) {
  CAIRN_CHECK(leaving.layer >= 0 && leaving.layer < options_.layout.layer_count);
  std::vector<Assignment> appended;
  const std::int64_t end = leaving.first_position + leaving.token_count;
  for (std::int64_t first = leaving.first_position; first < end;) {
    const std::int64_t cluster = first / cluster_entries_;
    const std::int64_t count = std::min(end, (cluster + 1) * cluster_entries_) - first;
    const std::int32_t first_head = options_.of_all_heads ? kAllHeads : 0;
    const std::int32_t end_head =
        options_.of_all_heads ? first_head + 1 : options_.layout.head_count;
    for (std::int32_t head = first_head; head < end_head; ++head) {
      appended.push_back({{head, IdAt(cluster)}, Positions::Range(first, count)});
    }
    std::int64_t& next_id = next_ids_[static_cast<std::size_t>(leaving.layer)];
    next_id = std::max(next_id, IdAt(cluster).value() + 1);
    first += count;
  }
  return appended;
}

std::vector<std::int64_t> SequenceClusters::NextClusterIds() const {
  return ClusterIdsOf(options_.layout, [this](std::int32_t layer, std::int32_t head) {
    const bool is_ours = (head == kAllHeads) == options_.of_all_heads;
    return is_ours ? next_ids_[static_cast<std::size_t>(layer)] : kNoClusterId;
  });
}

ClusterId SequenceClusters::IdAt(std::int64_t index) const {
  const auto behind =
      std::upper_bound(id_ranges_.begin(), id_ranges_.end(), index,
                       [](std::int64_t i, const IdRange& range) { return i < range.first_index; });
  const IdRange& range = *std::prev(behind);
  return ClusterId(range.first_id + index - range.first_index);
}

std::vector<std::int64_t> SequenceClusters::Numbers() const {
  std::vector<std::int64_t> numbers = {cluster_entries_};
  if (id_ranges_.size() == 1) return numbers;
  for (const IdRange& range : id_ranges_) {
    numbers.insert(numbers.end(), {range.first_index, range.first_id});
  }
  return numbers;
}

void SequenceClusters::Clear() {
  cluster_entries_ = options_.cluster_entries;
  id_ranges_ = {{0, 1}};
  std::fill(next_ids_.begin(), next_ids_.end(), 1);
}

absl::Status SequenceClusters::Restore(const StoredPolicyState& stored,
                                       std::span<const std::int64_t> numbers) {
  Clear();
  CAIRN_RETURN_IF_ERROR(CheckNextClusterIds(options_.layout, stored));
  CAIRN_RETURN_IF_ERROR(ReadNumbers(stored, numbers));
  const std::size_t ids_a_layer = static_cast<std::size_t>(options_.layout.head_count) + 1;
  for (std::size_t layer = 0; layer < next_ids_.size(); ++layer) {
    const std::size_t of_all = options_.of_all_heads ? ids_a_layer - 1 : 0;
    next_ids_[layer] = stored.next_cluster_ids[layer * ids_a_layer + of_all];
  }
  if (stored.token_count < stored.state_token_count) ForgetBehind(stored.token_count);
  if (std::ssize(id_ranges_) > kIdRangesMax) {
    return ResourceExhausted(
        "the conversation was forked from ever earlier tokens {} times: start "
        "a new one",
        kIdRangesMax);
  }
  return absl::OkStatus();
}

absl::Status SequenceClusters::ReadNumbers(const StoredPolicyState& stored,
                                           std::span<const std::int64_t> numbers) {
  const bool plain = numbers.size() == 1;
  const bool ranges =
      numbers.size() >= 5 && numbers.size() % 2 == 1 && std::ssize(numbers) <= kNumbersMax;
  if (!plain && !ranges) return ForeignState(options_.policy, stored);
  // Clusters of the store keep the length that they were made with, whatever the KV node's parts
  // are now.
  const std::int64_t entries = numbers[0];
  if (entries < options_.cluster_entries_min || entries > options_.cluster_entries_max) {
    return InvalidArgument("stored policy state says {} entries in a cluster: it must be {} to {}",
                           entries, options_.cluster_entries_min, options_.cluster_entries_max);
  }
  cluster_entries_ = entries;
  if (plain) return absl::OkStatus();
  id_ranges_.clear();
  for (std::size_t i = 1; i < numbers.size(); i += 2) {
    const IdRange range{numbers[i], numbers[i + 1]};
    if (range.first_index > kStoredNumberMax || range.first_id < 1 ||
        range.first_id > kStoredNumberMax) {
      return ForeignState(options_.policy, stored);
    }
    const bool fits = id_ranges_.empty()
                          ? range.first_index == 0 && range.first_id == 1
                          : range.first_index > id_ranges_.back().first_index &&
                                range.first_id >= id_ranges_.back().first_id + range.first_index -
                                                      id_ranges_.back().first_index;
    if (!fits) return ForeignState(options_.policy, stored);
    id_ranges_.push_back(range);
  }
  return absl::OkStatus();
}

// A cluster that keeps visible entries keeps its id.
void SequenceClusters::ForgetBehind(std::int64_t token_count) {
  const std::int64_t first_index = (token_count + cluster_entries_ - 1) / cluster_entries_;
  const std::int64_t next_id = *std::max_element(next_ids_.begin(), next_ids_.end());
  if (IdAt(first_index).value() >= next_id) return;
  while (id_ranges_.back().first_index >= first_index && id_ranges_.size() > 1) {
    id_ranges_.pop_back();
  }
  if (first_index == 0) {
    id_ranges_.back().first_id = next_id;
  } else {
    id_ranges_.push_back({first_index, next_id});
  }
  std::fill(next_ids_.begin(), next_ids_.end(), next_id);
}

}  // namespace cairn::compute
