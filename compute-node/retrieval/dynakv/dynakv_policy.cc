#include "compute-node/retrieval/dynakv/dynakv_policy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "compute-node/retrieval/best_first.h"
#include "compute-node/retrieval/fetch_plan.h"
#include "compute-node/retrieval/policy_state.h"

namespace cairn::compute {
namespace {

constexpr std::int32_t kDynaKvVersion = 2;
// Clusters that do not fit what is left to attend: then what is left stays free.
constexpr int kMisfitsMax = 64;

// Of one (layer, head) in the stored state; the numbers of centre and metric follow.
struct HeadState {
  double variance_sum;
  std::int64_t variance_entries;
  std::int32_t partitioned;
  std::int32_t has_learned;
};

}  // namespace

float DynaKvPolicy::Head::Threshold() const {
  if (variance_entries == 0) return 0;
  return kThresholdFactor *
         static_cast<float>(variance_sum / static_cast<double>(variance_entries));
}

std::int64_t DynaKvPolicy::Head::HeldTotal() const {
  std::int64_t total = 0;
  for (const auto& [id, count] : held) total += count;
  return total;
}

void DynaKvPolicy::Head::CountVariance(const ClusterMoments& moments) {
  variance_sum += static_cast<double>(moments.variance) * static_cast<double>(moments.count);
  variance_entries += moments.count;
}

std::vector<float> DynaKvPolicy::Head::Stretched(std::span<const float> keys) const {
  std::vector<float> stretched(keys.begin(), keys.end());
  metric.StretchKeys(stretched);
  return stretched;
}

HeadStatistics DynaKvPolicy::Head::Statistics() const {
  HeadStatistics statistics{.held_count = HeldTotal(), .split_count = split_count};
  double sum = 0;
  double known_count = 0;
  for (std::size_t slot = 0; slot < index.slot_count(); ++slot) {
    if (!index.alive(slot) || index.flags(slot).pinned) continue;
    ++statistics.cluster_count;
    statistics.entry_count += index.count(slot);
    if (index.flags(slot).missing) continue;
    const double count = static_cast<double>(index.count(slot));
    sum += count * static_cast<double>(index.variance(slot));
    known_count += count;
  }
  if (known_count > 0) statistics.variance = sum / known_count;
  return statistics;
}

DynaKvPolicy::DynaKvPolicy(const PolicyOptions& options, std::int64_t region_entries)
    : BasicPolicy({.name = "dynakv",
                   .selects_ahead = options.selection.select_ahead,
                   .ranks_by_query_sums = true,
                   .needs_keys = true,
                   .learns_from_queries = true,
                   .needs_values = options.selection.estimate_percent > 0}),
      options_(options),
      region_entries_(region_entries) {
  Clear();
}

void DynaKvPolicy::Clear() {
  const EntryLayout& layout = options_.layout;
  const std::size_t count =
      static_cast<std::size_t>(std::int64_t{layout.layer_count} * layout.head_count);
  heads_.clear();
  heads_.reserve(count);
  while (heads_.size() < count) {
    heads_.emplace_back(layout.head_dim, options_.rotary_pairs, traits().needs_values);
  }
}

std::int64_t DynaKvPolicy::WindowTokens(std::int64_t token_count) const {
  return SparseWindowTokens(options_.selection, token_count);
}

PlannedCluster DynaKvPolicy::Plan(const Head& head, std::int32_t head_number, std::size_t slot,
                                  bool adapt) const {
  return {.cluster = {head_number, head.index.id(slot)},
          .entry_count = head.index.count(slot),
          .adapt = adapt};
}

// Clusters that the step reads whatever the query is; takes their entries off `room`.
std::vector<std::size_t> DynaKvPolicy::MustRead(const Head& head, std::int64_t token_count,
                                                std::int64_t& room) const {
  std::vector<std::size_t> slots;
  const auto take = [&](std::size_t slot) {
    slots.push_back(slot);
    room -= head.index.count(slot);
  };
  for (std::size_t slot = 0; slot < head.index.slot_count(); ++slot) {
    if (!head.index.alive(slot)) continue;
    const ClusterIndex::Flags flags = head.index.flags(slot);
    if (flags.pinned || flags.missing) take(slot);
  }
  std::vector<std::pair<ClusterId, std::int64_t>> fullest(head.held.begin(), head.held.end());
  std::stable_sort(fullest.begin(), fullest.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::int64_t held = head.HeldTotal();
  for (const auto& [id, count] : fullest) {
    if (held < HeldEntriesMax(options_.selection, token_count)) break;
    const std::optional<std::size_t> slot = head.index.Find(id);
    CAIRN_CHECK(slot.has_value());
    const bool taken = std::find(slots.begin(), slots.end(), *slot) != slots.end();
    // One always, so that they do become fewer.
    const bool first = held == head.HeldTotal();
    if (taken || (!first && head.index.count(*slot) > room)) continue;
    take(*slot);
    held -= count;
  }
  return slots;
}

// Of the clusters that `scores` ranks, those that fit `room` entries.
std::vector<std::size_t> DynaKvPolicy::Choose(const Head& head, std::span<const float> scores,
                                              std::int64_t room) const {
  std::vector<std::size_t> chosen;
  BestFirst best(scores);
  for (int misfits = 0; room > 0 && misfits < kMisfitsMax && !best.empty();) {
    const std::size_t slot = best.Take();
    if (std::isinf(scores[slot])) break;
    const std::int64_t count = head.index.count(slot);
    if (count > room) {
      ++misfits;
      continue;
    }
    room -= count;
    chosen.push_back(slot);
  }
  return chosen;
}

std::vector<PlannedCluster> DynaKvPolicy::SelectHead(const SelectionInput& input,
                                                     std::int32_t head_number) const {
  const Head& head = heads_[HeadOf(input.layer, head_number)];
  const std::size_t slot_count = head.index.slot_count();
  const bool reads_all = input.token_count > 1;
  const bool partitions =
      !reads_all && !head.partitioned && head.index.entry_count() >= kPartitionEntriesMin;
  std::vector<PlannedCluster> planned;
  if (reads_all || partitions) {
    for (std::size_t slot = 0; slot < slot_count; ++slot) {
      if (head.index.alive(slot)) planned.push_back(Plan(head, head_number, slot, partitions));
    }
    return planned;
  }
  const std::int64_t token_count = input.first_position + 1;
  std::int64_t room = SelectedTokens(options_.selection, token_count) -
                      (token_count - input.stored_token_count) - head.HeldTotal();
  std::vector<std::size_t> slots = MustRead(head, token_count, room);
  std::vector<float> query =
      QuerySum(input.queries, options_.layout.head_count, dim(), head_number);
  head.metric.StretchQuery(query);
  std::vector<float> scores(slot_count);
  head.index.Score(query, kSpreadWeight, scores);
  for (const std::size_t slot : slots) scores[slot] = -std::numeric_limits<float>::infinity();
  const std::vector<std::size_t> chosen = Choose(head, scores, room);
  slots.insert(slots.end(), chosen.begin(), chosen.end());
  std::sort(slots.begin(), slots.end());
  for (const std::size_t slot : slots) {
    const ClusterIndex::Flags flags = head.index.flags(slot);
    const bool adapt = head.partitioned && (flags.split || flags.stale || flags.missing);
    planned.push_back(Plan(head, head_number, slot, adapt));
  }
  return planned;
}

std::vector<FetchSlice> DynaKvPolicy::Select(const SelectionInput& input) const {
  std::vector<std::vector<PlannedCluster>> by_head(
      static_cast<std::size_t>(options_.layout.head_count));
  ForEachHead(input.pool, options_.layout.head_count, [&](std::int32_t head) {
    by_head[static_cast<std::size_t>(head)] = SelectHead(input, head);
  });
  // Head by head in turns, so that each slice has work for every thread.
  std::vector<FetchSlice> slices;
  std::size_t longest = 0;
  for (const std::vector<PlannedCluster>& planned : by_head) {
    longest = std::max(longest, planned.size());
  }
  for (std::size_t i = 0; i < longest; ++i) {
    for (std::vector<PlannedCluster>& planned : by_head) {
      if (i < planned.size()) AddToPlan(options_, std::move(planned[i]), slices);
    }
  }
  return slices;
}

std::int64_t DynaKvPolicy::memory_bytes() const {
  std::int64_t bytes = 0;
  for (const Head& head : heads_) bytes += head.index.memory_bytes();
  return bytes;
}

PolicyStatistics DynaKvPolicy::statistics() const {
  PolicyStatistics statistics;
  for (const Head& head : heads_) statistics.heads.push_back(head.Statistics());
  return statistics;
}

std::vector<std::int64_t> DynaKvPolicy::NextClusterIds() const {
  return ClusterIdsOf(options_.layout, [this](std::int32_t layer, std::int32_t head) {
    return head == kAllHeads ? kNoClusterId : heads_[HeadOf(layer, head)].next_id;
  });
}

PutPolicyState DynaKvPolicy::SaveState() const {
  PutPolicyState saved;
  saved.version = kDynaKvVersion;
  for (const Head& head : heads_) {
    const HeadState state{.variance_sum = head.variance_sum,
                          .variance_entries = head.variance_entries,
                          .partitioned = head.partitioned ? 1 : 0,
                          .has_learned = head.metric.has_learned() ? 1 : 0};
    saved.state.append(reinterpret_cast<const char*>(&state), sizeof(state));
    saved.state.append(reinterpret_cast<const char*>(head.index.centre().data()),
                       head.index.centre().size_bytes());
    saved.state.append(reinterpret_cast<const char*>(head.metric.numbers().data()),
                       head.metric.numbers().size_bytes());
  }
  return saved;
}

std::int64_t DynaKvPolicy::state_bytes() const {
  const std::int64_t number_count = dim() + heads_.front().metric.number_count();
  const std::int64_t number_bytes = number_count * static_cast<std::int64_t>(sizeof(float));
  return std::ssize(heads_) * (static_cast<std::int64_t>(sizeof(HeadState)) + number_bytes);
}

absl::Status DynaKvPolicy::RestoreState(const StoredPolicyState& stored) {
  Clear();
  if (stored.is_new()) return absl::OkStatus();
  const std::size_t number_count =
      static_cast<std::size_t>(dim() + heads_.front().metric.number_count());
  const std::size_t head_bytes = sizeof(HeadState) + number_count * sizeof(float);
  const std::size_t ids_a_layer = static_cast<std::size_t>(options_.layout.head_count) + 1;
  if (stored.version != kDynaKvVersion || std::ssize(stored.state) != state_bytes() ||
      stored.next_cluster_ids.size() !=
          ids_a_layer * static_cast<std::size_t>(options_.layout.layer_count)) {
    return InvalidArgument(
        "stored policy state has version {}, {} bytes and {} cluster ids: not one of policy dynakv",
        stored.version, stored.state.size(), stored.next_cluster_ids.size());
  }
  std::vector<float> numbers(number_count);
  const std::span<const float> centre(numbers.data(), static_cast<std::size_t>(dim()));
  for (std::size_t i = 0; i < heads_.size(); ++i) {
    HeadState state{};
    std::memcpy(&state, stored.state.data() + i * head_bytes, sizeof(state));
    std::memcpy(numbers.data(), stored.state.data() + i * head_bytes + sizeof(state),
                number_count * sizeof(float));
    Head& head = heads_[i];
    const bool makes_sense =
        std::isfinite(state.variance_sum) && state.variance_sum >= 0 &&
        state.variance_entries >= 0 &&
        std::all_of(centre.begin(), centre.end(), [](float x) { return std::isfinite(x); }) &&
        head.metric.Restore(state.has_learned != 0, std::span(numbers).subspan(centre.size()));
    if (!makes_sense) return InvalidArgument("stored policy state of dynakv: head {} is none", i);
    head.variance_sum = state.variance_sum;
    head.variance_entries = state.variance_entries;
    head.partitioned = state.partitioned != 0;
    head.index.SetCentre(centre, head.metric.has_learned());
    const std::size_t head_count = static_cast<std::size_t>(options_.layout.head_count);
    head.next_id = stored.next_cluster_ids[i / head_count * ids_a_layer + i % head_count];
  }
  return absl::OkStatus();
}

absl::Status DynaKvPolicy::RestoreHeld(std::int32_t layer, const HeldEntry& held) {
  Head* const head = held.cluster.head < 0 ? nullptr : &heads_[HeadOf(layer, held.cluster.head)];
  const std::optional<std::size_t> slot =
      head == nullptr ? std::nullopt : head->index.Find(held.cluster.cluster_id);
  if (!slot.has_value()) {
    return InvalidArgument("layer {} head {}: position {} is held for cluster {}, which is unknown",
                           layer, held.cluster.head, held.position, held.cluster.cluster_id);
  }
  // Its row, which says so too, may be lost.
  if (!FailPoint("a cluster whose row was lost does not split")) head->index.MarkSplit(*slot);
  ++head->held[held.cluster.cluster_id];
  return absl::OkStatus();
}

}  // namespace cairn::compute
