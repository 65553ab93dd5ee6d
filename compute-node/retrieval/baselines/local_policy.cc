#include "compute-node/retrieval/baselines/local_policy.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"
#include "common/base/split_mix.h"
#include "compute-node/retrieval/baselines/kept_keys.h"
#include "compute-node/retrieval/baselines/token_scores.h"
#include "compute-node/retrieval/clustering/kmeans.h"
#include "compute-node/retrieval/fetch_plan.h"
#include "compute-node/retrieval/policy_state.h"

namespace cairn::compute {
namespace {

// Nothing but the ids of clusters. (Version 1 had a selection.)
constexpr std::int32_t kLocalStateVersion = 2;
constexpr int kLocalRounds = 20;
// Of ids from disk: those that follow cannot overflow.
constexpr std::int64_t kStoredIdMax = std::int64_t{1} << 48;

PlannedCluster PlanOf(std::int32_t head, ClusterId id, const Positions& positions) {
  return {.cluster = {head, id}, .entry_count = positions.count(), .positions = positions};
}

}  // namespace

LocalPolicy::LocalPolicy(std::string_view name, std::int64_t cluster_entries,
                         const PolicyOptions& options)
    : BasicPolicy({.name = name,
                   .ranks_by_query_sums = true,
                   .needs_keys = true,
                   .rebuilds_from_keys = true}),
      options_(options),
      cluster_entries_(cluster_entries),
      cluster_entries_max_(
          std::max(cluster_entries, options.part_bytes_max / options.layout.EntryBytes(0))),
      heads_(static_cast<std::size_t>(std::int64_t{options.layout.layer_count} *
                                      options.layout.head_count)) {}

std::vector<FetchSlice> LocalPolicy::Select(const SelectionInput& input) const {
  std::vector<FetchSlice> plan;
  for (Selection& selection : SelectAll(input)) {
    for (PlannedCluster& cluster : selection.clusters) {
      AddToPlan(options_, std::move(cluster), plan);
    }
  }
  return plan;
}

// Scores everything again: keeping what Select found would make it change the policy.
std::optional<std::vector<Positions>> LocalPolicy::SelectHeld(const SelectionInput& input) const {
  if (input.token_count > 1 || HeadAt(input.layer, 0).waiting.empty()) return std::nullopt;
  std::vector<Positions> held;
  for (Selection& selection : SelectAll(input)) held.push_back(std::move(selection.waiting));
  return held;
}

std::vector<LocalPolicy::Selection> LocalPolicy::SelectAll(const SelectionInput& input) const {
  const std::int64_t budget = StoredBudget(input, options_.selection);
  std::vector<Selection> selections(static_cast<std::size_t>(options_.layout.head_count));
  ForEachHead(input.pool, options_.layout.head_count, [&](std::int32_t head) {
    selections[static_cast<std::size_t>(head)] = SelectHead(input, head, budget);
  });
  return selections;
}

LocalPolicy::Selection LocalPolicy::SelectHead(const SelectionInput& input, std::int32_t head,
                                               std::int64_t budget) const {
  const Head& of_head = HeadAt(input.layer, head);
  Selection selection;
  const std::int64_t sinks = of_head.sinks.has_value() ? of_head.sinks->positions.count() : 0;
  if (budget < sinks) return selection;
  if (sinks > 0) {
    selection.clusters.push_back(PlanOf(head, of_head.sinks->id, of_head.sinks->positions));
  }
  if (budget < input.stored_token_count) {
    TakeBest(input, head, budget - sinks, selection);
    return selection;
  }
  for (const Cluster& cluster : of_head.clusters) {
    selection.clusters.push_back(PlanOf(head, cluster.id, cluster.positions));
  }
  selection.waiting = of_head.waiting;
  return selection;
}

void LocalPolicy::TakeBest(const SelectionInput& input, std::int32_t head, std::int64_t budget,
                           Selection& selection) const {
  const Head& of_head = HeadAt(input.layer, head);
  const std::int64_t dim = options_.layout.head_dim;
  const std::vector<float> query = QuerySum(input.queries, options_.layout.head_count, dim, head);
  std::vector<float> scores;
  scores.reserve(of_head.clusters.size() + static_cast<std::size_t>(of_head.waiting.count()));
  for (const std::vector<float>* rows : {&of_head.centroids, &of_head.waiting_keys}) {
    for (std::int64_t at = 0; at < std::ssize(*rows); at += dim) {
      scores.push_back(Dot(query.data(), rows->data() + at, dim));
    }
  }
  std::vector<std::int64_t> waiting;
  // Each candidate has one entry at least.
  for (const std::int64_t best : BestIndices(scores, std::min(budget, std::ssize(scores)))) {
    if (budget == 0) break;
    if (best >= std::ssize(of_head.clusters)) {
      waiting.push_back(of_head.waiting.at(best - std::ssize(of_head.clusters)));
      --budget;
      continue;
    }
    const Cluster& cluster = of_head.clusters[static_cast<std::size_t>(best)];
    PlannedCluster& planned =
        selection.clusters.emplace_back(PlanOf(head, cluster.id, cluster.positions));
    if (budget < planned.entry_count) {
      for (std::int32_t i = 0; i < budget; ++i) planned.attended.push_back(i);
    }
    budget -= std::min(budget, planned.entry_count);
  }
  selection.waiting = Positions::FromUnsorted(std::move(waiting));
}

StoreActions LocalPolicy::Store(const LeavingEntries& leaving) {
  const std::int64_t dim = options_.layout.head_dim;
  const std::int64_t end = leaving.first_position + leaving.token_count;
  CAIRN_CHECK_EQ(std::ssize(leaving.keys), leaving.token_count * dim * options_.layout.head_count);
  StoreActions actions;
  StoreSinks(leaving, actions);
  const std::int64_t first = std::clamp(kSinkTokens, leaving.first_position, end);
  if (first == end) return actions;
  const auto keys_of = [&](std::int32_t head) {
    return leaving.keys.subspan(
        static_cast<std::size_t>((head * leaving.token_count + first - leaving.first_position) *
                                 dim),
        static_cast<std::size_t>((end - first) * dim));
  };
  if (leaving.of_prompt) {
    std::vector<std::vector<float>> keys(static_cast<std::size_t>(options_.layout.head_count));
    for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
      AppendFinite(keys_of(head), keys[static_cast<std::size_t>(head)]);
    }
    MakeClusters(leaving.layer, Positions::Range(first, end - first), keys, leaving.pool, actions);
    return actions;
  }
  for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
    Head& of_head = HeadAt(leaving.layer, head);
    of_head.waiting.AppendAll(Positions::Range(first, end - first));
    AppendFinite(keys_of(head), of_head.waiting_keys);
  }
  ClusterWaiting(leaving.layer, leaving.pool, actions);
  for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
    const Positions& waiting = HeadAt(leaving.layer, head).waiting;
    const std::int64_t old_count = waiting.CountBelow(first);
    waiting.Slice(old_count, waiting.count() - old_count).ForEach([&](std::int64_t position) {
      actions.held.push_back({{head, kWaitingBuffer}, position});
    });
  }
  return actions;
}

