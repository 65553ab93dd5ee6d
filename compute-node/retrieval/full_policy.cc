#include "compute-node/retrieval/full_policy.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace cairn::compute {
namespace {

constexpr std::int32_t kStateVersion = 1;

// Whole attention blocks of 32 entries where possible: then no block of a long conversation is
// shorter than the others, wherever a cluster ends.
constexpr std::int64_t kPreferredMultiple = 32;

std::int64_t ClusterEntries(const PolicyOptions& options) {
  const std::int64_t fitting = options.part_bytes_max / options.layout.EntryBytes(0);
  const std::int64_t entries = std::clamp(fitting, kFullClusterEntriesMin, kFullClusterEntriesMax);
  return entries < kPreferredMultiple ? entries : entries / kPreferredMultiple * kPreferredMultiple;
}

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
  return absl::OkStatus();
}

FullPolicy::FullPolicy(const PolicyOptions& options)
    : options_(options),
      cluster_entries_(ClusterEntries(options)),
      next_ids_(static_cast<std::size_t>(options.layout.layer_count), 1) {}

std::vector<FetchSlice> FullPolicy::Select(const SelectionInput& input) {
  const std::int64_t entry_bytes = options_.layout.EntryBytes(0);
  std::vector<FetchSlice> slices;
  for (std::int64_t first = 0; first < input.stored_token_count; first += cluster_entries_) {
    const std::int64_t count = std::min(cluster_entries_, input.stored_token_count - first);
    const std::int64_t bytes = count * entry_bytes;
    const ClusterId id(first / cluster_entries_ + 1);
    for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
      const bool fits = !slices.empty() &&
                        slices.back().bytes + bytes <= options_.fetch_slice_bytes &&
                        std::ssize(slices.back().clusters) < kFetchClusterCountMax;
      if (!fits) slices.emplace_back();
      slices.back().clusters.push_back({{head, id}, Positions::Range(first, count)});
      slices.back().bytes += bytes;
    }
  }
  return slices;
}

std::vector<Assignment> FullPolicy::Store(const LeavingEntries& leaving) {
  CAIRN_CHECK(leaving.layer >= 0 && leaving.layer < options_.layout.layer_count);
  std::vector<Assignment> assignments;
  const std::int64_t end = leaving.first_position + leaving.token_count;
  for (std::int64_t first = leaving.first_position; first < end;) {
    const std::int64_t cluster = first / cluster_entries_;
    const std::int64_t count = std::min(end, (cluster + 1) * cluster_entries_) - first;
    for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
      assignments.push_back({{head, ClusterId(cluster + 1)}, first, count});
    }
    std::int64_t& next_id = next_ids_[static_cast<std::size_t>(leaving.layer)];
    next_id = std::max(next_id, cluster + 2);
    first += count;
  }
  return assignments;
}

std::vector<std::int64_t> FullPolicy::NextClusterIds() const {
  std::vector<std::int64_t> ids;
  for (const std::int64_t next_id : next_ids_) {
    ids.insert(ids.end(), static_cast<std::size_t>(options_.layout.head_count), next_id);
    ids.push_back(1);  // no cluster of all heads
  }
  return ids;
}

PutPolicyState FullPolicy::SaveState() const {
  PutPolicyState saved;
  saved.version = kStateVersion;
  saved.state.resize(sizeof(cluster_entries_));
  std::memcpy(saved.state.data(), &cluster_entries_, sizeof(cluster_entries_));
  return saved;
}

absl::Status FullPolicy::RestoreState(std::int32_t version, std::string_view state,
                                      std::span<const std::int64_t> next_cluster_ids) {
  const std::size_t layer_count = next_ids_.size();
  if (version == 0 && next_cluster_ids.empty()) {
    cluster_entries_ = ClusterEntries(options_);
    std::fill(next_ids_.begin(), next_ids_.end(), 1);
    return absl::OkStatus();
  }
  const std::size_t ids_a_layer = static_cast<std::size_t>(options_.layout.head_count) + 1;
  if (next_cluster_ids.size() != layer_count * ids_a_layer) {
    return InvalidArgument("stored policy state has {} next cluster ids, {} are needed",
                           next_cluster_ids.size(), layer_count * ids_a_layer);
  }
  // Clusters of the store keep the length that they were made with, whatever the KV node's parts
  // are now.
  std::int64_t entries = 0;
  if (version != kStateVersion || state.size() != sizeof(entries)) {
    return InvalidArgument(
        "stored policy state has version {} and {} bytes: not one of policy full", version,
        state.size());
  }
  std::memcpy(&entries, state.data(), sizeof(entries));
  if (entries < kFullClusterEntriesMin || entries > kFullClusterEntriesMax) {
    return InvalidArgument("stored policy state says {} entries in a cluster: it must be {} to {}",
                           entries, kFullClusterEntriesMin, kFullClusterEntriesMax);
  }
  cluster_entries_ = entries;
  for (std::size_t layer = 0; layer < layer_count; ++layer) {
    next_ids_[layer] = next_cluster_ids[layer * ids_a_layer];
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RetrievalPolicy>> MakePolicy(std::string_view name,
                                                            const PolicyOptions& options) {
  CAIRN_RETURN_IF_ERROR(options.Validate());
  if (name == "full") return std::make_unique<FullPolicy>(options);
  return InvalidArgument("unknown retrieval policy '{}': known are: full", name);
}

}  // namespace cairn::compute
