#include "compute-node/eval/cluster_watch.h"

#include <algorithm>

#include "common/base/check.h"

namespace cairn::eval {
namespace {

// Of fewer times together nothing is concluded.
constexpr std::int32_t kTogetherMin = 2;

void CountAgain(std::vector<std::int64_t>& since, std::int64_t step, ReadAgain& again) {
  for (const std::int64_t at : since) {
    for (std::size_t i = 0; i < kAgainSteps.size(); ++i) {
      if (step - at <= kAgainSteps[i]) ++again.within[i];
    }
  }
  since.clear();
}

void AddTo(const ReadAgain& more, ReadAgain& sum) {
  sum.cluster_count += more.cluster_count;
  for (std::size_t i = 0; i < kAgainSteps.size(); ++i) sum.within[i] += more.within[i];
}

}  // namespace

ClusterWatch::ClusterWatch(const compute::ModelConfig& config, const Options& options)
    : config_(config),
      options_(options),
      heads_(static_cast<std::size_t>(config.layer_count * config.kv_head_count)) {}

void ClusterWatch::Put(Head& head, std::int64_t id, std::int64_t position) {
  const std::size_t at = static_cast<std::size_t>(position);
  if (head.cluster_at.size() <= at) head.cluster_at.resize(at + 1, 0);
  head.cluster_at[at] = id;
  const auto [found, is_new] = head.clusters.try_emplace(id);
  if (is_new) found->second.first_measured = head.measured_count;
  found->second.positions.push_back(position);
}

void ClusterWatch::Changed(Head& head, Cluster& cluster) {
  if (head.step < 0 || cluster.positions.front() < compute::kSinkTokens) return;
  cluster.changed_at.push_back(head.step);
  ++head.counts.changed.cluster_count;
}

void ClusterWatch::Hold(Head& head, std::int64_t id) {
  Cluster& cluster = head.clusters.at(id);
  ++head.held_total;
  if (++cluster.held_count > 1) return;
  DelayedSplits& delay = head.counts.delay;
  ++delay.flagged_count;
  if (std::binary_search(head.read.begin(), head.read.end(), id)) return;
  ++delay.unread_count;
  delay.unread_entries += std::ssize(cluster.positions);
}

void ClusterWatch::Stored(std::int32_t layer, const compute::StoreActions& actions) {
  for (const compute::Assignment& each : actions.appended) {
    // They neither grow by likeness nor split.
    if (each.cluster.head == kAllHeads) continue;
    Head& head = HeadAt(layer, each.cluster.head);
    const std::int64_t id = each.cluster.cluster_id.value();
    each.positions.ForEach([&](std::int64_t position) { Put(head, id, position); });
    head.stored_end = std::max(head.stored_end, each.positions.last() + 1);
    if (head.step >= 0) ++head.counts.appended_count;
    Changed(head, head.clusters.at(id));
  }
  for (const compute::HeldEntry& held : actions.held) {
    Head& head = HeadAt(layer, held.cluster.head);
    head.stored_end = std::max(head.stored_end, held.position + 1);
    Hold(head, held.cluster.cluster_id.value());
  }
}

void ClusterWatch::Split(std::int32_t layer, std::span<const compute::ClusterSplit> splits) {
  for (const compute::ClusterSplit& split : splits) {
    Head& head = HeadAt(layer, split.head);
    for (const ClusterId parent : split.parent_ids) {
      const auto found = head.clusters.find(parent.value());
      CAIRN_CHECK(found != head.clusters.end());
      head.held_total -= found->second.held_count;
      head.clusters.erase(found);
    }
    // Clustering all anew, as for the first time, is no split.
    const bool is_split = head.step >= 0 && split.parent_ids.size() == 1;
    head.counts.delay.split_count += is_split ? 1 : 0;
    for (const ChildCluster& child : split.children) {
      const std::int64_t id = child.cluster_id.value();
      child.positions.ForEach([&](std::int64_t position) { Put(head, id, position); });
      if (is_split) Changed(head, head.clusters.at(id));
    }
  }
}

std::vector<std::int64_t> ClusterWatch::ReadClusters(const Head& head,
                                                     std::span<const std::int64_t> positions) {
  std::vector<std::int64_t> ids;
  for (const std::int64_t position : positions) {
    const std::int64_t id = head.cluster_at[static_cast<std::size_t>(position)];
    CAIRN_CHECK(id > 0);
    if (head.clusters.at(id).positions.front() >= compute::kSinkTokens) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

void ClusterWatch::LayerAttended(const compute::AttentionBatch& batch,
                                 std::span<const compute::AttendedEntries> heads) {
  if (batch.token_count > 1 || batch.first_position < options_.first_position) return;
  const std::int64_t step = batch.first_position - options_.first_position;
  for (std::int64_t kv_head = 0; kv_head < config_.kv_head_count; ++kv_head) {
    Head& head = HeadAt(batch.layer, kv_head);
    head.step = batch.first_position;
    CountForced(head);
    head.read = ReadClusters(head, heads[static_cast<std::size_t>(kv_head)].fetched);
    CountReads(head);
    if (step % options_.together_every == 0) CountTogether(head);
    if (step % kAllClustersEvery != 0) continue;
    for (auto& [id, cluster] : head.clusters) {
      if (cluster.positions.front() < compute::kSinkTokens) continue;
      cluster.looked_at.push_back(head.step);
      ++head.counts.all.cluster_count;
    }
  }
}

// With too many held back a step reads the cluster that holds most, of equal ones the oldest.
void ClusterWatch::CountForced(Head& head) const {
  if (head.held_total == 0 ||
      head.held_total < compute::HeldEntriesMax(options_.selection, head.step + 1)) {
    return;
  }
  const Cluster* fullest = nullptr;
  for (const auto& [id, cluster] : head.clusters) {
    if (fullest == nullptr || cluster.held_count > fullest->held_count) fullest = &cluster;
  }
  CAIRN_CHECK(fullest != nullptr);
  ++head.counts.delay.forced_count;
  head.counts.delay.forced_entries += std::ssize(fullest->positions);
}

void ClusterWatch::CountReads(Head& head) {
  ++head.counts.step_count;
  for (const std::int64_t id : head.read) {
    Cluster& cluster = head.clusters.at(id);
    head.counts.read_entries += std::ssize(cluster.positions);
    CountAgain(cluster.changed_at, head.step, head.counts.changed);
    CountAgain(cluster.looked_at, head.step, head.counts.all);
  }
}

void ClusterWatch::CountTogether(Head& head) {
  ReadTogether& together = head.counts.together;
  for (const std::int64_t id : head.read) {
    Cluster& cluster = head.clusters.at(id);
    FindPartner(head, cluster);
    if (cluster.partner == 0) continue;
    const Cluster& partner = head.clusters.at(cluster.partner);
    ++together.cluster_count;
    together.by_chance += static_cast<double>(partner.read_count) /
                          static_cast<double>(head.measured_count - partner.first_measured);
    const bool is_read = std::binary_search(head.read.begin(), head.read.end(), cluster.partner);
    together.partner_count += is_read ? 1 : 0;
  }
  ++head.measured_count;
  for (const std::int64_t id : head.read) {
    Cluster& cluster = head.clusters.at(id);
    ++cluster.read_count;
    for (const std::int64_t other : head.read) {
      if (other != id) ++cluster.read_with[other];
    }
  }
}

void ClusterWatch::FindPartner(Head& head, Cluster& cluster) {
  cluster.partner = 0;
  std::int32_t most = kTogetherMin - 1;
  for (auto other = cluster.read_with.begin(); other != cluster.read_with.end();) {
    if (!head.clusters.contains(other->first)) {
      other = cluster.read_with.erase(other);  // it was split
      continue;
    }
    if (other->second > most || (other->second == most && other->first < cluster.partner)) {
      most = other->second;
      cluster.partner = other->first;
    }
    ++other;
  }
}

std::vector<std::vector<std::int64_t>> ClusterWatch::Clusters(std::size_t row) const {
  std::vector<std::vector<std::int64_t>> clusters;
  for (const auto& [id, cluster] : heads_[row].clusters) {
    if (cluster.positions.front() >= compute::kSinkTokens) clusters.push_back(cluster.positions);
  }
  return clusters;
}

ClusterCounts ClusterWatch::Counts() const {
  ClusterCounts sum;
  for (const Head& head : heads_) {
    const ClusterCounts& counts = head.counts;
    sum.appended_count += counts.appended_count;
    sum.step_count += counts.step_count;
    sum.read_entries += counts.read_entries;
    AddTo(counts.changed, sum.changed);
    AddTo(counts.all, sum.all);
    sum.together.cluster_count += counts.together.cluster_count;
    sum.together.partner_count += counts.together.partner_count;
    sum.together.by_chance += counts.together.by_chance;
    sum.delay.flagged_count += counts.delay.flagged_count;
    sum.delay.unread_count += counts.delay.unread_count;
    sum.delay.unread_entries += counts.delay.unread_entries;
    sum.delay.split_count += counts.delay.split_count;
    sum.delay.forced_count += counts.delay.forced_count;
    sum.delay.forced_entries += counts.delay.forced_entries;
  }
  return sum;
}

}  // namespace cairn::eval
