#include "kv-node/engine/session/replacer.h"

#include <algorithm>
#include <cstring>

#include "common/base/fail_point.h"
#include "kv-node/engine/place/placement_order.h"
#include "kv-node/engine/session/operation_checks.h"

namespace cairn::kv {

// A part of a child cluster, on its way to a pool.
struct Replacer::ChildPart {
  ClusterKey key;
  Part part;
};

namespace {

// A child of more bytes is not kept in memory, however few its entries are.
constexpr std::int64_t kPendingChildBytesMax = kPartBytesMax / 2;

void AddEntries(const Positions& positions, std::string_view bytes, std::int64_t entry_bytes,
                std::map<std::int64_t, std::string_view>& entries) {
  std::size_t at = 0;
  const auto step = static_cast<std::size_t>(entry_bytes);
  positions.ForEach([&](std::int64_t position) {
    entries[position] = bytes.substr(at, step);
    at += step;
  });
}

}  // namespace

Applied Replacer::Apply(OpSeq op_seq, Replace& op) {
  if (placer_.is_placing()) return Applied::kWait;
  absl::Status status = CheckEntries(state_.layout(), op.layer, op.head, op.brought_positions,
                                     std::ssize(op.brought_entries));
  if (status.ok()) status = state_.CheckReplace(op);
  if (!status.ok()) return host_.Finish(op_seq, status);
  std::vector<PartRead> parts;
  for (const ClusterId parent : op.parent_ids) {
    const ClusterKey key{op.layer, op.head, parent};
    for (VisiblePart& visible : state_.PartsOf(key)) {
      parts.push_back({std::move(visible.part), state_.EntryBytes(key), visible.count});
    }
  }
  auto shared = std::make_shared<Replace>(std::move(op));
  if (parts.empty()) {
    FinishReplace(op_seq, *shared, PageSet());
    return Applied::kYes;
  }
  host_.ReadAtHead(
      PagesOf(parts), AfterRead::kIsApplied,
      [this, op_seq, shared](const PageSet& set) { FinishReplace(op_seq, *shared, set); },
      DoubtOf(context_.store_id, parts));
  return Applied::kWait;
}

absl::Status Replacer::CollectReplaced(const Replace& op, const PageSet& pages, EntryMap& entries,
                                       std::vector<PendingChunk>& keep) const {
  for (const ClusterId parent : op.parent_ids) {
    const ClusterKey key{op.layer, op.head, parent};
    const std::int64_t entry_bytes = state_.EntryBytes(key);
    // A repair brings all of a lost parent's entries: then its pages need not be right.
    const Positions shown = state_.PositionsOf(key);
    bool all_brought = true;
    shown.ForEach([&](std::int64_t position) {
      all_brought = all_brought && op.brought_positions.Contains(position);
    });
    if (all_brought) continue;
    for (const VisiblePart& visible : state_.PartsOf(key)) {
      const Part& part = visible.part;
      const PartState state = CheckPart(context_.store_id, part, entry_bytes, visible.count, pages);
      context_.NoteState(state);
      if (state == PartState::kUnreadable) {
        return Unavailable(
            "replace in layer {} head {}: cluster {} cannot be read now, and nothing is known to "
            "be lost: check the disk of the KV node, whose log says what it answered, and try "
            "again",
            op.layer, op.head, parent);
      }
      if (state == PartState::kDamaged) {
        return DataLoss(
            "replace in layer {} head {}: a part of cluster {} fails its check; send the operation "
            "again with the cluster's entries",
            op.layer, op.head, parent);
      }
      for (std::int64_t i = 0; i < visible.count; ++i) {
        const auto bytes = pages.Bytes(*part.extent, RangeOf(part, entry_bytes, i, 1));
        entries[part.positions.at(i)] = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
      }
    }
    const auto pending = state_.pending().find(key);
    if (pending == state_.pending().end()) continue;
    for (const PendingChunk& chunk : pending->second) {
      AddEntries(chunk.positions, *chunk.bytes, entry_bytes, entries);
      keep.push_back(chunk);
    }
  }
  AddEntries(op.brought_positions, op.brought_entries, state_.layout().EntryBytes(op.head),
             entries);
  return absl::OkStatus();
}

// Linked ones by their links, then the others in the order of the operation.
std::vector<std::size_t> Replacer::OrderOfChildren(const Replace& op) const {
  std::map<ClusterId, std::size_t> index_of;
  for (std::size_t i = 0; i < op.children.size(); ++i) index_of[op.children[i].cluster_id] = i;
  std::vector<ClusterPair> links;
  for (const ChildCluster& child : op.children) {
    for (const ClusterLink& link : placer_.LinksOf({op.layer, op.head, child.cluster_id})) {
      if (index_of.contains(link.cluster)) {
        links.push_back({child.cluster_id, link.cluster, link.count});
      }
    }
  }
  std::vector<std::size_t> order;
  if (context_.options.pool_sharing) {
    for (const ClusterId id : OrderByLinks(std::move(links))) {
      order.push_back(index_of.extract(id).mapped());
    }
  }
  for (std::size_t i = 0; i < op.children.size(); ++i) {
    if (index_of.contains(op.children[i].cluster_id)) order.push_back(i);
  }
  return order;
}

// Whether a child is too small for a place of its own: it waits for more like entries that were
// appended do, and is written with others, side by side. Small clusters split after few entries
// more; pools would be half empty most of the time.
bool Replacer::StaysPending(const Replace& op, const ChildCluster& child) const {
  const std::int64_t count = child.positions.count();
  return !FailPoint("small children of a split go to pools") &&
         count < context_.options.place_entries_min &&
         count * state_.layout().EntryBytes(op.head) <= kPendingChildBytesMax;
}

// Children are cut into parts that fit the largest pool. Those that follow each other share a pool,
// of the smallest class that holds both twice over: they will grow, and be fetched together more
// often than others, because they come from one cluster.
absl::StatusOr<std::vector<Replacer::ChildPart>> Replacer::AllocateChildren(
    const Replace& op) const {
  const std::int64_t entry_bytes = state_.layout().EntryBytes(op.head);
  const std::int64_t part_count_max = kPartBytesMax / entry_bytes;
  std::vector<ChildPart> out;
  for (const std::size_t index : OrderOfChildren(op)) {
    const ChildCluster& child = op.children[index];
    if (StaysPending(op, child)) continue;
    for (std::int64_t first = 0; first < child.positions.count(); first += part_count_max) {
      const std::int64_t count = std::min(part_count_max, child.positions.count() - first);
      ChildPart made;
      made.key = {op.layer, op.head, child.cluster_id};
      made.part.positions = child.positions.Slice(first, count);
      CAIRN_ASSIGN_OR_RETURN(const std::int64_t id, context_.ids->Next());
      made.part.id = PartId(id);
      out.push_back(std::move(made));
    }
  }
  for (std::size_t i = 0; i < out.size();) {
    const std::int64_t bytes = out[i].part.count() * entry_bytes;
    std::int64_t both_bytes = kPartBytesMax + 1;
    if (context_.options.pool_sharing && i + 1 < out.size()) {
      both_bytes = bytes + out[i + 1].part.count() * entry_bytes;
    }
    const bool two = both_bytes <= kPartBytesMax;
    CAIRN_ASSIGN_OR_RETURN(
        ExtentRef pool,
        two ? placer_.AllocatePool(both_bytes, 2)
            : placer_.AllocatePool(bytes, placer_.TimesForOnePart(out[i].part.count())));
    out[i].part.SetExtent(std::move(pool));
    if (two) {
      out[i + 1].part.SetExtent(out[i].part.extent);
      out[i + 1].part.direction = Direction::kDown;
    }
    i += two ? 2 : 1;
  }
  return out;
}

// Writes the parts of one fresh pool: every page once, with the bytes of all of them.
void Replacer::WriteChildren(const EntryMap& entries, std::int64_t entry_bytes,
                             std::span<ChildPart> sharing) {
  const ExtentRef extent = sharing.front().part.extent;
  // Page ranges that are written, joined where the parts meet.
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const ChildPart& child : sharing) {
    const ByteRange range = RangeOf(child.part, entry_bytes, 0, child.part.count());
    const std::int64_t begin = range.begin / kPageBytes;
    const std::int64_t end = (range.end + kPageBytes - 1) / kPageBytes;
    if (!ranges.empty() && begin <= ranges.back().second) {
      ranges.back().second = end;
    } else {
      ranges.emplace_back(begin, end);
    }
  }
  for (const auto& range : ranges) {
    const std::int64_t image_begin = range.first * kPageBytes;
    SharedBuffer image =
        context_.io->buffers().MakeZeroed((range.second - range.first) * kPageBytes);
    for (ChildPart& child : sharing) {
      Part& part = child.part;
      const ByteRange whole = RangeOf(part, entry_bytes, 0, part.count());
      if (whole.begin < image_begin || whole.end > range.second * kPageBytes) continue;
      std::int64_t i = 0;
      part.positions.ForEach([&](std::int64_t position) {
        const std::int64_t at = RangeOf(part, entry_bytes, i++, 1).begin - image_begin;
        const std::string_view entry = entries.at(position);
        std::memcpy(image->data() + at, entry.data(), entry.size());
      });
      SetCrcs(context_.store_id, part, entry_bytes, 0, part.count(), *image, image_begin);
    }
    writes_.Write(extent, PageIndex(extent->first().value() + range.first), std::move(image),
                  WriteCause::kSplit);
  }
}

