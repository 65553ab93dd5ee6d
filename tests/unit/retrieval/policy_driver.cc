#include "tests/unit/retrieval/policy_driver.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include <gtest/gtest.h>

#include "compute-node/retrieval/policy_registry.h"
#include "tests/tools/rng.h"

namespace cairn::compute {
namespace {

constexpr std::int64_t kWindowStep = 8;
constexpr std::int64_t kWindowMax = 120;

std::int64_t DriverWindowStart(const ClusterKeeper& policy, std::int64_t token_count) {
  const std::int64_t kept = std::min(policy.WindowTokens(token_count), kWindowMax);
  return std::max<std::int64_t>(0, token_count - kept) / kWindowStep * kWindowStep;
}

std::vector<float> RandomRow(std::uint64_t seed, std::int64_t kind, std::int64_t layer,
                             std::int64_t head, std::int64_t position, std::int64_t dim) {
  std::uint64_t mixed = seed;
  for (const std::int64_t part : {kind, layer, head, position}) {
    mixed = test::SplitMix64(mixed) + static_cast<std::uint64_t>(part);
  }
  test::Rng random(mixed);
  std::vector<float> row(static_cast<std::size_t>(dim));
  for (float& value : row) value = random.Normal();
  return row;
}

}  // namespace

PolicyOptions DriverOptions() {
  PolicyOptions options;
  options.layout = {.layer_count = 2, .head_count = 2, .head_dim = 16, .kv_format = KvFormat::kF32};
  options.group_size = 2;
  options.part_bytes_max = 65536;
  options.fetch_slice_bytes = 20000;
  options.selection.select_tokens_min = 64;
  options.selection.select_percent = 10;
  return options;
}

PolicyDriver::PolicyDriver(std::string name, const PolicyOptions& options, std::uint64_t data_seed)
    : name_(std::move(name)),
      options_(options),
      data_seed_(data_seed),
      policy_(MakePolicy(name_, options).value()) {
  EXPECT_TRUE(policy_->keeper().RestoreState({}).ok());
  for (std::int32_t layer = 0; layer < options.layout.layer_count; ++layer) {
    for (std::int32_t head = 0; head < options.layout.head_count; ++head) held_[{layer, head}];
  }
}

std::vector<float> PolicyDriver::Keys(std::int32_t layer, std::int64_t first,
                                      std::int64_t count) const {
  std::vector<float> keys;
  for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::vector<float> row =
          RandomRow(data_seed_, 0, layer, head, first + i, options_.layout.head_dim);
      keys.insert(keys.end(), row.begin(), row.end());
    }
  }
  return keys;
}

std::vector<float> PolicyDriver::Queries(std::int32_t layer, std::int64_t token_count) const {
  std::vector<float> queries;
  const std::int64_t heads = options_.layout.head_count * options_.group_size;
  for (std::int64_t token = 0; token < token_count; ++token) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::vector<float> row =
          RandomRow(data_seed_, 1, layer, head, token_count_ + token, options_.layout.head_dim);
      for (const float value : row) queries.push_back(2 * value);
    }
  }
  return queries;
}

SelectionInput PolicyDriver::Input(std::int32_t layer, std::int64_t token_count,
                                   const std::vector<float>& queries) const {
  return {.layer = layer,
          .stored_token_count = stored_count_,
          .first_position = token_count_,
          .token_count = token_count,
          .queries = queries};
}

PolicyDriver::Attended PolicyDriver::PlannedFor(const std::vector<FetchSlice>& plan,
                                                std::int32_t layer, std::int32_t head) const {
  Attended attended;
  for (const FetchSlice& slice : plan) {
    for (const PlannedCluster& cluster : slice.clusters) {
      if (cluster.cluster.head != head && cluster.cluster.head != kAllHeads) continue;
      const auto stored = clusters_.find({layer, cluster.cluster});
      if (stored == clusters_.end()) {
        ADD_FAILURE() << name_ << ": cluster " << cluster.cluster.cluster_id.value()
                      << " is not stored";
        continue;
      }
      EXPECT_EQ(cluster.entry_count, stored->second.count());
      if (!cluster.positions.empty()) {
        EXPECT_EQ(cluster.positions, stored->second);
      }
      EXPECT_TRUE(std::is_sorted(cluster.attended.begin(), cluster.attended.end()));
      ++attended.cluster_count;
      const auto add = [&](std::int64_t position) {
        EXPECT_TRUE(attended.positions.insert(position).second) << position << " twice";
      };
      if (cluster.attended.empty()) stored->second.ForEach(add);
      for (const std::int32_t index : cluster.attended) add(stored->second.at(index));
    }
  }
  return attended;
}

