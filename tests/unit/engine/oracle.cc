#include "tests/unit/engine/oracle.h"

#include <algorithm>
#include <iterator>

#include "tests/unit/engine/engine_harness.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kWindowTokens = 6;
constexpr std::size_t kSplitEntriesMin = 6;

}  // namespace

void Oracle::CutTo(std::int64_t limit) {
  token_count = limit;
  window_start = std::min(window_start, limit);
  truth.resize(static_cast<std::size_t>(limit));
  for (auto& [layer_head, by_id] : clusters) {
    for (auto& [id, positions] : by_id) {
      std::erase_if(positions, [limit](std::int64_t p) { return p >= limit; });
    }
    std::erase_if(by_id, [](const auto& cluster) { return cluster.second.empty(); });
  }
}

RandomOperations::RandomOperations(Random random)
    : layout_(SmallLayout()), random_(std::move(random)) {}

std::vector<std::int32_t> RandomOperations::HeadsOf(std::int32_t layer) {
  if (layer == 1) return {kAllHeads};
  return {0, 1};
}

std::string RandomOperations::Entries(const Oracle& oracle, std::int32_t layer, std::int32_t head,
                                      const Positions& positions) const {
  std::string out;
  positions.ForEach([&](std::int64_t p) {
    out += EntryBytes(layout_, oracle.truth[static_cast<std::size_t>(p)], layer, head, p);
  });
  return out;
}

Append RandomOperations::Assign(Oracle& oracle, std::int32_t layer, std::int32_t head,
                                std::int64_t position, std::int64_t fresh_one_in) {
  auto& clusters = oracle.clusters[{layer, head}];
  std::int64_t& next_id = oracle.next_id[{layer, head}];
  std::int64_t id = 0;
  if (clusters.empty() || random_(fresh_one_in) == 0) {
    id = ++next_id;
  } else {
    auto it = clusters.begin();
    std::advance(it, random_(std::ssize(clusters)));
    id = it->first;
  }
  clusters[id].push_back(position);
  Append op;
  op.layer = layer;
  const Positions positions = Positions::Range(position, 1);
  op.clusters.push_back(
      {{head, ClusterId(id)}, positions, Entries(oracle, layer, head, positions)});
  return op;
}

std::vector<Append> RandomOperations::Decode(Oracle& oracle, std::int64_t fresh_one_in) {
  std::vector<Append> out;
  oracle.truth.push_back(next_truth_++);
  ++oracle.token_count;
  if (oracle.token_count - oracle.window_start <= kWindowTokens) return out;
  const std::int64_t leaves = oracle.window_start++;
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    for (const std::int32_t head : HeadsOf(layer)) {
      out.push_back(Assign(oracle, layer, head, leaves, fresh_one_in));
    }
  }
  return out;
}

std::vector<Replace> RandomOperations::Split(Oracle& oracle) {
  std::vector<Replace> out;
  const auto layer = static_cast<std::int32_t>(random_(layout_.layer_count));
  for (const std::int32_t head : HeadsOf(layer)) {
    auto& clusters = oracle.clusters[{layer, head}];
    const auto large = std::find_if(clusters.begin(), clusters.end(), [](const auto& cluster) {
      return cluster.second.size() >= kSplitEntriesMin;
    });
    if (large == clusters.end()) continue;
    std::vector<std::int64_t> halves[2];
    for (const std::int64_t p : large->second) halves[random_(2)].push_back(p);
    if (halves[0].empty() || halves[1].empty()) continue;
    Replace op;
    op.layer = layer;
    op.head = head;
    op.parent_ids = {ClusterId(large->first)};
    oracle.index[layer].erase({head, large->first});
    clusters.erase(large);
    for (std::vector<std::int64_t>& half : halves) {
      const std::int64_t id = ++oracle.next_id[{layer, head}];
      op.children.push_back({ClusterId(id), Positions::FromUnsorted(half)});
      clusters[id] = std::move(half);
    }
    out.push_back(std::move(op));
  }
  return out;
}

std::optional<Replace> RandomOperations::Evict(Oracle& oracle) {
  auto& clusters = oracle.clusters[{0, 1}];
  if (clusters.empty()) return std::nullopt;
  Replace op;
  op.layer = 0;
  op.head = 1;
  op.parent_ids = {ClusterId(clusters.begin()->first)};
  op.evicted_positions = Positions::FromUnsorted(clusters.begin()->second);
  oracle.index[0].erase({1, clusters.begin()->first});
  clusters.erase(clusters.begin());
  return op;
}

