// How DynaKvPolicy's clusters come to be and change.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "compute-node/retrieval/clustering/kmeans.h"
#include "compute-node/retrieval/dynakv/dynakv_policy.h"
#include "compute-node/retrieval/fetch_plan.h"

namespace cairn::compute {
namespace {

// Neighbours of a conversation's beginning that share a cluster until there are enough keys for
// K-means.
constexpr std::int64_t kEarlyClusterEntries = 8;

KMeansOptions ClusteringOf(const SelectionOptions& selection, std::uint64_t salt) {
  return {.target_entries = selection.cluster_target_entries,
          .entries_max = selection.cluster_entries_max(),
          .seed = selection.seed * 0x9E3779B97F4A7C15U + salt};
}

std::span<const float> RowsOf(std::span<const float> keys, std::int64_t dim, std::int64_t first,
                              std::int64_t count) {
  return keys.subspan(static_cast<std::size_t>(first * dim), static_cast<std::size_t>(count * dim));
}

std::vector<float> KeysOf(std::span<const LoadedCluster* const> clusters) {
  std::vector<float> keys;
  for (const LoadedCluster* cluster : clusters) {
    keys.insert(keys.end(), cluster->keys.begin(), cluster->keys.end());
  }
  return keys;
}

// Where the rows of the clusters' values lie; none if they have none. (Copies would be as large as
// a region's keys.)
std::vector<const float*> ValueRowsOf(std::span<const LoadedCluster* const> clusters,
                                      std::int64_t dim) {
  std::vector<const float*> rows;
  for (const LoadedCluster* cluster : clusters) {
    for (std::int64_t at = 0; at < std::ssize(cluster->values); at += dim) {
      rows.push_back(cluster->values.data() + at);
    }
  }
  return rows;
}

// Of the rows at `indices`; no values: without their mean.
ClusterMoments MomentsAt(std::span<const float> keys, std::span<const float> values,
                         std::int64_t dim, std::span<const std::int64_t> indices) {
  const std::vector<float> some =
      values.empty() ? std::vector<float>() : GatherRows(values, dim, indices);
  return MomentsOf(GatherRows(keys, dim, indices), dim, some);
}

// Of a head, what leaves from `first` on.
std::span<const float> ValuesOf(const LeavingEntries& leaving, std::int64_t dim, std::int32_t head,
                                std::int64_t first, std::int64_t count) {
  if (leaving.values.empty()) return {};
  return RowsOf(leaving.values, dim, head * leaving.token_count + first, count);
}

// Two halves of the rows, as indices; halves of more than `entries_max` are halved again.
std::vector<std::vector<std::int64_t>> SplitParts(std::span<const float> keys, std::int64_t dim,
                                                  std::int64_t entries_max) {
  std::vector<std::vector<std::int64_t>> done;
  std::vector<std::vector<std::int64_t>> waiting(1);
  waiting[0].resize(keys.size() / static_cast<std::size_t>(dim));
  std::iota(waiting[0].begin(), waiting[0].end(), std::int64_t{0});
  while (!waiting.empty()) {
    const std::vector<std::int64_t> whole = std::move(waiting.back());
    waiting.pop_back();
    std::vector<std::uint8_t> sides(whole.size());
    SplitInTwo(GatherRows(keys, dim, whole), dim, sides);
    std::array<std::vector<std::int64_t>, 2> halves;
    for (std::size_t i = 0; i < whole.size(); ++i) halves[sides[i]].push_back(whole[i]);
    for (std::vector<std::int64_t>& half : halves) {
      const bool again = std::ssize(half) > entries_max;
      if (!half.empty()) (again ? waiting : done).push_back(std::move(half));
    }
  }
  return done;
}

}  // namespace

StoreActions DynaKvPolicy::Store(const LeavingEntries& leaving) {
  LearnMetrics(leaving);
  std::vector<float> keys(leaving.keys.begin(), leaving.keys.end());
  const std::size_t head_keys = static_cast<std::size_t>(leaving.token_count * dim());
  for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
    heads_[HeadOf(leaving.layer, head)].metric.StretchKeys(
        std::span(keys).subspan(static_cast<std::size_t>(head) * head_keys, head_keys));
  }
  LeavingEntries stretched = leaving;
  stretched.keys = keys;
  return StoreStretched(stretched);
}

