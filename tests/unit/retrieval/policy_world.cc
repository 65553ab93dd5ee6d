#include "tests/unit/retrieval/policy_world.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tests/tools/index_run.h"

namespace cairn::compute {

std::vector<IndexRecord> RecordsOf(std::span<const IndexRow> rows) {
  std::vector<IndexRecord> records;
  records.reserve(rows.size());
  for (const IndexRow& row : rows) {
    records.push_back({row.cluster, row.entry_count, row.stale, row.row});
  }
  return records;
}

PolicyWorld::PolicyWorld(const PolicyOptions& options, Make make, std::uint64_t seed)
    : options_(options),
      make_(std::move(make)),
      random_(seed),
      policy_(make_(options)),
      stored_(static_cast<std::size_t>(options.layout.layer_count), 0),
      loaded_(stored_.size()) {
  EXPECT_TRUE(policy_->keeper().RestoreState({}).ok());
  for (std::int32_t layer = 0; layer < options.layout.layer_count; ++layer) {
    for (std::int32_t head = 0; head < options.layout.head_count; ++head) {
      places_[{layer, head}] = {};
      held_[{layer, head}] = {};
    }
  }
}

std::span<const float> PolicyWorld::Key(std::int32_t layer, std::int32_t head,
                                        std::int64_t position) const {
  const std::size_t dim = static_cast<std::size_t>(options_.layout.head_dim);
  return std::span(keys_.at({layer, head})).subspan(static_cast<std::size_t>(position) * dim, dim);
}

std::vector<float> PolicyWorld::ValueOf(std::span<const float> key) {
  std::vector<float> value(key.rbegin(), key.rend());
  for (float& number : value) number = 1 - 2 * number;
  return value;
}

// Around a few points that wander, so that there are clusters and later keys leave them.
void PolicyWorld::MakeKeys(std::int64_t count) {
  std::normal_distribution<float> noise(0.0F, 0.3F);
  for (const auto& [where, unused] : places_) {
    std::vector<float>& keys = keys_[where];
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t position =
          static_cast<std::int64_t>(keys.size()) / options_.layout.head_dim;
      const std::uint64_t centre = random_() % 7;
      for (std::int64_t d = 0; d < options_.layout.head_dim; ++d) {
        const float base =
            static_cast<float>((centre * 31 + static_cast<std::uint64_t>(d) * 17) % 11);
        keys.push_back(base - 5 + 0.002F * static_cast<float>(position) + noise(random_));
      }
    }
  }
}

std::int64_t PolicyWorld::WindowStartAt(std::int64_t token_count) const {
  return std::max<std::int64_t>(0, token_count - policy_->keeper().WindowTokens(token_count)) / 8 *
         8;
}

LoadedCluster PolicyWorld::Load(std::int32_t layer, const ClusterRef& cluster) const {
  LoadedCluster loaded{.cluster = cluster};
  const auto add = [&](const std::map<std::int64_t, ClusterId>& from) {
    for (const auto& [position, id] : from) {
      if (id != cluster.cluster_id) continue;
      const std::span<const float> key = Key(layer, cluster.head, position);
      loaded.positions.Append(position);
      loaded.keys.insert(loaded.keys.end(), key.begin(), key.end());
      if (!policy_->traits().needs_values) continue;
      const std::vector<float> value = ValueOf(key);
      loaded.values.insert(loaded.values.end(), value.begin(), value.end());
    }
  };
  add(places_.at({layer, cluster.head}));
  loaded.stored_count = loaded.positions.count();
  add(held_.at({layer, cluster.head}));
  return loaded;
}