void LocalPolicy::StoreSinks(const LeavingEntries& leaving, StoreActions& actions) {
  const std::int64_t count =
      std::min(kSinkTokens, leaving.first_position + leaving.token_count) - leaving.first_position;
  if (count <= 0) return;
  const Positions positions = Positions::Range(leaving.first_position, count);
  for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
    Head& of_head = HeadAt(leaving.layer, head);
    if (!of_head.sinks.has_value()) of_head.sinks = Cluster{ClusterId(of_head.next_id++), {}};
    of_head.sinks->positions.AppendAll(positions);
    actions.appended.push_back({{head, of_head.sinks->id}, positions});
  }
}

void LocalPolicy::ClusterWaiting(std::int32_t layer, ThreadPool* pool, StoreActions& actions) {
  const std::int64_t batch_floats = kLocalBatchEntries * options_.layout.head_dim;
  while (HeadAt(layer, 0).waiting.count() >= kLocalBatchEntries) {
    const Positions batch = HeadAt(layer, 0).waiting.Slice(0, kLocalBatchEntries);
    std::vector<std::vector<float>> keys;
    for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
      Head& of_head = HeadAt(layer, head);
      const auto behind = of_head.waiting_keys.begin() + batch_floats;
      keys.emplace_back(of_head.waiting_keys.begin(), behind);
      of_head.waiting_keys.erase(of_head.waiting_keys.begin(), behind);
      of_head.waiting =
          of_head.waiting.Slice(kLocalBatchEntries, of_head.waiting.count() - kLocalBatchEntries);
    }
    MakeClusters(layer, batch, keys, pool, actions);
  }
}

void LocalPolicy::MakeClusters(std::int32_t layer, const Positions& positions,
                               const std::vector<std::vector<float>>& keys, ThreadPool* pool,
                               StoreActions& actions) {
  const std::vector<std::span<const float>> problems(keys.begin(), keys.end());
  const std::vector<PointClusters> made =
      KMeans(pool, problems, options_.layout.head_dim,
             {.target_entries = cluster_entries_,
              .entries_max = cluster_entries_max_,
              .rounds = kLocalRounds,
              .seed = SplitMix({options_.selection.seed, static_cast<std::uint64_t>(layer),
                                static_cast<std::uint64_t>(positions.first())})
                          .Next()});
  for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
    Head& of_head = HeadAt(layer, head);
    const PointClusters& clusters = made[static_cast<std::size_t>(head)];
    for (std::int64_t i = 0; i < clusters.cluster_count(); ++i) {
      Positions members;
      for (const std::int64_t index : clusters.cluster(i)) members.Append(positions.at(index));
      const ClusterId id(of_head.next_id++);
      actions.appended.push_back({{head, id}, members});
      AddCluster(of_head, {id, std::move(members)},
                 GatherRows(problems[static_cast<std::size_t>(head)], options_.layout.head_dim,
                            clusters.cluster(i)));
    }
  }
}