std::map<PolicyDriver::LayerHead, PolicyDriver::Attended> PolicyDriver::Plan(
    ThreadPool* pool) const {
  std::map<LayerHead, Attended> all;
  for (std::int32_t layer = 0; layer < options_.layout.layer_count; ++layer) {
    const std::vector<float> queries = Queries(layer, 1);
    SelectionInput input = Input(layer, 1, queries);
    input.pool = pool;
    const std::vector<FetchSlice> plan = policy_->selector().Select(input);
    const std::optional<std::vector<Positions>> held_selected =
        policy_->selector().SelectHeld(input);
    for (const FetchSlice& slice : plan) {
      EXPECT_TRUE(slice.bytes <= options_.fetch_slice_bytes || slice.clusters.size() == 1);
    }
    for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
      Attended& attended = all[{layer, head}] = PlannedFor(plan, layer, head);
      for (const auto& [position, cluster] : held_.at({layer, head})) {
        if (held_selected && !(*held_selected)[static_cast<std::size_t>(head)].Contains(position)) {
          continue;
        }
        EXPECT_TRUE(attended.positions.insert(position).second) << position << " twice";
      }
    }
  }
  return all;
}

void PolicyDriver::Step(std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    Store(false);
    const std::int64_t selected = SelectedTokens(options_.selection, token_count_ + 1);
    const std::int64_t recent = token_count_ + 1 - stored_count_;
    const std::map<LayerHead, Attended> plan = Plan();
    const bool adapts = Adapt();
    for (const auto& [key, attended] : plan) {
      // What clusters are made from may be more, once.
      if (!adapts) {
        ASSERT_LE(std::ssize(attended.positions) + recent, selected)
            << name_ << " token " << token_count_;
      }
      const std::int64_t sinks = std::min(kSinkTokens, stored_count_);
      for (std::int64_t sink = 0; sink < sinks; ++sink) {
        ASSERT_TRUE(attended.positions.contains(sink)) << name_ << " sink " << sink;
      }
      if (token_count_ + 1 <= selected) {
        ASSERT_EQ(std::ssize(attended.positions), stored_count_) << name_;
      }
    }
    std::map<LayerHead, std::vector<std::int64_t>> positions;
    for (const auto& [key, attended] : plan) {
      positions[key].assign(attended.positions.begin(), attended.positions.end());
    }
    TellWeights(1, positions);
    ++token_count_;
  }
}

void PolicyDriver::TellWeights(std::int64_t token_count,
                               const std::map<LayerHead, std::vector<std::int64_t>>& attended) {
  WeightObserver* observer = policy_->weight_observer();
  const std::int64_t weighed = observer == nullptr ? 0 : observer->WeighedTokens(token_count);
  if (weighed == 0) return;
  const std::int64_t end = token_count_ + token_count;
  for (std::int32_t layer = 0; layer < options_.layout.layer_count; ++layer) {
    std::vector<AttendedEntries> heads;
    for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
      AttendedEntries& entries = heads.emplace_back();
      entries.fetched = attended.at({layer, head});
      entries.recent_first = stored_count_;
      const std::int64_t count = std::ssize(entries.fetched) + end - stored_count_;
      for (std::int64_t token = end - weighed; token < end; ++token) {
        test::Rng random(data_seed_ + static_cast<std::uint64_t>((token * 2 + layer) * 2 + head));
        for (std::int64_t i = 0; i < count; ++i) {
          const float weight = std::abs(random.Normal()) / static_cast<float>(count);
          entries.weights.push_back(entries.PositionOf(i) > token ? 0.0F : weight);
        }
      }
    }
    observer->TakeWeights(
        {.layer = layer, .first_position = end - weighed, .token_count = weighed, .heads = heads});
  }
}

bool PolicyDriver::Adapt() {
  bool adapts = false;
  for (std::int32_t layer = 0; layer < options_.layout.layer_count; ++layer) {
    const std::vector<float> queries = Queries(layer, 1);
    std::vector<LoadedCluster> loaded;
    for (const FetchSlice& slice : policy_->selector().Select(Input(layer, 1, queries))) {
      for (const PlannedCluster& planned : slice.clusters) {
        if (!planned.adapt) continue;
        loaded.push_back(Load(layer, planned.cluster, clusters_.at({layer, planned.cluster})));
      }
    }
    if (loaded.empty()) continue;
    adapts = true;
    EXPECT_TRUE(policy_->keeper().Adapt(layer, loaded).empty());
  }
  return adapts;
}

LoadedCluster PolicyDriver::Load(std::int32_t layer, const ClusterRef& ref,
                                 const Positions& positions) const {
  LoadedCluster loaded{.cluster = ref, .positions = positions, .stored_count = positions.count()};
  const bool of_all = ref.head == kAllHeads;
  positions.ForEach([&](std::int64_t position) {
    for (std::int32_t head = of_all ? 0 : ref.head;
         head < (of_all ? options_.layout.head_count : ref.head + 1); ++head) {
      const std::vector<float> row =
          RandomRow(data_seed_, 0, layer, head, position, options_.layout.head_dim);
      loaded.keys.insert(loaded.keys.end(), row.begin(), row.end());
    }
  });
  return loaded;
}