void PolicyWorld::Split(std::int32_t layer, const ClusterSplit& split) {
  std::map<std::int64_t, ClusterId>& places = places_[{layer, split.head}];
  std::map<std::int64_t, ClusterId>& held = held_[{layer, split.head}];
  std::vector<std::int64_t> before;
  for (const ClusterId parent : split.parent_ids) {
    for (std::map<std::int64_t, ClusterId>* from : {&places, &held}) {
      std::erase_if(*from, [&](const auto& place) {
        if (place.second != parent) return false;
        before.push_back(place.first);
        return true;
      });
    }
    rows_[{layer, split.head}].erase(parent.value());
  }
  std::vector<std::int64_t> after;
  for (const ChildCluster& child : split.children) {
    EXPECT_FALSE(child.positions.empty());
    child.positions.ForEach([&](std::int64_t position) {
      after.push_back(position);
      EXPECT_TRUE(places.emplace(position, child.cluster_id).second);
    });
  }
  std::sort(before.begin(), before.end());
  std::sort(after.begin(), after.end());
  EXPECT_EQ(before, after);
}

std::vector<float> PolicyWorld::MakeQueries(std::int64_t token_count) {
  std::normal_distribution<float> noise;
  const std::int64_t dim = options_.layout.head_dim;
  const std::int64_t length = options_.layout.head_count * options_.group_size * dim;
  std::vector<float> queries;
  for (std::int64_t i = 0; i < token_count * length; ++i) {
    queries.push_back(noise(random_) * (i % dim < dim / 4 ? 3.0F : 0.5F));
  }
  return queries;
}

void PolicyWorld::Leave(std::int32_t layer, std::int64_t until, std::span<const float> queries) {
  std::int64_t& stored = stored_[static_cast<std::size_t>(layer)];
  if (until <= stored) return;
  std::vector<float> values;
  std::vector<float> keys;
  for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
    for (std::int64_t position = stored; position < until; ++position) {
      const std::span<const float> key = Key(layer, head, position);
      keys.insert(keys.end(), key.begin(), key.end());
      if (!policy_->traits().needs_values) continue;
      const std::vector<float> value = ValueOf(key);
      values.insert(values.end(), value.begin(), value.end());
    }
  }
  const StoreActions actions = policy_->keeper().Store({.layer = layer,
                                                        .first_position = stored,
                                                        .token_count = until - stored,
                                                        .keys = keys,
                                                        .values = values,
                                                        .queries = queries,
                                                        .pool = nullptr});
  for (const Assignment& assignment : actions.appended) {
    const std::int32_t head = assignment.cluster.head;
    std::map<std::int64_t, ClusterId>& places = places_[{layer, head}];
    assignment.positions.ForEach([&](std::int64_t position) {
      const bool leaves_or_waited =
          position >= stored || held_[LayerHead(layer, head)].erase(position) == 1;
      EXPECT_TRUE(leaves_or_waited) << position;
      EXPECT_LT(position, until);
      for (const auto& [other, id] : places) {
        if (id == assignment.cluster.cluster_id) {
          EXPECT_LT(other, position);
        }
      }
      EXPECT_TRUE(places.emplace(position, assignment.cluster.cluster_id).second);
    });
  }
  for (const HeldEntry& entry : actions.held) {
    EXPECT_GE(entry.position, stored);
    std::map<std::int64_t, ClusterId>& held = held_[LayerHead(layer, entry.cluster.head)];
    EXPECT_TRUE(held.emplace(entry.position, entry.cluster.cluster_id).second);
  }
  stored = until;
}

void PolicyWorld::Settle(std::int64_t token_count) {
  for (std::int32_t layer = 0; layer < options_.layout.layer_count; ++layer) {
    std::vector<LoadedCluster>& loaded = loaded_[static_cast<std::size_t>(layer)];
    if (!loaded.empty()) {
      for (const ClusterSplit& split : policy_->keeper().Adapt(layer, loaded)) Split(layer, split);
    }
    loaded.clear();
    Leave(layer, WindowStartAt(token_count));
  }
}

void PolicyWorld::Prefill(std::int64_t count) {
  Settle(token_count_);
  MakeKeys(count);
  token_count_ += count;
  for (std::int32_t layer = 0; layer < options_.layout.layer_count; ++layer) {
    Leave(layer, WindowStartAt(token_count_), MakeQueries(count));
  }
}