// From the first prompt that becomes clusters of its own. What there was before is stretched too.
void DynaKvPolicy::LearnMetrics(const LeavingEntries& leaving) {
  const std::size_t width = static_cast<std::size_t>(dim());
  const std::size_t token_numbers =
      static_cast<std::size_t>(options_.layout.head_count * options_.group_size) * width;
  const std::int64_t token_count =
      std::ssize(leaving.queries) / static_cast<std::int64_t>(token_numbers);
  if (token_count < kMetricTokensMin || leaving.token_count < kChunkEntriesMin) return;
  const std::int64_t step = (token_count + kMetricTokensMax - 1) / kMetricTokensMax;
  for (std::int32_t head_number = 0; head_number < options_.layout.head_count; ++head_number) {
    Head& head = heads_[HeadOf(leaving.layer, head_number)];
    if (head.metric.has_learned()) continue;
    std::vector<float> sums;
    // The first tokens' queries are like no others.
    for (std::int64_t token = kSinkTokens; token < token_count; token += step) {
      const std::vector<float> sum = QuerySum(
          leaving.queries.subspan(static_cast<std::size_t>(token) * token_numbers, token_numbers),
          options_.layout.head_count, dim(), head_number);
      sums.insert(sums.end(), sum.begin(), sum.end());
    }
    head.metric.Learn(sums);
    if (!head.metric.has_learned()) continue;
    head.index.Transform([&](std::span<float> key) { head.metric.StretchKeys(key); });
    // The threshold is of clusters with such distances.
    head.variance_sum = 0;
    head.variance_entries = 0;
  }
}

StoreActions DynaKvPolicy::StoreStretched(const LeavingEntries& leaving) {
  StoreActions actions;
  const std::int64_t count = leaving.token_count;
  const std::int64_t sinks =
      std::clamp<std::int64_t>(kSinkTokens - leaving.first_position, 0, count);
  StoreSinks(leaving, sinks, actions);
  const std::int64_t rest = count - sinks;
  if (rest == 0) return actions;
  const bool partitioned = heads_[HeadOf(leaving.layer, 0)].partitioned;
  if (rest >= kPartitionEntriesMin || (partitioned && rest >= kChunkEntriesMin)) {
    StoreChunk(leaving, sinks, actions);
    return actions;
  }
  for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
    if (partitioned) {
      StoreOne(leaving, head, sinks, actions);
    } else {
      StoreEarly(leaving, head, sinks, actions);
    }
  }
  return actions;
}

void DynaKvPolicy::StoreSinks(const LeavingEntries& leaving, std::int64_t sink_count,
                              StoreActions& actions) {
  const std::int64_t count = leaving.token_count;
  for (std::int32_t head_number = 0; head_number < options_.layout.head_count; ++head_number) {
    Head& head = heads_[HeadOf(leaving.layer, head_number)];
    const std::span<const float> keys = RowsOf(leaving.keys, dim(), head_number * count, count);
    if (head.index.slot_count() == 0) {
      const std::int64_t skipped = sink_count < count ? sink_count : 0;
      head.index.SetCentre(MomentsOf(RowsOf(keys, dim(), skipped, count - skipped), dim()).centroid,
                           head.metric.has_learned());
    }
    if (sink_count == 0) continue;
    const ClusterId id = kSinkCluster;
    const std::optional<std::size_t> slot = head.index.Find(id);
    if (slot.has_value()) {
      for (std::int64_t i = 0; i < sink_count; ++i) {
        const std::span<const float> key = RowsOf(keys, dim(), i, 1);
        head.index.Append(*slot, key, head.index.VarianceWith(*slot, key),
                          ValuesOf(leaving, dim(), head_number, i, 1));
      }
    } else {
      head.index.Add(id,
                     MomentsOf(RowsOf(keys, dim(), 0, sink_count), dim(),
                               ValuesOf(leaving, dim(), head_number, 0, sink_count)),
                     {.pinned = true});
      head.next_id = id.value() + 1;
    }
    actions.appended.push_back(
        {{head_number, id}, Positions::Range(leaving.first_position, sink_count)});
  }
}