void PolicyDriver::Prefill(std::int64_t token_count) {
  Store(false);
  for (std::int32_t layer = 0; layer < options_.layout.layer_count; ++layer) {
    const std::vector<float> queries = Queries(layer, token_count);
    const std::vector<FetchSlice> plan =
        policy_->selector().Select(Input(layer, token_count, queries));
    for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
      const std::int64_t planned = std::ssize(PlannedFor(plan, layer, head).positions);
      ASSERT_EQ(planned + held_count(layer, head), stored_count_) << name_;
    }
  }
  std::map<LayerHead, std::vector<std::int64_t>> all;
  for (const auto& [key, held] : held_) {
    all[key].resize(static_cast<std::size_t>(stored_count_));
    std::iota(all[key].begin(), all[key].end(), 0);
  }
  TellWeights(token_count, all);
  token_count_ += token_count;
  Store(true);
}

// All layers: what has left the window of token_count_ tokens.
void PolicyDriver::Store(bool of_prompt) {
  const std::int64_t until = DriverWindowStart(policy_->keeper(), token_count_);
  if (until <= stored_count_) return;
  for (std::int32_t layer = 0; layer < options_.layout.layer_count; ++layer) {
    const std::int64_t count = until - stored_count_;
    const std::vector<float> keys =
        policy_->traits().needs_keys ? Keys(layer, stored_count_, count) : std::vector<float>();
    const StoreActions actions = policy_->keeper().Store({.layer = layer,
                                                          .first_position = stored_count_,
                                                          .token_count = count,
                                                          .keys = keys,
                                                          .of_prompt = of_prompt});
    std::map<LayerHead, std::int64_t> counts;
    for (const Assignment& assignment : actions.appended) {
      const LayerHead key{layer, assignment.cluster.head};
      Positions& cluster = clusters_[{layer, assignment.cluster}];
      if (!cluster.empty()) {
        ASSERT_LT(cluster.last(), assignment.positions.first());
      }
      cluster.AppendAll(assignment.positions);
      if (assignment.cluster.head == kAllHeads) {
        for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
          counts[{layer, head}] += assignment.positions.count();
        }
        continue;
      }
      counts[key] += assignment.positions.count();
      assignment.positions.ForEach([&](std::int64_t position) {
        if (position < stored_count_) {
          counts[key] -= static_cast<std::int64_t>(held_[key].erase(position));
        }
      });
    }
    for (const HeldEntry& held : actions.held) {
      const LayerHead key{layer, held.cluster.head};
      ASSERT_TRUE(held_[key].emplace(held.position, held.cluster.cluster_id).second);
      ++counts[key];
    }
    for (const auto& [key, stored] : counts) ASSERT_EQ(stored, count);
    ASSERT_EQ(std::ssize(counts), options_.layout.head_count);
  }
  stored_count_ = until;
}

double PolicyDriver::Recall() const {
  const std::size_t dim = static_cast<std::size_t>(options_.layout.head_dim);
  double sum = 0;
  std::int64_t count = 0;
  for (const auto& [key, attended] : Plan()) {
    const std::vector<float> keys = Keys(key.first, 0, stored_count_);
    const std::vector<float> queries = Queries(key.first, 1);
    for (std::int64_t of_group = 0; of_group < options_.group_size; ++of_group) {
      const float* query =
          queries.data() +
          static_cast<std::size_t>(key.second * options_.group_size + of_group) * dim;
      double all = 0;
      double seen = 0;
      for (std::int64_t position = 0; position < stored_count_; ++position) {
        const float* row =
            keys.data() + static_cast<std::size_t>(key.second * stored_count_ + position) * dim;
        double score = 0;
        for (std::size_t i = 0; i < dim; ++i) score += double{query[i]} * row[i];
        const double mass = std::exp(score / std::sqrt(static_cast<double>(dim)));
        all += mass;
        if (attended.positions.contains(position)) seen += mass;
      }
      sum += seen / all;
      ++count;
    }
  }
  return sum / static_cast<double>(count);
}

