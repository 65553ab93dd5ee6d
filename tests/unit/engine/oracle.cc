#include "tests/unit/engine/oracle.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "common/kv/index_record.h"
#include "tests/unit/engine/engine_harness.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kWindowTokens = 6;
constexpr std::size_t kSplitEntriesMin = 6;
// Of the entries that come to a cluster which is large enough: one in so many begins a buffer.
constexpr std::int64_t kBufferOneIn = 8;

void CutClusters(
    std::int64_t limit,
    std::map<Oracle::LayerHead, std::map<std::int64_t, std::vector<std::int64_t>>>& clusters) {
  for (auto& [layer_head, by_id] : clusters) {
    for (auto& [id, positions] : by_id) {
      std::erase_if(positions, [limit](std::int64_t p) { return p >= limit; });
    }
    std::erase_if(by_id, [](const auto& cluster) { return cluster.second.empty(); });
  }
}

}  // namespace

void Oracle::CutTo(std::int64_t limit) {
  token_count = limit;
  window_start = std::min(window_start, limit);
  truth.resize(static_cast<std::size_t>(limit));
  CutClusters(limit, clusters);
  CutClusters(limit, buffers);
}

std::set<std::int64_t> Oracle::CarriedPositions() const {
  std::set<std::int64_t> out;
  Window().ForEach([&](std::int64_t p) { out.insert(p); });
  for (const auto& [layer_head, by_id] : buffers) {
    for (const auto& [id, positions] : by_id) out.insert(positions.begin(), positions.end());
  }
  return out;
}

RandomOperations::RandomOperations(const EntryLayout& layout, Random random)
    : layout_(layout), random_(std::move(random)) {}

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

std::optional<Append> RandomOperations::Assign(Oracle& oracle, std::int32_t layer,
                                               std::int32_t head, std::int64_t position,
                                               std::int64_t fresh_one_in) {
  auto& clusters = oracle.clusters[{layer, head}];
  std::int64_t& next_id = oracle.next_id[{layer, head}];
  std::int64_t id = 0;
  if (clusters.empty() || random_(fresh_one_in) == 0) {
    id = ++next_id;
  } else {
    auto it = clusters.begin();
    std::advance(it, random_(std::ssize(clusters)));
    id = it->first;
    auto& buffers = oracle.buffers[{layer, head}];
    const bool large = it->second.size() >= kSplitEntriesMin;
    if (buffers.contains(id) || (large && random_(kBufferOneIn) == 0)) {
      buffers[id].push_back(position);
      return std::nullopt;
    }
  }
  clusters[id].push_back(position);
  Append op;
  op.layer = layer;
  const Positions positions = Positions::Range(position, 1);
  op.clusters.push_back(
      {{head, ClusterId(id)}, positions, Entries(oracle, layer, head, positions)});
  return op;
}

std::vector<Append> RandomOperations::Decode(Oracle& oracle, std::int64_t fresh_one_in,
                                             std::optional<std::int64_t> truth) {
  std::vector<Append> out;
  oracle.truth.push_back(truth ? *truth : next_truth_++);
  ++oracle.token_count;
  if (oracle.token_count - oracle.window_start <= kWindowTokens) return out;
  const std::int64_t leaves = oracle.window_start++;
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    for (const std::int32_t head : HeadsOf(layer)) {
      std::optional<Append> op = Assign(oracle, layer, head, leaves, fresh_one_in);
      if (op) out.push_back(*std::move(op));
    }
  }
  return out;
}

std::vector<std::int64_t> RandomOperations::TakeParent(Oracle& oracle, std::int64_t id,
                                                       Replace& op) const {
  op.parent_ids.emplace_back(id);
  oracle.index[op.layer].erase({op.head, id});
  auto cluster = oracle.clusters[{op.layer, op.head}].extract(id);
  std::vector<std::int64_t> all = std::move(cluster.mapped());
  auto buffer = oracle.buffers[{op.layer, op.head}].extract(id);
  if (buffer.empty()) return all;
  std::vector<std::int64_t> brought = std::move(buffer.mapped());
  all.insert(all.end(), brought.begin(), brought.end());
  op.brought_positions.ForEach([&](std::int64_t p) { brought.push_back(p); });
  op.brought_positions = Positions::FromUnsorted(std::move(brought));
  op.brought_entries = Entries(oracle, op.layer, op.head, op.brought_positions);
  return all;
}

void RandomOperations::AddChild(Oracle& oracle, std::vector<std::int64_t> positions,
                                Replace& op) const {
  const std::int64_t id = ++oracle.next_id[{op.layer, op.head}];
  std::sort(positions.begin(), positions.end());
  op.children.push_back({ClusterId(id), Positions::FromUnsorted(positions)});
  oracle.clusters[{op.layer, op.head}][id] = std::move(positions);
}