void Replacer::FinishReplace(OpSeq op_seq, const Replace& op, const PageSet& pages) {
  placer_.ForgetPlans();  // of the parents too
  EntryMap entries;
  std::vector<PendingChunk> keep;
  absl::Status status = CollectReplaced(op, pages, entries, keep);
  if (status.ok()) {
    const bool many = std::ssize(op.children) > context_.options.pooled_children_max;
    status = many ? ReplaceInLog(op, entries) : ReplaceInPools(op, entries);
  }
  host_.Finish(op_seq, status);
}

void Replacer::ApplyChecked(const Replace& op) {
  context_.pending_bytes -= state_.pending_bytes();
  placer_.NoteDropped(state_.ApplyReplace(op));
  for (const ClusterId parent : op.parent_ids) co_fetches_.Forget({op.layer, op.head, parent});
  context_.pending_bytes += state_.pending_bytes();
}

// An error has changed nothing: the extents free themselves.
absl::Status Replacer::ReplaceInPools(const Replace& op, const EntryMap& entries) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<ChildPart> made, AllocateChildren(op));
  ApplyChecked(op);
  const std::int64_t entry_bytes = state_.layout().EntryBytes(op.head);
  std::map<ClusterKey, std::vector<Part>> rows;
  for (std::span<ChildPart> left(made); !left.empty();) {
    const bool two = left.size() > 1 && left[0].part.extent == left[1].part.extent;
    const std::span<ChildPart> sharing = left.first(two ? 2 : 1);
    WriteChildren(entries, entry_bytes, sharing);
    for (ChildPart& child : sharing) {
      placer_.pools().Add({child.key.layer, child.key.head}, entry_bytes, child.part);
      rows[child.key].push_back(std::move(child.part));
    }
    left = left.subspan(sharing.size());
  }
  for (const auto& [key, parts] : rows) state_.PutParts(key, parts);
  for (const ChildCluster& child : op.children) {
    if (StaysPending(op, child)) KeepPending(op, child, entries);
  }
  return absl::OkStatus();
}