void DynaKvPolicy::StoreChunk(const LeavingEntries& leaving, std::int64_t first_index,
                              StoreActions& actions) {
  const std::int64_t count = leaving.token_count - first_index;
  std::vector<std::span<const float>> problems;
  problems.reserve(static_cast<std::size_t>(options_.layout.head_count));
  for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
    problems.push_back(
        RowsOf(leaving.keys, dim(), head * leaving.token_count + first_index, count));
  }
  const std::uint64_t salt = static_cast<std::uint64_t>(leaving.layer);
  const std::vector<PointClusters> found =
      KMeans(leaving.pool, problems, dim(), ClusteringOf(options_.selection, salt));
  for (std::int32_t head_number = 0; head_number < options_.layout.head_count; ++head_number) {
    Head& head = heads_[HeadOf(leaving.layer, head_number)];
    const PointClusters& clusters = found[static_cast<std::size_t>(head_number)];
    const std::span<const float> keys = problems[static_cast<std::size_t>(head_number)];
    for (std::int64_t cluster = 0; cluster < clusters.cluster_count(); ++cluster) {
      const std::span<const std::int64_t> members = clusters.cluster(cluster);
      const ClusterMoments moments = MomentsAt(
          keys, ValuesOf(leaving, dim(), head_number, first_index, count), dim(), members);
      const ClusterId id(head.next_id++);
      head.index.Add(id, moments, {});
      head.CountVariance(moments);
      Positions positions;
      for (const std::int64_t member : members) {
        positions.Append(leaving.first_position + first_index + member);
      }
      actions.appended.push_back({{head_number, id}, std::move(positions)});
    }
    head.partitioned = true;
    head.index.Compact();
  }
}

void DynaKvPolicy::StoreEarly(const LeavingEntries& leaving, std::int32_t head_number,
                              std::int64_t first_index, StoreActions& actions) {
  Head& head = heads_[HeadOf(leaving.layer, head_number)];
  for (std::int64_t i = first_index; i < leaving.token_count; ++i) {
    const std::span<const float> key =
        RowsOf(leaving.keys, dim(), head_number * leaving.token_count + i, 1);
    const std::span<const float> value = ValuesOf(leaving, dim(), head_number, i, 1);
    const ClusterId newest(head.next_id - 1);
    const std::optional<std::size_t> slot = head.index.Find(newest);
    const bool joins = slot.has_value() && !head.index.flags(*slot).pinned &&
                       head.index.count(*slot) < kEarlyClusterEntries;
    if (joins) {
      head.index.Append(*slot, key, head.index.VarianceWith(*slot, key), value);
    } else {
      head.index.Add(ClusterId(head.next_id++), MomentsOf(key, dim(), value), {});
    }
    const ClusterRef cluster{head_number, ClusterId(head.next_id - 1)};
    const std::int64_t position = leaving.first_position + i;
    if (actions.appended.empty() || actions.appended.back().cluster != cluster) {
      actions.appended.push_back({cluster, {}});
    }
    actions.appended.back().positions.Append(position);
  }
}

// Algorithm 1 of the paper, for each entry in turn.
void DynaKvPolicy::StoreOne(const LeavingEntries& leaving, std::int32_t head_number,
                            std::int64_t first_index, StoreActions& actions) {
  Head& head = heads_[HeadOf(leaving.layer, head_number)];
  const float threshold = head.Threshold();
  const std::size_t first_action = actions.appended.size();
  for (std::int64_t i = first_index; i < leaving.token_count; ++i) {
    const std::span<const float> key =
        RowsOf(leaving.keys, dim(), head_number * leaving.token_count + i, 1);
    const std::span<const float> value = ValuesOf(leaving, dim(), head_number, i, 1);
    const std::int64_t position = leaving.first_position + i;
    std::int32_t nearest = -1;
    head.index.Nearest(key, {&nearest, 1});
    if (nearest < 0) {
      head.index.Add(ClusterId(head.next_id++), MomentsOf(key, dim(), value), {});
      actions.appended.push_back(
          {{head_number, ClusterId(head.next_id - 1)}, Positions::Range(position, 1)});
      continue;
    }
    const std::size_t slot = static_cast<std::size_t>(nearest);
    const ClusterRef cluster{head_number, head.index.id(slot)};
    ClusterIndex::Flags flags = head.index.flags(slot);
    if (!flags.split) {
      const float variance = head.index.VarianceWith(slot, key);
      const bool full = head.index.count(slot) >= options_.selection.cluster_entries_max();
      const bool wide = variance > threshold && !FailPoint("a wide cluster is not split");
      const bool split = full && !FailPoint("a large cluster is not split");
      flags.split = split || wide;
      if (!flags.split) head.index.Append(slot, key, variance, value);
    }
    if (flags.split) {
      head.index.SetFlags(slot, flags);
      ++head.held[cluster.cluster_id];
      if (FailPoint("what waits for a split is in no place")) continue;
      actions.held.push_back({cluster, position});
      continue;
    }
    const auto same = std::find_if(
        actions.appended.begin() + static_cast<std::ptrdiff_t>(first_action),
        actions.appended.end(), [&](const Assignment& each) { return each.cluster == cluster; });
    if (same != actions.appended.end()) {
      same->positions.Append(position);
    } else {
      actions.appended.push_back({cluster, Positions::Range(position, 1)});
    }
  }
}

