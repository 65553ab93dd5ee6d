// GroupPolicy, for tests: groups of consecutive tokens are clusters, either of all KV heads or, of
// the same groups, of each head. Where it looks at keys it compares them with those that it stored.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/mutex.h"
#include "compute-node/retrieval/fetch_plan.h"
#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

struct GroupOptions {
  std::int64_t group_entries = 32;
  bool all_heads = true;
  bool without_queries = false;
  bool chooses = false;   // steps leave out groups, and of others every second token
  bool holds = false;     // tokens wait until they fill their group
  bool adapts = false;    // a step cuts a group of each layer that is whole, or waited for, in two
  bool regroups = false;  // a prompt of several chunks makes one of each layer's first two groups
};

// The keys of a conversation: by layer and position (KV head, head_dim).
struct KeyLog {
  std::map<std::pair<std::int32_t, std::int64_t>, std::vector<float>> keys{};
  // Several layers are stored at once. A copy has the same.
  std::shared_ptr<Mutex> mutex = std::make_shared<Mutex>();
};

class GroupPolicy : public BasicPolicy {
 public:
  GroupPolicy(const PolicyOptions& options, const GroupOptions& groups, KeyLog& keys)
      : BasicPolicy({.name = "groups",
                     .selects_without_queries = groups.without_queries,
                     .needs_keys = true,
                     .rebuilds_from_keys = true}),
        options_(options),
        groups_(groups),
        keys_(keys),
        layers_(static_cast<std::size_t>(options.layout.layer_count)) {}

  std::vector<FetchSlice> Select(const SelectionInput& input) const override {
    std::vector<FetchSlice> plan;
    const bool is_step = input.token_count == 1;
    bool adapts = is_step && groups_.adapts;
    std::int64_t turn = input.first_position + input.layer;
    for (const Group& group : LayerAt(input.layer).groups) {
      PlannedCluster planned;
      planned.entry_count = group.positions.count();
      planned.positions = group.positions;
      if (is_step && groups_.chooses) {
        if (++turn % 3 == 0) continue;
        for (std::int32_t i = 0; turn % 3 == 1 && i < planned.entry_count; i += 2) {
          planned.attended.push_back(i);
        }
      }
      const bool is_whole = planned.entry_count == groups_.group_entries;
      planned.adapt = adapts && (is_whole || Waits(LayerAt(input.layer), group.id));
      adapts = adapts && !planned.adapt;
      for (std::int32_t head = first_head(); head < end_head(); ++head) {
        planned.cluster = {head, group.id};
        AddToPlan(options_, planned, plan);
      }
    }
    return plan;
  }

  StoreActions Store(const LeavingEntries& leaving) override {
    LogKeys(leaving);
    Layer& layer = LayerAt(leaving.layer);
    StoreActions actions;
    const std::int64_t end = leaving.first_position + leaving.token_count;
    std::int64_t next = layer.waiting.empty() ? leaving.first_position : layer.waiting.first();
    while (next < end) {
      const bool grows = !layer.groups.empty() && Room(layer.groups.back()) > 0;
      const std::int64_t room = grows ? Room(layer.groups.back()) : groups_.group_entries;
      if (layer.waiting.empty()) layer.waiting_for = grows ? layer.groups.back().id : kNoGroup;
      if (groups_.holds && end - next < room) {
        for (std::int64_t at = std::max(next, leaving.first_position); at < end; ++at) {
          for (std::int32_t head = first_head(); head < end_head(); ++head) {
            actions.held.push_back({{head, layer.waiting_for}, at});
          }
        }
        layer.waiting = Positions::Range(next, end - next);
        break;
      }
      const Positions filled = Positions::Range(next, std::min(room, end - next));
      if (!grows) layer.groups.push_back({ClusterId(layer.next_id++), {}});
      layer.groups.back().positions.AppendAll(filled);
      for (std::int32_t head = first_head(); head < end_head(); ++head) {
        actions.appended.push_back({{head, layer.groups.back().id}, filled});
      }
      layer.waiting = Positions();
      next += filled.count();
    }
    return actions;
  }