void Replacer::KeepPending(const Replace& op, const ChildCluster& child, const EntryMap& entries) {
  std::string bytes;
  bytes.reserve(
      static_cast<std::size_t>(child.positions.count() * state_.layout().EntryBytes(op.head)));
  child.positions.ForEach([&](std::int64_t position) { bytes += entries.at(position); });
  const ClusterKey key{op.layer, op.head, child.cluster_id};
  context_.pending_bytes += std::ssize(bytes);
  state_.AddPending(key, {child.positions, std::make_shared<const std::string>(std::move(bytes))});
  placer_.NoteUnplaced(key);
}

// As a spill would write them: a fetch of several then reads fewer pages, and pages that touch.
absl::Status Replacer::ReplaceInLog(const Replace& op, const EntryMap& entries) {
  const std::int64_t entry_bytes = state_.layout().EntryBytes(op.head);
  const std::int64_t record_entries_max = kPartBytesMax / entry_bytes;
  std::size_t count = 0;
  for (const ChildCluster& child : op.children) {
    count += static_cast<std::size_t>(child.positions.count());
  }
  std::string gathered;
  gathered.reserve(count * static_cast<std::size_t>(entry_bytes));  // items are views of it
  LogPlan plan;
  for (const ChildCluster& child : op.children) {
    const ClusterKey key{op.layer, op.head, child.cluster_id};
    for (std::int64_t first = 0; first < child.positions.count(); first += record_entries_max) {
      Positions positions = child.positions.Slice(
          first, std::min(record_entries_max, child.positions.count() - first));
      const std::size_t begin = gathered.size();
      positions.ForEach([&](std::int64_t position) { gathered += entries.at(position); });
      plan.parts[key].push_back(
          LogItem::New(std::move(positions), std::string_view(gathered).substr(begin)));
    }
  }
  plan.new_bytes = std::ssize(gathered);
  return log_.WriteRecords(plan, [&] { ApplyChecked(op); });
}

}  // namespace cairn::kv