// The order of the additions is that of the positions, so that Rebuild finds the same centroid.
void LocalPolicy::AddCluster(Head& head, Cluster cluster, std::span<const float> keys) const {
  const std::size_t dim = static_cast<std::size_t>(options_.layout.head_dim);
  std::vector<float> sum(dim, 0.0F);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    sum[i % dim] += std::isfinite(keys[i]) ? keys[i] : 0.0F;
  }
  for (const float value : sum) {
    head.centroids.push_back(value / static_cast<float>(cluster.positions.count()));
  }
  head.run_bytes +=
      std::ssize(cluster.positions.runs()) * static_cast<std::int64_t>(sizeof(Positions::Run));
  head.clusters.push_back(std::move(cluster));
}

std::int64_t LocalPolicy::memory_bytes() const {
  std::int64_t bytes = 0;
  for (const Head& head : heads_) {
    bytes +=
        head.run_bytes + std::ssize(head.clusters) * std::int64_t{sizeof(Cluster)} +
        (std::ssize(head.centroids) + std::ssize(head.waiting_keys)) * std::int64_t{sizeof(float)};
  }
  return bytes;
}

std::vector<std::int64_t> LocalPolicy::NextClusterIds() const {
  return ClusterIdsOf(options_.layout, [this](std::int32_t layer, std::int32_t head) {
    return head == kAllHeads ? kNoClusterId : HeadAt(layer, head).next_id;
  });
}

PutPolicyState LocalPolicy::SaveState() const {
  return {.version = kLocalStateVersion, .state = {}};
}

absl::Status LocalPolicy::RestoreState(const StoredPolicyState& stored) {
  std::fill(heads_.begin(), heads_.end(), Head());
  if (stored.is_new()) return absl::OkStatus();
  CAIRN_RETURN_IF_ERROR(CheckNextClusterIds(options_.layout, stored));
  const auto in_range = [](std::int64_t id) { return id >= 1 && id <= kStoredIdMax; };
  if (stored.version != kLocalStateVersion || !stored.state.empty() ||
      !std::all_of(stored.next_cluster_ids.begin(), stored.next_cluster_ids.end(), in_range)) {
    return ForeignState(traits().name, stored);
  }
  const std::size_t head_count = static_cast<std::size_t>(options_.layout.head_count);
  for (std::size_t i = 0; i < heads_.size(); ++i) {
    heads_[i].next_id = stored.next_cluster_ids[i / head_count * (head_count + 1) + i % head_count];
  }
  return absl::OkStatus();
}

// Its key comes with Rebuild.
absl::Status LocalPolicy::RestoreHeld(std::int32_t layer, const HeldEntry& held) {
  if (held.cluster.cluster_id == kWaitingBuffer) return absl::OkStatus();
  return DataLoss("layer {} head {}: position {} waits for cluster {}, which policy {} never asks",
                  layer, held.cluster.head, held.position, held.cluster.cluster_id, traits().name);
}

absl::Status LocalPolicy::Rebuild(std::int32_t layer, std::span<const LoadedCluster> clusters) {
  for (const LoadedCluster& loaded : clusters) {
    CAIRN_RETURN_IF_ERROR(RebuildOne(layer, loaded));
  }
  for (std::int32_t head = 1; head < options_.layout.head_count; ++head) {
    if (HeadAt(layer, head).waiting == HeadAt(layer, 0).waiting) continue;
    return DataLoss("layer {}: other positions of head {} wait for a cluster than of head 0", layer,
                    head);
  }
  return absl::OkStatus();
}

absl::Status LocalPolicy::RebuildOne(std::int32_t layer, const LoadedCluster& loaded) {
  const auto [head, id] = loaded.cluster;
  const Positions& positions = loaded.positions;
  const bool has_shape = head >= 0 && head < options_.layout.head_count && !positions.empty() &&
                         std::ssize(loaded.keys) == positions.count() * options_.layout.head_dim &&
                         loaded.stored_count == (id == kWaitingBuffer ? 0 : positions.count());
  const bool of_sinks = has_shape && positions.last() < kSinkTokens;
  const bool fits =
      has_shape && id >= kWaitingBuffer && (of_sinks || positions.first() >= kSinkTokens) &&
      id.value() < HeadAt(layer, head).next_id && !(of_sinks && id == kWaitingBuffer) &&
      !(of_sinks && HeadAt(layer, head).sinks.has_value());
  if (!fits) {
    return DataLoss("layer {} head {} cluster {}: {} entries, {} of them stored, are none of {}'s",
                    layer, head, id, positions.count(), loaded.stored_count, traits().name);
  }
  Head& of_head = HeadAt(layer, head);
  if (id == kWaitingBuffer) {
    of_head.waiting = positions;
    AppendFinite(loaded.keys, of_head.waiting_keys);
  } else if (of_sinks) {
    of_head.sinks = Cluster{id, positions};
  } else {
    AddCluster(of_head, {id, positions}, loaded.keys);
  }
  return absl::OkStatus();
}

}  // namespace cairn::compute