std::vector<Replace> RandomOperations::Split(Oracle& oracle) {
  std::vector<Replace> out;
  const auto layer = static_cast<std::int32_t>(random_(layout_.layer_count));
  for (const std::int32_t head : HeadsOf(layer)) {
    const auto& clusters = oracle.clusters[{layer, head}];
    const auto large = std::find_if(clusters.begin(), clusters.end(), [](const auto& cluster) {
      return cluster.second.size() >= kSplitEntriesMin;
    });
    if (large == clusters.end()) continue;
    Replace op;
    op.layer = layer;
    op.head = head;
    std::vector<std::int64_t> halves[2];
    for (const std::int64_t p : TakeParent(oracle, large->first, op)) {
      halves[random_(2)].push_back(p);
    }
    for (std::vector<std::int64_t>& half : halves) {
      if (!half.empty()) AddChild(oracle, std::move(half), op);
    }
    out.push_back(std::move(op));
  }
  return out;
}

std::vector<Replace> RandomOperations::Merge(Oracle& oracle) {
  std::vector<Replace> out;
  const auto layer = static_cast<std::int32_t>(random_(layout_.layer_count));
  const auto parent_count = static_cast<std::size_t>(2 + random_(2));
  for (const std::int32_t head : HeadsOf(layer)) {
    const auto& clusters = oracle.clusters[{layer, head}];
    if (clusters.size() < parent_count) continue;
    Replace op;
    op.layer = layer;
    op.head = head;
    std::vector<std::int64_t> all;
    while (op.parent_ids.size() < parent_count) {
      auto parent = clusters.begin();
      std::advance(parent, random_(std::ssize(clusters)));
      const std::vector<std::int64_t> positions = TakeParent(oracle, parent->first, op);
      all.insert(all.end(), positions.begin(), positions.end());
    }
    AddChild(oracle, std::move(all), op);
    out.push_back(std::move(op));
  }
  return out;
}

Replace RandomOperations::Repair(Oracle& oracle, const Oracle::LayerHead& layer_head,
                                 std::int64_t cluster, bool all) {
  Replace op;
  op.layer = layer_head.first;
  op.head = layer_head.second;
  std::vector<std::int64_t> positions = TakeParent(oracle, cluster, op);
  std::vector<std::int64_t> brought;
  for (const std::int64_t p : positions) {
    if (all || op.brought_positions.Contains(p) || random_(2) == 0) brought.push_back(p);
  }
  op.brought_positions = Positions::FromUnsorted(std::move(brought));
  op.brought_entries = Entries(oracle, op.layer, op.head, op.brought_positions);
  AddChild(oracle, std::move(positions), op);
  return op;
}

std::optional<Replace> RandomOperations::Repair(Oracle& oracle) {
  const auto layer = static_cast<std::int32_t>(random_(layout_.layer_count));
  const std::vector<std::int32_t> heads = HeadsOf(layer);
  const std::int32_t head = heads[static_cast<std::size_t>(random_(std::ssize(heads)))];
  const auto& clusters = oracle.clusters[{layer, head}];
  if (clusters.empty()) return std::nullopt;
  auto parent = clusters.begin();
  std::advance(parent, random_(std::ssize(clusters)));
  return Repair(oracle, {layer, head}, parent->first, /*all=*/random_(4) == 0);
}

Replace RandomOperations::WithAllBrought(const Oracle& oracle, Replace op) const {
  std::vector<std::int64_t> all;
  const auto add = [&](std::int64_t p) { all.push_back(p); };
  for (const ChildCluster& child : op.children) child.positions.ForEach(add);
  op.evicted_positions.ForEach(add);
  op.brought_positions = Positions::FromUnsorted(std::move(all));
  op.brought_entries = Entries(oracle, op.layer, op.head, op.brought_positions);
  return op;
}

std::optional<cairn::Evict> RandomOperations::EvictBuffered(Oracle& oracle) {
  const auto layer = static_cast<std::int32_t>(random_(layout_.layer_count));
  for (const std::int32_t head : HeadsOf(layer)) {
    auto& buffers = oracle.buffers[{layer, head}];
    if (buffers.empty()) continue;
    auto buffer = buffers.begin();
    std::advance(buffer, random_(std::ssize(buffers)));
    std::vector<std::int64_t>& held = buffer->second;
    std::vector<std::int64_t> gone;
    std::erase_if(held, [&](std::int64_t p) {
      if (random_(2) == 0) return false;
      gone.push_back(p);
      return true;
    });
    if (held.empty()) buffers.erase(buffer);
    if (!gone.empty()) {
      return cairn::Evict{layer, head, Positions::FromUnsorted(std::move(gone))};
    }
  }
  return std::nullopt;
}

std::optional<ChangingOperation> RandomOperations::Evict(Oracle& oracle) {
  if (random_(2) == 0) return EvictBuffered(oracle);
  return EvictCluster(oracle);
}

