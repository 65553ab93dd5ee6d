#include "kv-node/engine/state/session_state.h"

#include <iterator>

#include "common/base/check.h"
#include "common/base/fail_point.h"

namespace cairn::kv {
namespace {

bool OfLayer(const ClusterKey& key, std::int32_t layer) { return key.layer == layer; }

// The keys of one layer are neighbours in a map: iterates over [first, last).
template <typename Map>
auto LayerRange(Map& map, std::int32_t layer) {
  const ClusterKey low{layer, kAllHeads, ClusterId(INT64_MIN)};
  const ClusterKey high{layer + 1, kAllHeads, ClusterId(INT64_MIN)};
  return std::pair(map.lower_bound(low), map.lower_bound(high));
}

}  // namespace

SessionState::SessionState(const EntryLayout& layout, std::vector<SegmentRows> chain)
    : layout_(layout),
      chain_(std::move(chain)),
      sums_(static_cast<std::size_t>(layout.layer_count) *
            static_cast<std::size_t>(layout.head_count)) {
  CAIRN_CHECK(!chain_.empty());
}

void SessionState::Roll(std::int64_t limit, SegmentId next) {
  SegmentRows rows;
  rows.id = next;
  rows.parent = open().id;
  rows.start = limit;
  rows.parts = open().parts.Seal();
  open().limit = limit;
  chain_.push_back(std::move(rows));
}

void SessionState::RemoveFromSums(const ClusterKey& key, const Positions& positions) {
  ForEachHead(key.head,
              [&](std::int32_t head) { sums_[SumIndex(key.layer, head)].Remove(positions); });
}

std::vector<VisiblePart> SessionState::PartsOf(const ClusterKey& key) const {
  std::vector<VisiblePart> parts;
  for (const SegmentRows& rows : chain_) {
    if (rows.masks.contains(key)) parts.clear();
    for (Part& part : rows.parts.Find(key)) {
      AddVisible(std::move(part), rows, &rows == &chain_.back(), parts);
    }
  }
  SortByPosition(parts);
  return parts;
}

std::vector<Visible<StoredPart>> SessionState::StoredPartsOf(const ClusterKey& key) const {
  std::vector<Visible<StoredPart>> parts;
  FindStoredParts(key, PositionDetail::kAll, parts);
  return parts;
}

void SessionState::FindStoredParts(const ClusterKey& key, PositionDetail detail,
                                   std::vector<Visible<StoredPart>>& parts) const {
  parts.clear();
  for (const SegmentRows& rows : chain_) {
    if (rows.masks.contains(key)) parts.clear();
    const bool whole = rows.limit == kNoLimit;
    rows.parts.rows().ForEachPart(key, whole ? detail : PositionDetail::kAll, [&](StoredPart part) {
      AddVisible(std::move(part), rows, &rows == &chain_.back(), parts);
    });
  }
  if (parts.size() > 1) SortByPosition(parts);
}

Positions SessionState::PositionsOf(const ClusterKey& key) const {
  Positions out;
  for (const Visible<StoredPart>& visible : StoredPartsOf(key)) {
    out.AppendAll(visible.part.positions.Slice(0, visible.count));
  }
  const auto pending = pending_.find(key);
  if (pending != pending_.end()) {
    for (const PendingChunk& chunk : pending->second) out.AppendAll(chunk.positions);
  }
  return out;
}

bool SessionState::Exists(const ClusterKey& key) const {
  return pending_.contains(key) || open().parts.rows().Contains(key) || !StoredPartsOf(key).empty();
}

void SessionState::ForEachCluster(std::int32_t layer,
                                  const std::function<void(const ClusterKey&)>& fn) const {
  if (chain_.size() == 1 && pending_.empty()) {
    open().parts.rows().ForEachKeyOfLayer(layer, fn);
    return;
  }
  std::set<ClusterKey> keys;
  for (const SegmentRows& rows : chain_) {
    rows.parts.rows().ForEachKeyOfLayer(layer, [&](const ClusterKey& key) { keys.insert(key); });
  }
  const auto [begin, end] = LayerRange(pending_, layer);
  for (auto it = begin; it != end; ++it) keys.insert(it->first);
  for (const ClusterKey& key : keys) fn(key);
}

std::vector<ClusterInfo> SessionState::ClustersOf(std::int32_t layer) const {
  std::vector<ClusterInfo> out;
  ForEachCluster(layer, [&](const ClusterKey& key) {
    Positions positions = PositionsOf(key);
    if (!positions.empty()) out.push_back({{key.head, key.cluster_id}, std::move(positions)});
  });
  return out;
}

std::vector<IndexSource> SessionState::IndexSourcesOf(std::int32_t layer) const {
  std::vector<IndexSource> out;
  for (const SegmentRows& rows : chain_) {
    IndexSource& source = out.emplace_back();
    std::copy_if(rows.masks.begin(), rows.masks.end(), std::back_inserter(source.masks),
                 [layer](const ClusterKey& mask) { return OfLayer(mask, layer); });
    const auto run = rows.index_runs.find(layer);
    if (run != rows.index_runs.end()) source.run = run->second;
    rows.index.ForEachOfLayer(layer, [&](const ClusterKey& key, std::string_view value) {
      source.changed.emplace_back(key, value);
    });
  }
  return out;
}

std::map<ClusterKey, std::vector<Part>> SessionState::CarriedOf(std::int32_t layer) const {
  const SegmentRows* last = nullptr;
  for (const SegmentRows& rows : chain_) {
    if (rows.has_checkpoint &&
        (last == nullptr || !FailPoint("carried rows of all segments count"))) {
      last = &rows;
    }
  }
  std::map<ClusterKey, std::vector<Part>> out;
  if (last == nullptr) return out;
  const auto [begin, end] = LayerRange(last->carried, layer);
  for (auto it = begin; it != end; ++it) {
    for (const Part& part : it->second) {
      if (part.positions.first() < last->limit ||
          FailPoint("carried rows behind the limit count (rule 1)")) {
        out[it->first].push_back(part);
      }
    }
  }
  return out;
}

std::map<ClusterKey, std::vector<PendingChunk>> SessionState::TakePending() {
  pending_bytes_ = 0;
  return std::exchange(pending_, {});
}

std::int64_t SessionState::PendingCount(const ClusterKey& key) const {
  const auto found = pending_.find(key);
  if (found == pending_.end()) return 0;
  std::int64_t count = 0;
  for (const PendingChunk& chunk : found->second) count += chunk.positions.count();
  return count;
}

void SessionState::DropPending(const ClusterKey& key, std::int64_t count) {
  if (count == 0) return;
  const std::int64_t entry_bytes = EntryBytes(key);
  pending_bytes_ -= count * entry_bytes;
  std::vector<PendingChunk>& chunks = pending_.at(key);
  std::size_t whole = 0;
  while (whole < chunks.size() && chunks[whole].positions.count() <= count) {
    count -= chunks[whole].positions.count();
    ++whole;
  }
  chunks.erase(chunks.begin(), chunks.begin() + static_cast<std::ptrdiff_t>(whole));
  if (count > 0) {
    PendingChunk& chunk = chunks.front();
    const std::int64_t rest = chunk.positions.count() - count;
    chunk.bytes = std::make_shared<const std::string>(
        chunk.bytes->substr(static_cast<std::size_t>(count * entry_bytes)));
    chunk.positions = chunk.positions.Slice(count, rest);
  }
  if (chunks.empty()) pending_.erase(key);
}

absl::Status SessionState::CheckAppend(const ClusterKey& key, const Positions& positions) const {
  const Positions held = PositionsOf(key);
  if (!held.empty() && positions.first() <= held.last() &&
      !FailPoint("positions may be out of order")) {
    return InvalidArgument(
        "append to layer {} head {} cluster {}: position {} is not above the cluster's last, {}",
        key.layer, key.head, key.cluster_id, positions.first(), held.last());
  }
  if (held.empty() && key.cluster_id.value() <= UsedIdMax(key.layer, key.head) &&
      !FailPoint("a cluster id may be used again")) {
    return InvalidArgument(
        "append to layer {} head {}: cluster id {} is not above {}, the largest that was used",
        key.layer, key.head, key.cluster_id, UsedIdMax(key.layer, key.head));
  }
  return absl::OkStatus();
}

void SessionState::Append(const ClusterKey& key, ClusterEntries entries) {
  NoteUsedId(key.layer, key.head, key.cluster_id.value());
  AddTo(sums_, key, entries.positions);
  AddPending(key, {std::move(entries.positions),
                   std::make_shared<const std::string>(std::move(entries.entries))});
}

void SessionState::AddPending(const ClusterKey& key, PendingChunk chunk) {
  pending_bytes_ += std::ssize(*chunk.bytes);
  pending_[key].push_back(std::move(chunk));
}

absl::Status SessionState::CheckReplace(const Replace& op) const {
  if (op.parent_ids.empty()) {
    return InvalidArgument("replace in layer {} head {} names no parent clusters", op.layer,
                           op.head);
  }
  std::vector<std::int64_t> before;
  std::set<ClusterId> parents;
  op.brought_positions.ForEach([&](std::int64_t p) { before.push_back(p); });
  for (const ClusterId parent : op.parent_ids) {
    const Positions positions = PositionsOf({op.layer, op.head, parent});
    if (positions.empty() || !parents.insert(parent).second) {
      return InvalidArgument(
          "replace in layer {} head {}: parent cluster {} is unknown or named twice", op.layer,
          op.head, parent);
    }
    // A repair brings positions that the parents show but have lost: they count once.
    positions.ForEach([&](std::int64_t p) {
      if (!op.brought_positions.Contains(p)) before.push_back(p);
    });
  }
  std::vector<std::int64_t> after;
  op.evicted_positions.ForEach([&](std::int64_t p) { after.push_back(p); });
  std::int64_t last_id = UsedIdMax(op.layer, op.head);
  for (const ChildCluster& child : op.children) {
    const bool used = child.cluster_id.value() <= last_id &&
                      !FailPoint("a child of a Replace may have a used id (rule 10)");
    if (used || child.positions.empty()) {
      return InvalidArgument(
          "replace in layer {} head {}: child {} is empty or its id is not above {}, the largest "
          "used",
          op.layer, op.head, child.cluster_id, last_id);
    }
    last_id = child.cluster_id.value();
    child.positions.ForEach([&](std::int64_t p) { after.push_back(p); });
  }
  std::sort(before.begin(), before.end());
  std::sort(after.begin(), after.end());
  if (before != after) {
    return InvalidArgument(
        "replace in layer {} head {}: children and evicted hold {} positions, the parents and what "
        "was "
        "brought {}, and they are not the same",
        op.layer, op.head, after.size(), before.size());
  }
  return absl::OkStatus();
}

std::vector<Part> SessionState::ApplyReplace(const Replace& op) {
  std::vector<Part> dropped;
  for (const ClusterId parent : op.parent_ids) {
    const ClusterKey key{op.layer, op.head, parent};
    RemoveFromSums(key, PositionsOf(key));
    DropPending(key, PendingCount(key));
    if (open().parts.rows().Contains(key)) {
      for (Part& part : open().parts.Find(key)) dropped.push_back(std::move(part));
      PutParts(key, {});
    }
    RemoveIndexRow(key);
    if (!StoredPartsOf(key).empty()) {  // what is left lies in older segments
      open().masks.insert(key);
      dirty_.masks.insert(key);
    }
  }
  NoteEvicted(op.layer, op.head, op.evicted_positions);
  for (const ChildCluster& child : op.children) {
    NoteUsedId(op.layer, op.head, child.cluster_id.value());
    AddTo(sums_, {op.layer, op.head, child.cluster_id}, child.positions);
  }
  return dropped;
}

absl::Status SessionState::CheckEvict(const Evict& op) const {
  if (op.positions.empty()) {
    return InvalidArgument("evict in layer {} head {} names no positions", op.layer, op.head);
  }
  for (const SegmentRows& rows : chain_) {
    const auto evicted = rows.evicted.find({op.layer, op.head, ClusterId(0)});
    if (evicted == rows.evicted.end()) continue;
    const std::optional<std::int64_t> twice = evicted->second.FirstShared(op.positions);
    if (!twice || *twice >= rows.limit || FailPoint("a position is evicted twice")) continue;
    return InvalidArgument("evict in layer {} head {}: position {} is evicted already", op.layer,
                           op.head, *twice);
  }
  return absl::OkStatus();
}

void SessionState::ApplyEvict(const Evict& op) { NoteEvicted(op.layer, op.head, op.positions); }

void SessionState::NoteEvicted(std::int32_t layer, std::int32_t head, const Positions& positions) {
  if (positions.empty()) return;
  const ClusterKey key{layer, head, ClusterId(0)};
  Positions& evicted = open().evicted[key];
  evicted = Positions::Joined(evicted, positions);
  dirty_.evicted.insert(key);
  AddTo(sums_, key, positions);
}

absl::Status SessionState::CheckIndexRows(const cairn::PutIndexRows& op) const {
  for (const IndexRow& row : op.rows) {
    if (Exists({op.layer, row.cluster.head, row.cluster.cluster_id})) continue;
    return InvalidArgument("index row of layer {} head {}: cluster {} does not exist", op.layer,
                           row.cluster.head, row.cluster.cluster_id);
  }
  return absl::OkStatus();
}

void SessionState::PutIndexRows(std::int32_t layer, const std::vector<IndexRow>& rows) {
  for (const IndexRow& row : rows) {
    const ClusterKey key{layer, row.cluster.head, row.cluster.cluster_id};
    open().index.Put(key, EncodeIndexRow(row));
    dirty_.index.insert(key);
  }
}

void SessionState::RemoveIndexRow(const ClusterKey& key) {
  if (open().index_runs.contains(key.layer)) {
    // Whether the run has a record is not known here.
    if (!FailPoint("a replaced cluster's record stays")) open().index.Put(key, GoneIndexRow());
  } else if (!open().index.Erase(key)) {
    return;
  }
  dirty_.index.insert(key);
}

void SessionState::SetIndexRun(std::int32_t layer, IndexRun run) {
  open().index_runs.erase(layer);
  if (!run.parts.empty() || run.hides_older) open().index_runs.emplace(layer, std::move(run));
  open().index.EraseLayer(layer);
  std::erase_if(dirty_.index, [layer](const ClusterKey& key) { return OfLayer(key, layer); });
  dirty_.index_runs.insert(layer);
}

void SessionState::PutParts(const ClusterKey& key, const std::vector<Part>& parts) {
  open().parts.Put(key, parts);
  dirty_.parts.insert(key);
}

void SessionState::PutCarried(std::map<ClusterKey, std::vector<Part>> carried) {
  for (const auto& [key, parts] : open().carried) dirty_.carried.insert(key);
  open().carried = std::move(carried);
}

SessionState::Dirty SessionState::TakeDirty() { return std::exchange(dirty_, {}); }

std::int64_t SessionState::UsedIdMax(std::int32_t layer, std::int32_t head) const {
  const auto found = used_.find({layer, head});
  return found == used_.end() ? 0 : found->second;
}

void SessionState::NoteUsedId(std::int32_t layer, std::int32_t head, std::int64_t id) {
  std::int64_t& max = used_[{layer, head}];
  max = std::max(max, id);
}

absl::Status SessionState::CheckNextIds(const std::vector<std::int64_t>& next_cluster_ids) const {
  const auto heads = static_cast<std::size_t>(layout_.head_count) + 1;
  for (std::size_t i = 0; i < next_cluster_ids.size(); ++i) {
    const auto layer = static_cast<std::int32_t>(i / heads);
    const auto slot = static_cast<std::int32_t>(i % heads);
    const std::int32_t head = slot == layout_.head_count ? kAllHeads : slot;
    if (next_cluster_ids[i] > UsedIdMax(layer, head)) continue;
    return InvalidArgument(
        "checkpoint: the next cluster id of layer {} head {} is {}, not above {}, the largest that "
        "was used",
        layer, head, next_cluster_ids[i], UsedIdMax(layer, head));
  }
  return absl::OkStatus();
}

std::int64_t SessionState::row_bytes() const {
  std::int64_t bytes = 0;
  for (const SegmentRows& rows : chain_) {
    bytes += rows.parts.memory_bytes();
    for (const auto& [key, parts] : rows.carried) {
      constexpr std::int64_t kNodeBytes = 96;  // of a map node and its vector
      bytes += kNodeBytes;
      for (const Part& part : parts) {
        bytes += static_cast<std::int64_t>(sizeof(Part) + part.crcs.size() * sizeof(std::uint32_t) +
                                           part.positions.runs().size() * sizeof(Positions::Run));
      }
    }
    bytes += rows.index.memory_bytes();
    for (const auto& [layer, run] : rows.index_runs) {
      for (const Part& part : run.parts) {
        bytes += static_cast<std::int64_t>(sizeof(Part) + part.crcs.size() * sizeof(std::uint32_t));
      }
    }
  }
  return bytes;
}

}  // namespace cairn::kv