std::vector<ClusterSplit> DynaKvPolicy::Adapt(std::int32_t layer,
                                              std::span<const LoadedCluster> clusters) {
  std::vector<ClusterSplit> splits;
  for (std::int32_t head_number = 0; head_number < options_.layout.head_count; ++head_number) {
    Head& head = heads_[HeadOf(layer, head_number)];
    std::vector<const LoadedCluster*> of_head;
    for (const LoadedCluster& loaded : clusters) {
      if (loaded.cluster.head == head_number) of_head.push_back(&loaded);
    }
    if (of_head.empty()) continue;
    if (!head.partitioned) {
      Partition(layer, head_number, of_head, splits);
      continue;
    }
    for (const LoadedCluster* loaded : of_head) AdaptOne(head, *loaded, splits);
    head.index.Compact();
  }
  return splits;
}

void DynaKvPolicy::Partition(std::int32_t layer, std::int32_t head_number,
                             std::span<const LoadedCluster* const> clusters,
                             std::vector<ClusterSplit>& splits) {
  Head& head = heads_[HeadOf(layer, head_number)];
  std::vector<const LoadedCluster*> unpinned;
  for (const LoadedCluster* loaded : clusters) {
    const std::optional<std::size_t> slot = head.index.Find(loaded->cluster.cluster_id);
    CAIRN_CHECK(slot.has_value());
    if (!head.index.flags(*slot).pinned) unpinned.push_back(loaded);
  }
  const std::vector<float> keys = head.Stretched(KeysOf(unpinned));
  const std::uint64_t salt = static_cast<std::uint64_t>(HeadOf(layer, head_number));
  const PointClusters found = KMeans(keys, dim(), ClusteringOf(options_.selection, salt));
  ClusterSplit split{.head = head_number, .parent_ids = {}, .children = {}};
  Replace(head, unpinned, keys, found, split);
  head.partitioned = true;
  splits.push_back(std::move(split));
}

void DynaKvPolicy::Replace(Head& head, std::span<const LoadedCluster* const> loaded,
                           std::span<const float> keys, const PointClusters& found,
                           ClusterSplit& split) {
  const std::vector<const float*> value_rows = ValueRowsOf(loaded, dim());
  std::vector<std::int64_t> positions;
  for (const LoadedCluster* each : loaded) {
    head.index.Remove(*head.index.Find(each->cluster.cluster_id));
    head.held.erase(each->cluster.cluster_id);
    split.parent_ids.push_back(each->cluster.cluster_id);
    each->positions.ForEach([&](std::int64_t position) { positions.push_back(position); });
  }
  for (std::int64_t cluster = 0; cluster < found.cluster_count(); ++cluster) {
    std::vector<std::int64_t> members;
    for (const std::int64_t member : found.cluster(cluster)) {
      members.push_back(positions[static_cast<std::size_t>(member)]);
    }
    std::vector<float> values;
    for (const std::int64_t member : found.cluster(cluster)) {
      if (value_rows.empty()) break;
      const float* row = value_rows[static_cast<std::size_t>(member)];
      values.insert(values.end(), row, row + dim());
    }
    const ClusterMoments moments =
        MomentsOf(GatherRows(keys, dim(), found.cluster(cluster)), dim(), values);
    const ClusterId id(head.next_id++);
    head.index.Add(id, moments, {});
    head.CountVariance(moments);
    split.children.push_back({id, Positions::FromUnsorted(std::move(members))});
  }
}