std::optional<Replace> RandomOperations::EvictCluster(Oracle& oracle) {
  const auto& clusters = oracle.clusters[{0, 1}];
  if (clusters.empty()) return std::nullopt;
  Replace op;
  op.layer = 0;
  op.head = 1;
  op.evicted_positions = Positions::FromUnsorted(TakeParent(oracle, clusters.begin()->first, op));
  return op;
}

Fetch RandomOperations::Relate(const Oracle& oracle) {
  Fetch op;
  op.layer = static_cast<std::int32_t>(random_(layout_.layer_count));
  for (const std::int32_t head : HeadsOf(op.layer)) {
    const auto next_id = oracle.next_id.find({op.layer, head});
    const std::int64_t id_max = 2 + (next_id == oracle.next_id.end() ? 0 : next_id->second);
    for (std::int64_t id = 1; id <= id_max; ++id) {
      if (random_(2) == 0) op.clusters.push_back({head, ClusterId(id)});
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

bool RandomOperations::AreSomeRowsOf(const Oracle& oracle, std::int32_t layer,
                                     const std::vector<IndexRow>& rows) {
  Oracle shown;
  const auto found = oracle.index.find(layer);
  if (found != oracle.index.end()) shown.index[layer] = found->second;
  std::erase_if(shown.index[layer], [&](const auto& expected) {
    return std::none_of(rows.begin(), rows.end(), [&](const IndexRow& row) {
      return row.cluster == expected.second.cluster;
    });
  });
  return AreRowsOf(shown, layer, rows);
}

bool RandomOperations::HasRecordsOf(const Oracle& oracle, std::int32_t layer,
                                    const FetchReply& reply) {
  const auto found = oracle.index.find(layer);
  if (found == oracle.index.end()) return true;
  std::map<std::pair<std::int32_t, std::int64_t>, IndexRecord> latest;
  for (const Span& span : reply.clusters.at(0).spans) {
    const IndexRecords records{span.bytes, span.entry_count};
    for (std::int64_t i = 0; i < records.record_count; ++i) {
      const std::optional<IndexRecord> record = records.At(i);
      if (!record.has_value()) return false;
      latest[{record->cluster.head, record->cluster.cluster_id.value()}] = *record;
    }
  }
  return std::all_of(found->second.begin(), found->second.end(), [&](const auto& expected) {
    const IndexRow& row = expected.second;
    const auto shown = latest.find(expected.first);
    return shown != latest.end() && shown->second.row == row.row &&
           shown->second.stale == row.stale && shown->second.entry_count == row.entry_count;
  });
}

std::vector<IndexRow> RandomOperations::VisibleRowsOf(const FetchReply& reply) {
  std::vector<IndexRecords> runs;
  for (const Span& span : reply.clusters.at(0).spans)
    runs.push_back({span.bytes, span.entry_count});
  std::vector<IndexRecord> visible;
  FindVisibleRecords(runs, visible);
  std::vector<IndexRow> rows;
  rows.reserve(visible.size());
  for (const IndexRecord& record : visible) {
    rows.push_back({record.cluster, std::string(record.row), record.stale, record.entry_count});
  }
  return rows;
}

RandomOperations::CarriedOfLayer RandomOperations::CarriedOf(const Oracle& oracle,
                                                             std::int32_t layer) {
  CarriedOfLayer out;
  for (const std::int32_t head : HeadsOf(layer)) {
    if (!oracle.Window().empty()) out[{head, kWindowBuffer.value()}] = oracle.Window();
    const auto buffers = oracle.buffers.find({layer, head});
    if (buffers == oracle.buffers.end()) continue;
    for (const auto& [id, positions] : buffers->second) {
      out[{head, id}] = Positions::FromUnsorted(positions);
    }
  }
  return out;
}

std::vector<StageCarried> RandomOperations::StageAllCarried(
    const Oracle& oracle, const std::set<std::int64_t>& recorded) {
  std::vector<StageCarried> out;
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    StageCarried stage;
    stage.layer = layer;
    for (auto& [key, positions] : CarriedOf(oracle, layer)) {
      const auto& [head, buffer] = key;
      Positions brought;
      positions.ForEach([&](std::int64_t p) {
        if (!recorded.contains(p) || random_(4) == 0) brought.Append(p);
      });
      stage.carried.push_back(
          {head, ClusterId(buffer), positions, brought, Entries(oracle, layer, head, brought)});
    }
    out.push_back(std::move(stage));
  }
  return out;
}

bool RandomOperations::AreCarriedOf(const Oracle& oracle, std::int32_t layer,
                                    const std::vector<CarriedEntries>& carried) const {
  const CarriedOfLayer expected = CarriedOf(oracle, layer);
  if (carried.size() != expected.size()) return false;
  return std::all_of(carried.begin(), carried.end(), [&](const CarriedEntries& shown) {
    const auto found = expected.find({shown.head, shown.buffer_cluster_id.value()});
    return found != expected.end() && shown.positions == found->second &&
           shown.entries == Entries(oracle, layer, shown.head, shown.positions);
  });
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