PutNeighbours RandomOperations::Relate(const Oracle& oracle) {
  PutNeighbours op;
  op.layer = static_cast<std::int32_t>(random_(layout_.layer_count));
  for (const std::int32_t head : HeadsOf(op.layer)) {
    const auto next_id = oracle.next_id.find({op.layer, head});
    const std::int64_t id_max = 2 + (next_id == oracle.next_id.end() ? 0 : next_id->second);
    for (std::int64_t id = 1; id <= id_max; ++id) {
      if (random_(2) == 0) continue;
      ClusterNeighbours cluster{{head, ClusterId(id)}, {}};
      const std::int64_t other = 1 + random_(id_max);
      const float weight = static_cast<float>(1 + random_(8)) / 8.0F;
      if (other != id) cluster.neighbours.push_back({ClusterId(other), weight});
      op.clusters.push_back(std::move(cluster));
    }
  }
  return op;
}

PutIndexRows RandomOperations::PutRows(Oracle& oracle) {
  PutIndexRows op;
  op.layer = static_cast<std::int32_t>(random_(layout_.layer_count));
  for (const std::int32_t head : HeadsOf(op.layer)) {
    for (const auto& [id, positions] : oracle.clusters[{op.layer, head}]) {
      if (random_(3) == 0) continue;
      // Often of one size, as they should be.
      const std::string bytes(static_cast<std::size_t>(random_(4) == 0 ? random_(300) : 24),
                              static_cast<char>('a' + random_(26)));
      IndexRow row{{head, ClusterId(id)}, bytes, random_(2) == 0, std::ssize(positions)};
      oracle.index[op.layer][{head, id}] = row;
      op.rows.push_back(std::move(row));
    }
  }
  return op;
}

bool RandomOperations::AreRowsOf(const Oracle& oracle, std::int32_t layer,
                                 const std::vector<IndexRow>& rows) {
  const auto found = oracle.index.find(layer);
  if (found == oracle.index.end()) return rows.empty();
  return std::equal(rows.begin(), rows.end(), found->second.begin(), found->second.end(),
                    [](const IndexRow& shown, const auto& expected) {
                      const IndexRow& row = expected.second;
                      return shown.cluster == row.cluster && shown.row == row.row &&
                             shown.stale == row.stale && shown.entry_count == row.entry_count;
                    });
}

std::vector<StageCarried> RandomOperations::StageWindow(const Oracle& oracle,
                                                        const std::set<std::int64_t>& recorded) {
  const Positions window = oracle.Window();
  Positions brought;
  window.ForEach([&](std::int64_t p) {
    if (!recorded.contains(p) || random_(4) == 0) brought.Append(p);
  });
  std::vector<StageCarried> out;
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    StageCarried stage;
    stage.layer = layer;
    for (const std::int32_t head : HeadsOf(layer)) {
      if (window.empty()) continue;
      stage.carried.push_back(
          {head, kWindowBuffer, window, brought, Entries(oracle, layer, head, brought)});
    }
    out.push_back(std::move(stage));
  }
  return out;
}

HintOperation RandomOperations::Hint(const Oracle& oracle, RequestId last) const {
  const auto layer = static_cast<std::int32_t>(random_(layout_.layer_count));
  const std::int64_t dice = random_(10);
  if (dice == 0) return Cancel{last};
  if (dice < 4) return LayerHint{layer};
  Prefetch op;
  op.layer = layer;
  for (const std::int32_t head : HeadsOf(layer)) {
    const auto used = oracle.next_id.find({layer, head});
    const std::int64_t next_id = used == oracle.next_id.end() ? 1 : used->second + 2;
    for (std::int64_t i = random_(6); i > 0; --i) {
      op.clusters.push_back({head, ClusterId(1 + random_(next_id))});
    }
  }
  return op;
}

Checkpoint RandomOperations::TakeCheckpoint(const Oracle& oracle, std::int64_t stored_count,
                                            bool seal) const {
  Checkpoint op;
  op.token_count = oracle.token_count;
  op.token_ids_start = std::min(stored_count, op.token_count);
  for (std::int64_t p = op.token_ids_start; p < op.token_count; ++p) {
    op.token_ids.push_back(static_cast<std::int32_t>(oracle.truth[static_cast<std::size_t>(p)]));
  }
  op.seal = seal;
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    for (const std::int32_t head : {0, 1, kAllHeads}) {
      const auto used = oracle.next_id.find({layer, head});
      op.next_cluster_ids.push_back(used == oracle.next_id.end() ? 1 : used->second + 1);
    }
  }
  return op;
}

}  // namespace cairn::kv
