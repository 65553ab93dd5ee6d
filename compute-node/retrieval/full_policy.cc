#include "compute-node/retrieval/full_policy.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace cairn::compute {
namespace {

// Version 1 has the entries of a cluster alone; 2 has the ranges of ids behind it.
constexpr std::int32_t kPlainVersion = 1;
constexpr std::int32_t kRangesVersion = 2;

// Of indices and ids in a stored state: more than any conversation has, and sums cannot overflow.
constexpr std::int64_t kStoredNumberMax = std::int64_t{1} << 48;

// Whole attention blocks of 32 entries where possible: then no block of a long conversation is
// shorter than the others, wherever a cluster ends.
constexpr std::int64_t kPreferredMultiple = 32;

std::int64_t ClusterEntries(const PolicyOptions& options) {
  const std::int64_t fitting = options.part_bytes_max / options.layout.EntryBytes(0);
  const std::int64_t entries = std::clamp(fitting, kFullClusterEntriesMin, kFullClusterEntriesMax);
  return entries < kPreferredMultiple ? entries : entries / kPreferredMultiple * kPreferredMultiple;
}

}  // namespace

FullPolicy::FullPolicy(const PolicyOptions& options)
    : options_(options),
      cluster_entries_(ClusterEntries(options)),
      next_ids_(static_cast<std::size_t>(options.layout.layer_count), 1) {}

std::vector<FetchSlice> FullPolicy::Select(const SelectionInput& input) const {
  const std::int64_t entry_bytes = options_.layout.EntryBytes(0);
  std::vector<FetchSlice> slices;
  for (std::int64_t first = 0; first < input.stored_token_count; first += cluster_entries_) {
    const std::int64_t count = std::min(cluster_entries_, input.stored_token_count - first);
    const std::int64_t bytes = count * entry_bytes;
    const ClusterId id = IdAt(first / cluster_entries_);
    for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
      const bool fits = !slices.empty() &&
                        slices.back().bytes + bytes <= options_.fetch_slice_bytes &&
                        std::ssize(slices.back().clusters) < kFetchClusterCountMax;
      if (!fits) slices.emplace_back();
      slices.back().clusters.push_back({.cluster = {head, id},
                                        .entry_count = count,
                                        .positions = Positions::Range(first, count)});
      slices.back().bytes += bytes;
    }
  }
  return slices;
}

StoreActions FullPolicy::Store(const LeavingEntries& leaving) {
  CAIRN_CHECK(leaving.layer >= 0 && leaving.layer < options_.layout.layer_count);
  StoreActions actions;
  const std::int64_t end = leaving.first_position + leaving.token_count;
  for (std::int64_t first = leaving.first_position; first < end;) {
    const std::int64_t cluster = first / cluster_entries_;
    const std::int64_t count = std::min(end, (cluster + 1) * cluster_entries_) - first;
    for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
      actions.appended.push_back({{head, IdAt(cluster)}, Positions::Range(first, count)});
    }
    std::int64_t& next_id = next_ids_[static_cast<std::size_t>(leaving.layer)];
    next_id = std::max(next_id, IdAt(cluster).value() + 1);
    first += count;
  }
  return actions;
}

std::vector<std::int64_t> FullPolicy::NextClusterIds() const {
  std::vector<std::int64_t> ids;
  for (const std::int64_t next_id : next_ids_) {
    ids.insert(ids.end(), static_cast<std::size_t>(options_.layout.head_count), next_id);
    ids.push_back(1);  // no cluster of all heads
  }
  return ids;
}

ClusterId FullPolicy::IdAt(std::int64_t index) const {
  const auto behind =
      std::upper_bound(id_ranges_.begin(), id_ranges_.end(), index,
                       [](std::int64_t i, const IdRange& range) { return i < range.first_index; });
  const IdRange& range = *std::prev(behind);
  return ClusterId(range.first_id + index - range.first_index);
}

PutPolicyState FullPolicy::SaveState() const {
  PutPolicyState saved;
  std::vector<std::int64_t> numbers = {cluster_entries_};
  saved.version = kPlainVersion;
  if (id_ranges_.size() > 1) {
    saved.version = kRangesVersion;
    for (const IdRange& range : id_ranges_) {
      numbers.insert(numbers.end(), {range.first_index, range.first_id});
    }
  }
  saved.state.resize(numbers.size() * sizeof(std::int64_t));
  std::memcpy(saved.state.data(), numbers.data(), saved.state.size());
  return saved;
}

absl::Status FullPolicy::RestoreState(const StoredPolicyState& stored) {
  const std::size_t layer_count = next_ids_.size();
  id_ranges_ = {{0, 1}};
  if (stored.version == 0 && stored.next_cluster_ids.empty()) {
    cluster_entries_ = ClusterEntries(options_);
    std::fill(next_ids_.begin(), next_ids_.end(), 1);
    return absl::OkStatus();
  }
  const std::size_t ids_a_layer = static_cast<std::size_t>(options_.layout.head_count) + 1;
  if (stored.next_cluster_ids.size() != layer_count * ids_a_layer) {
    return InvalidArgument("stored policy state has {} next cluster ids, {} are needed",
                           stored.next_cluster_ids.size(), layer_count * ids_a_layer);
  }
  CAIRN_RETURN_IF_ERROR(ReadState(stored));
  for (std::size_t layer = 0; layer < layer_count; ++layer) {
    next_ids_[layer] = stored.next_cluster_ids[layer * ids_a_layer];
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

absl::Status FullPolicy::ReadState(const StoredPolicyState& stored) {
  const auto foreign = [&] {
    return InvalidArgument(
        "stored policy state has version {} and {} bytes: not one of policy full", stored.version,
        stored.state.size());
  };
  constexpr std::size_t kNumberBytes = sizeof(std::int64_t);
  std::vector<std::int64_t> numbers(stored.state.size() / kNumberBytes);
  const bool plain = stored.version == kPlainVersion && numbers.size() == 1;
  const bool ranges = stored.version == kRangesVersion && numbers.size() >= 5 &&
                      numbers.size() % 2 == 1 && std::ssize(numbers) <= 1 + 2 * kIdRangesMax;
  if (!(plain || ranges) || stored.state.size() % kNumberBytes != 0) return foreign();
  std::memcpy(numbers.data(), stored.state.data(), stored.state.size());
  // Clusters of the store keep the length that they were made with, whatever the KV node's parts
  // are now.
  const std::int64_t entries = numbers[0];
  if (entries < kFullClusterEntriesMin || entries > kFullClusterEntriesMax) {
    return InvalidArgument("stored policy state says {} entries in a cluster: it must be {} to {}",
                           entries, kFullClusterEntriesMin, kFullClusterEntriesMax);
  }
  cluster_entries_ = entries;
  if (plain) return absl::OkStatus();
  id_ranges_.clear();
  for (std::size_t i = 1; i < numbers.size(); i += 2) {
    const IdRange range{numbers[i], numbers[i + 1]};
    if (range.first_index > kStoredNumberMax || range.first_id < 1 ||
        range.first_id > kStoredNumberMax) {
      return foreign();
    }
    const bool fits = id_ranges_.empty()
                          ? range.first_index == 0 && range.first_id == 1
                          : range.first_index > id_ranges_.back().first_index &&
                                range.first_id >= id_ranges_.back().first_id + range.first_index -
                                                      id_ranges_.back().first_index;
    if (!fits) return foreign();
    id_ranges_.push_back(range);
  }
  return absl::OkStatus();
}

// A cluster that keeps visible entries keeps its id.
void FullPolicy::ForgetBehind(std::int64_t token_count) {
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