  std::vector<ClusterSplit> Adapt(std::int32_t layer_index,
                                  std::span<const LoadedCluster> clusters) override {
    Layer& layer = LayerAt(layer_index);
    std::vector<ClusterSplit> splits;
    const std::int64_t first_id = layer.next_id;
    for (const LoadedCluster& loaded : clusters) {
      CheckKeys(layer_index, loaded);
      const std::int64_t half = loaded.positions.count() / 2;
      splits.push_back(
          {.head = loaded.cluster.head,
           .parent_ids = {loaded.cluster.cluster_id},
           .children = {{ClusterId(first_id), loaded.positions.Slice(0, half)},
                        {ClusterId(first_id + 1),
                         loaded.positions.Slice(half, loaded.positions.count() - half)}}});
    }
    if (!splits.empty()) Replace(layer, splits.front());
    adapted_count += std::ssize(splits);
    return splits;
  }

  std::vector<ClusterGroup> Regroup(std::int32_t layer) override {
    std::vector<ClusterGroup> groups;
    const std::vector<Group>& all = LayerAt(layer).groups;
    if (!groups_.regroups || all.size() < 2) return groups;
    for (std::int32_t head = first_head(); head < end_head(); ++head) {
      groups.push_back({{{head, all[0].id}, {head, all[1].id}},
                        {all[0].positions.count(), all[1].positions.count()}});
    }
    return groups;
  }
  // Loads are small: all heads come at once.
  std::vector<ClusterSplit> Recluster(std::int32_t layer_index,
                                      std::span<const std::vector<LoadedCluster>> groups,
                                      ThreadPool& /*pool*/) override {
    Layer& layer = LayerAt(layer_index);
    EXPECT_EQ(std::ssize(groups), end_head() - first_head());
    std::vector<ClusterSplit> splits;
    for (const std::vector<LoadedCluster>& group : groups) {
      ClusterSplit& split = splits.emplace_back();
      Positions positions;
      for (const LoadedCluster& loaded : group) {
        CheckKeys(layer_index, loaded);
        split.head = loaded.cluster.head;
        split.parent_ids.push_back(loaded.cluster.cluster_id);
        positions.AppendAll(loaded.positions);
      }
      split.children = {{ClusterId(layer.next_id), std::move(positions)}};
    }
    Replace(layer, splits.front());
    regrouped_count += std::ssize(splits);
    return splits;
  }