// One region, or several of about region_entries_ by K-means over the centroids that there are.
std::vector<ClusterGroup> DynaKvPolicy::Regroup(std::int32_t layer) {
  std::vector<ClusterGroup> groups;
  for (std::int32_t head_number = 0; head_number < options_.layout.head_count; ++head_number) {
    Head& head = heads_[HeadOf(layer, head_number)];
    if (!head.partitioned) continue;
    std::vector<std::size_t> slots;
    std::vector<float> centroids;
    for (std::size_t slot = 0; slot < head.index.slot_count(); ++slot) {
      if (!head.index.alive(slot) || head.index.flags(slot).pinned) continue;
      const std::vector<float> centroid = head.index.Centroid(slot);
      slots.push_back(slot);
      centroids.insert(centroids.end(), centroid.begin(), centroid.end());
    }
    if (slots.empty()) continue;
    KMeansOptions coarse;
    const std::int64_t count = std::ssize(slots);
    const std::int64_t entries = head.index.entry_count();
    const std::int64_t regions =
        entries <= region_entries_ * 5 / 4 ? 1 : (entries + region_entries_ - 1) / region_entries_;
    coarse.target_entries = (count + regions - 1) / regions;
    coarse.entries_max = coarse.target_entries * 5 / 4;
    coarse.seed = ClusteringOf(options_.selection, HeadOf(layer, head_number)).seed;
    const PointClusters found = KMeans(centroids, dim(), coarse);
    for (std::int64_t region = 0; region < found.cluster_count(); ++region) {
      ClusterGroup group;
      for (const std::int64_t member : found.cluster(region)) {
        const std::size_t slot = slots[static_cast<std::size_t>(member)];
        group.clusters.push_back({head_number, head.index.id(slot)});
        group.entry_counts.push_back(head.index.count(slot));
      }
      groups.push_back(std::move(group));
    }
    head.variance_sum = 0;
    head.variance_entries = 0;
  }
  return groups;
}

std::vector<ClusterSplit> DynaKvPolicy::Recluster(
    std::int32_t layer, std::span<const std::vector<LoadedCluster>> groups, ThreadPool& pool) {
  std::vector<std::vector<const LoadedCluster*>> loaded(groups.size());
  std::vector<std::vector<float>> keys;
  keys.reserve(groups.size());
  std::vector<std::span<const float>> problems;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (const LoadedCluster& cluster : groups[i]) loaded[i].push_back(&cluster);
    keys.push_back(
        heads_[HeadOf(layer, groups[i].front().cluster.head)].Stretched(KeysOf(loaded[i])));
  }
  problems.assign(keys.begin(), keys.end());
  const std::uint64_t salt = static_cast<std::uint64_t>(layer);
  const std::vector<PointClusters> found =
      KMeans(&pool, problems, dim(), ClusteringOf(options_.selection, salt));
  std::vector<ClusterSplit> splits;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::int32_t head_number = groups[i].front().cluster.head;
    Head& head = heads_[HeadOf(layer, head_number)];
    ClusterSplit split{.head = head_number, .parent_ids = {}, .children = {}};
    Replace(head, loaded[i], keys[i], found[i], split);
    splits.push_back(std::move(split));
  }
  for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
    heads_[HeadOf(layer, head)].index.Compact();
  }
  return splits;
}

void DynaKvPolicy::AdaptOne(Head& head, const LoadedCluster& loaded,
                            std::vector<ClusterSplit>& splits) {
  const std::optional<std::size_t> slot = head.index.Find(loaded.cluster.cluster_id);
  CAIRN_CHECK(slot.has_value());
  const std::vector<float> keys = head.Stretched(loaded.keys);
  if (!head.index.flags(*slot).split) {
    // Only the moments were those of other entries.
    ClusterIndex::Flags flags;
    flags.pinned = head.index.flags(*slot).pinned;
    head.index.Set(*slot, MomentsOf(keys, dim(), loaded.values));
    head.index.SetFlags(*slot, flags);
    return;
  }
  ClusterSplit split{
      .head = loaded.cluster.head, .parent_ids = {loaded.cluster.cluster_id}, .children = {}};
  head.index.Remove(*slot);
  head.held.erase(loaded.cluster.cluster_id);
  ++head.split_count;
  for (const std::vector<std::int64_t>& part :
       SplitParts(keys, dim(), options_.selection.cluster_entries_max())) {
    Positions positions;
    for (const std::int64_t member : part) positions.Append(loaded.positions.at(member));
    const ClusterId id(head.next_id++);
    head.index.Add(id, MomentsAt(keys, loaded.values, dim(), part), {});
    split.children.push_back({id, std::move(positions)});
  }
  splits.push_back(std::move(split));
}

}  // namespace cairn::compute