void PolicyDriver::TakeRows() {
  if (policy_->paged_index() == nullptr) return;
  for (std::int32_t layer = 0; layer < options_.layout.layer_count; ++layer) {
    std::vector<IndexRow> rows = policy_->paged_index()->TakeChangedRows(layer);
    // As a checkpoint that fails gives them back.
    std::vector<ClusterRef> clusters;
    clusters.reserve(rows.size());
    for (const IndexRow& row : rows) clusters.push_back(row.cluster);
    policy_->paged_index()->ReturnRows(layer, clusters);
    const std::vector<IndexRow> again = policy_->paged_index()->TakeChangedRows(layer);
    ASSERT_EQ(again.size(), rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(again[i].row, rows[i].row);
      rows_[{layer, rows[i].cluster}] = std::move(rows[i]);
    }
  }
}

void PolicyDriver::LoseRows(const std::function<bool(const ClusterRef&)>& lose) {
  std::erase_if(rows_, [&](const auto& row) { return lose(row.first.second); });
}

std::int64_t PolicyDriver::CountWithoutRow() const {
  return std::count_if(clusters_.begin(), clusters_.end(), [&](const auto& cluster) {
    const auto row = rows_.find(cluster.first);
    return row == rows_.end() || row->second.entry_count < cluster.second.count();
  });
}

absl::Status PolicyDriver::RestoreIndex() {
  if (policy_->paged_index() == nullptr) return absl::OkStatus();
  ThreadPool pool(1);
  for (std::int32_t layer = 0; layer < options_.layout.layer_count; ++layer) {
    std::vector<IndexRecord> records;
    std::vector<ClusterInfo> infos;
    bool complete = true;
    for (const auto& [key, positions] : clusters_) {
      if (key.first != layer) continue;
      infos.push_back({key.second, positions});
      const auto row = rows_.find(key);
      complete = complete && row != rows_.end() && row->second.entry_count == positions.count();
      if (row == rows_.end()) continue;
      records.push_back({key.second, row->second.entry_count, row->second.stale, row->second.row});
    }
    CAIRN_RETURN_IF_ERROR(
        policy_->paged_index()->RestoreIndex(layer, records, complete ? nullptr : &infos, pool));
  }
  return absl::OkStatus();
}

absl::Status PolicyDriver::Fork(std::int64_t token_count) {
  TakeRows();
  const PutPolicyState saved = policy_->keeper().SaveState();
  EXPECT_LE(std::ssize(saved.state), kPolicyStateBytesMax);
  const std::vector<std::int64_t> next_ids = policy_->keeper().NextClusterIds();
  for (const auto& [key, positions] : clusters_) {
    const std::int64_t heads = options_.layout.head_count;
    const std::int64_t head = key.second.head == kAllHeads ? heads : key.second.head;
    const std::size_t index = static_cast<std::size_t>(key.first * (heads + 1) + head);
    EXPECT_LT(key.second.cluster_id.value(), next_ids[index]);
  }
  for (auto it = clusters_.begin(); it != clusters_.end();) {
    it->second = it->second.Slice(0, it->second.CountBelow(token_count));
    it = it->second.empty() ? clusters_.erase(it) : std::next(it);
  }
  for (auto& [key, held] : held_) held.erase(held.lower_bound(token_count), held.end());
  const std::int64_t state_token_count = token_count_;
  token_count_ = token_count;
  stored_count_ = std::min(stored_count_, token_count);
  policy_ = MakePolicy(name_, options_).value();
  CAIRN_RETURN_IF_ERROR(policy_->keeper().RestoreState({.version = saved.version,
                                                        .state = saved.state,
                                                        .next_cluster_ids = next_ids,
                                                        .token_count = token_count,
                                                        .state_token_count = state_token_count}));
  CAIRN_RETURN_IF_ERROR(RestoreIndex());
  return RebuildFromKeys();
}

absl::Status PolicyDriver::RebuildFromKeys() {
  for (std::int32_t layer = 0; layer < options_.layout.layer_count; ++layer) {
    std::map<ClusterRef, LoadedCluster> loaded;
    for (const auto& [key, positions] : clusters_) {
      if (key.first != layer) continue;
      loaded[key.second].positions = positions;
      loaded[key.second].stored_count = positions.count();
    }
    for (std::int32_t head = 0; head < options_.layout.head_count; ++head) {
      for (const auto& [position, cluster] : held_.at({layer, head})) {
        loaded[{head, cluster}].positions.Append(position);
        absl::Status status = policy_->keeper().RestoreHeld(layer, {{head, cluster}, position});
        if (!status.ok()) return status;
      }
    }
    if (!policy_->traits().rebuilds_from_keys) continue;
    std::vector<LoadedCluster> clusters;
    for (auto& each : loaded) {
      const ClusterRef& ref = each.first;
      LoadedCluster cluster = Load(layer, ref, each.second.positions);
      cluster.stored_count = each.second.stored_count;
      clusters.push_back(std::move(cluster));
    }
    CAIRN_RETURN_IF_ERROR(policy_->keeper().Rebuild(layer, clusters));
  }
  return absl::OkStatus();
}

}  // namespace cairn::compute