std::vector<LoadedCluster> PolicyWorld::Select(std::int32_t layer) {
  const std::vector<float> queries = MakeQueries(1);
  const std::int64_t stored = stored_[static_cast<std::size_t>(layer)];
  const std::vector<FetchSlice> slices = policy_->selector().Select({.layer = layer,
                                                                     .stored_token_count = stored,
                                                                     .first_position = token_count_,
                                                                     .token_count = 1,
                                                                     .queries = queries,
                                                                     .pool = nullptr});
  std::vector<LoadedCluster> loaded;
  for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
    attended_[{layer, head}].clear();
  }
  for (const FetchSlice& slice : slices) {
    EXPECT_LE(slice.bytes, options_.fetch_slice_bytes);
    for (const PlannedCluster& planned : slice.clusters) {
      const LoadedCluster cluster = Load(layer, planned.cluster);
      EXPECT_EQ(planned.entry_count, cluster.stored_count)
          << planned.cluster.head << " " << planned.cluster.cluster_id.value();
      if (!planned.positions.empty()) {
        EXPECT_EQ(planned.positions, cluster.positions.Slice(0, cluster.stored_count));
      }
      std::vector<std::int64_t>& attended = attended_[{layer, planned.cluster.head}];
      if (planned.attended.empty()) {
        for (std::int64_t i = 0; i < cluster.stored_count; ++i) {
          attended.push_back(cluster.positions.at(i));
        }
      }
      for (const std::int32_t index : planned.attended) {
        attended.push_back(cluster.positions.at(index));
      }
      if (planned.adapt) loaded.push_back(cluster);
    }
  }
  for (auto& [where, positions] : attended_) {
    std::sort(positions.begin(), positions.end());
    EXPECT_EQ(std::adjacent_find(positions.begin(), positions.end()), positions.end());
    if (where.first != layer) continue;
    const std::int64_t in_memory = token_count_ + 1 - stored + std::ssize(held_.at(where));
    attended_count_max_ = std::max(attended_count_max_, std::ssize(positions) + in_memory);
  }
  return loaded;
}

void PolicyWorld::Step() {
  Settle(token_count_);
  attended_count_max_ = 0;
  for (std::int32_t layer = 0; layer < options_.layout.layer_count; ++layer) {
    loaded_[static_cast<std::size_t>(layer)] = Select(layer);
  }
  MakeKeys(1);
  ++token_count_;
}

void PolicyWorld::Regroup() {
  Settle(token_count_);
  ThreadPool pool(2);
  for (std::int32_t layer = 0; layer < options_.layout.layer_count; ++layer) {
    for (const ClusterGroup& group : policy_->keeper().Regroup(layer)) {
      std::vector<std::vector<LoadedCluster>> loaded(1);
      for (std::size_t i = 0; i < group.clusters.size(); ++i) {
        loaded[0].push_back(Load(layer, group.clusters[i]));
        EXPECT_EQ(loaded[0].back().stored_count, group.entry_counts[i]);
      }
      for (const ClusterSplit& split : policy_->keeper().Recluster(layer, loaded, pool)) {
        Split(layer, split);
      }
    }
  }
}

void PolicyWorld::FailedStep() {
  Settle(token_count_);
  for (std::int32_t layer = 0; layer < options_.layout.layer_count; ++layer) Select(layer);
}

void PolicyWorld::RestartWithout(std::int32_t layer, const std::vector<ClusterRef>& lost) {
  for (const ClusterRef& cluster : lost) {
    lost_rows_[{layer, cluster.head}].push_back(cluster.cluster_id.value());
  }
  Restart();
  lost_rows_.clear();
}