  std::vector<std::int64_t> NextClusterIds() const override {
    std::vector<std::int64_t> ids;
    for (const Layer& layer : layers_) {
      for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
        ids.push_back(groups_.all_heads ? 1 : layer.next_id);
      }
      ids.push_back(groups_.all_heads ? layer.next_id : 1);
    }
    return ids;
  }
  PutPolicyState SaveState() const override { return {.version = 1, .state = "groups"}; }
  absl::Status RestoreState(const StoredPolicyState& stored) override {
    std::fill(layers_.begin(), layers_.end(), Layer());
    if (stored.version == 0) return absl::OkStatus();
    EXPECT_EQ(stored.state, "groups");
    const std::size_t heads = static_cast<std::size_t>(options_.layout.head_count);
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      const std::size_t at = layer * (heads + 1) + (groups_.all_heads ? heads : 0);
      layers_[layer].next_id = stored.next_cluster_ids[at];
    }
    return absl::OkStatus();
  }
  absl::Status RestoreHeld(std::int32_t layer_index, const HeldEntry& held) override {
    Layer& layer = LayerAt(layer_index);
    EXPECT_TRUE(held.cluster.head >= first_head() && held.cluster.head < end_head());
    if (held.cluster.head != first_head()) return absl::OkStatus();
    layer.waiting.Append(held.position);
    layer.waiting_for = held.cluster.cluster_id;
    return absl::OkStatus();
  }
  absl::Status Rebuild(std::int32_t layer_index, std::span<const LoadedCluster> clusters) override {
    Layer& layer = LayerAt(layer_index);
    for (const LoadedCluster& loaded : clusters) {
      CheckKeys(layer_index, loaded);
      if (loaded.cluster.head != first_head() || loaded.stored_count == 0) continue;
      layer.groups.push_back(
          {loaded.cluster.cluster_id, loaded.positions.Slice(0, loaded.stored_count)});
    }
    SortGroups(layer);
    return absl::OkStatus();
  }

  // Clusters, over all layers and conversations.
  static inline std::atomic<std::int64_t> adapted_count = 0;
  static inline std::atomic<std::int64_t> regrouped_count = 0;

 private:
  // Instead of a group that does not exist yet: an id that none gets.
  static constexpr ClusterId kNoGroup{1};

  struct Group {
    ClusterId id;
    Positions positions;
  };
  struct Layer {
    std::vector<Group> groups;  // by position
    std::int64_t next_id = kNoGroup.value() + 1;
    Positions waiting;
    ClusterId waiting_for = kNoGroup;
  };

  // Heads of its clusters, [first, end).
  std::int32_t first_head() const { return groups_.all_heads ? kAllHeads : 0; }
  std::int32_t end_head() const { return groups_.all_heads ? 0 : options_.layout.head_count; }
  Layer& LayerAt(std::int32_t layer) { return layers_[static_cast<std::size_t>(layer)]; }
  const Layer& LayerAt(std::int32_t layer) const {
    return layers_[static_cast<std::size_t>(layer)];
  }
  std::int64_t Room(const Group& group) const {
    return groups_.group_entries - group.positions.count();
  }

  static bool Waits(const Layer& layer, ClusterId group) {
    return !layer.waiting.empty() && layer.waiting_for == group;
  }

  static void SortGroups(Layer& layer) {
    std::sort(layer.groups.begin(), layer.groups.end(), [](const Group& a, const Group& b) {
      return a.positions.first() < b.positions.first();
    });
  }
  static void Replace(Layer& layer, const ClusterSplit& split) {
    std::erase_if(layer.groups, [&](const Group& group) {
      return std::count(split.parent_ids.begin(), split.parent_ids.end(), group.id) > 0;
    });
    for (const ChildCluster& child : split.children) {
      layer.groups.push_back({child.cluster_id, child.positions});
    }
    layer.next_id += std::ssize(split.children);
    for (const ClusterId parent : split.parent_ids) {
      if (Waits(layer, parent)) layer.waiting = Positions();
    }
    SortGroups(layer);
  }

  void LogKeys(const LeavingEntries& leaving) {
    const MutexLock lock(*keys_.mutex);
    const std::int64_t dim = options_.layout.head_dim;
    for (std::int64_t i = 0; i < leaving.token_count; ++i) {
      std::vector<float>& logged = keys_.keys[{leaving.layer, leaving.first_position + i}];
      logged.clear();
      for (std::int64_t head = 0; head < options_.layout.head_count; ++head) {
        const auto key = leaving.keys.begin() + (head * leaving.token_count + i) * dim;
        logged.insert(logged.end(), key, key + dim);
      }
    }
  }
  void CheckKeys(std::int32_t layer, const LoadedCluster& loaded) const {
    const MutexLock lock(*keys_.mutex);
    const std::int64_t dim = options_.layout.head_dim;
    const std::int32_t head = loaded.cluster.head;
    std::vector<float> expected;
    loaded.positions.ForEach([&](std::int64_t at) {
      const std::vector<float>& logged = keys_.keys.at({layer, at});
      const auto first = logged.begin() + (head == kAllHeads ? 0 : head * dim);
      expected.insert(expected.end(), first, head == kAllHeads ? logged.end() : first + dim);
    });
    EXPECT_EQ(loaded.keys, expected) << "layer " << layer << " head " << head;
  }

  const PolicyOptions options_;
  const GroupOptions groups_;
  KeyLog& keys_;
  std::vector<Layer> layers_;
};

}  // namespace cairn::compute