void PolicyWorld::ForkAt(std::int64_t token_count) {
  Settle(token_count_);
  for (std::int32_t layer = 0; layer < options_.layout.layer_count; ++layer) {
    for (const IndexRow& row : policy_->paged_index()->TakeChangedRows(layer)) {
      rows_[{layer, row.cluster.head}][row.cluster.cluster_id.value()] = row;
    }
  }
  state_token_count_ = token_count_;
  const PutPolicyState saved = policy_->keeper().SaveState();
  const std::vector<std::int64_t> ids = policy_->keeper().NextClusterIds();
  const bool forked = token_count < token_count_;
  token_count_ = token_count;
  ThreadPool pool(2);
  policy_ = make_(options_);
  const absl::Status restored =
      policy_->keeper().RestoreState({.version = saved.version,
                                      .state = saved.state,
                                      .next_cluster_ids = ids,
                                      .token_count = token_count,
                                      .state_token_count = state_token_count_});
  ASSERT_TRUE(restored.ok()) << Message(restored);
  const std::size_t dim = static_cast<std::size_t>(options_.layout.head_dim);
  for (auto& [where, keys] : keys_) keys.resize(static_cast<std::size_t>(token_count) * dim);
  for (auto* places : {&places_, &held_}) {
    for (auto& [where, positions] : *places) {
      positions.erase(positions.lower_bound(token_count), positions.end());
    }
  }
  for (std::int64_t& stored : stored_) stored = std::min(stored, token_count);
  for (std::int32_t layer = 0; layer < options_.layout.layer_count; ++layer) {
    std::vector<ClusterInfo> clusters;
    std::vector<IndexRow> rows;
    bool lost = false;
    for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
      std::map<ClusterId, Positions> found;
      for (const auto& [position, id] : places_[{layer, head}]) found[id].Append(position);
      for (const auto& [id, positions] : found) clusters.push_back({{head, id}, positions});
      std::erase_if(rows_[{layer, head}],
                    [&](const auto& row) { return !found.contains(ClusterId(row.first)); });
      for (const std::int64_t id : lost_rows_[{layer, head}]) {
        lost |= rows_[{layer, head}].erase(id) == 1;
      }
      for (const auto& [id, row] : rows_[{layer, head}]) rows.push_back(row);
    }
    if (policy_->paged_index() != nullptr) {
      const bool whole =
          !forked && !lost &&
          std::none_of(rows.begin(), rows.end(), [](const IndexRow& row) { return row.stale; });
      const absl::Status index = policy_->paged_index()->RestoreIndex(
          layer, RecordsOf(rows), whole ? nullptr : &clusters, pool);
      ASSERT_TRUE(index.ok()) << Message(index);
      if (!policy_->traits().needs_values) policy_->paged_index()->UnloadIndex(layer);
    }
    if (policy_->traits().rebuilds_from_keys) {
      std::vector<LoadedCluster> all;
      all.reserve(clusters.size());
      for (const ClusterInfo& info : clusters) {
        LoadedCluster cluster = Load(layer, info.cluster);
        cluster.positions = info.positions;
        cluster.keys.resize(static_cast<std::size_t>(cluster.stored_count) * dim);
        all.push_back(std::move(cluster));
      }
      ASSERT_TRUE(policy_->keeper().Rebuild(layer, all).ok());
    }
    for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
      for (const auto& [position, id] : held_[{layer, head}]) {
        ASSERT_TRUE(policy_->keeper().RestoreHeld(layer, {{head, id}, position}).ok());
      }
    }
    if (policy_->paged_index() != nullptr) {
      const std::string run = test::IndexRunOf(rows);
      const IndexRecords records{std::as_bytes(std::span(run)), std::ssize(rows)};
      EXPECT_EQ(policy_->paged_index()->LoadIndex(layer, {&records, 1}, pool), 0);
    }
  }
}

void PolicyWorld::CheckPlaces() const {
  for (const auto& [where, places] : places_) {
    const std::map<std::int64_t, ClusterId>& held = held_.at(where);
    const std::int64_t stored = stored_[static_cast<std::size_t>(where.first)];
    for (std::int64_t position = 0; position < token_count_; ++position) {
      const int count = static_cast<int>(places.contains(position)) +
                        static_cast<int>(held.contains(position)) + (position >= stored ? 1 : 0);
      ASSERT_EQ(count, 1) << "layer " << where.first << " head " << where.second << " position "
                          << position;
    }
  }
}

}  // namespace cairn::compute
