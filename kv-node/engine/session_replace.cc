// Replace: split, merge, repair and eviction. Children are written to fresh pools, so that a crash
// finds the parents' bytes untouched (architecture "Replace").
#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "kv-node/engine/attached_session.h"
#include "kv-node/engine/checkpoint_job.h"

namespace cairn::kv {
namespace {

using EntryMap = std::map<std::int64_t, std::string_view>;  // position -> bytes

void AddEntries(const Positions& positions, std::string_view bytes, std::int64_t entry_bytes,
                EntryMap& entries) {
  std::size_t at = 0;
  const auto step = static_cast<std::size_t>(entry_bytes);
  positions.ForEach([&](std::int64_t position) {
    entries[position] = bytes.substr(at, step);
    at += step;
  });
}

}  // namespace

AttachedSession::Applied AttachedSession::ApplyReplace(OpSeq op_seq, Replace& op) {
  if (!placing_.empty()) return Applied::kWait;
  absl::Status status = CheckEntries(op.layer, op.head, op.brought_positions,
                                     static_cast<std::int64_t>(op.brought_entries.size()));
  if (status.ok()) status = state_->CheckReplace(op);
  if (!status.ok()) return Finish(op_seq, status);
  std::vector<PageIndex> pages;
  for (const ClusterId parent : op.parent_ids) {
    const ClusterKey key{op.layer, op.head, parent};
    for (const VisiblePart& visible : state_->PartsOf(key)) {
      for (const PagePiece& piece :
           PiecesOf(*visible.part, state_->EntryBytes(key), 0, visible.count)) {
        pages.push_back(piece.page);
      }
    }
  }
  auto shared = std::make_shared<Replace>(std::move(op));
  if (pages.empty()) {
    FinishReplace(op_seq, shared, PageSet());
    return Applied::kYes;
  }
  head_in_progress_ = true;
  context_.io->Read(std::move(pages), ReadCause::kPlace,
                    [this, op_seq, shared, io = HoldIo()](const PageSet& set) {
                      head_in_progress_ = false;
                      if (stopped_) return;
                      if (!failed_) FinishReplace(op_seq, shared, set);
                      queue_.pop_front();
                      observer_->OnRoom();
                    });
  return Applied::kWait;
}

absl::Status AttachedSession::CollectReplaced(const Replace& op, const PageSet& pages,
                                              std::map<std::int64_t, std::string_view>& entries,
                                              std::vector<PendingChunk>& keep) const {
  for (const ClusterId parent : op.parent_ids) {
    const ClusterKey key{op.layer, op.head, parent};
    const std::int64_t entry_bytes = state_->EntryBytes(key);
    // A repair brings all of a lost parent's entries: then its pages need not be right.
    const Positions shown = state_->PositionsOf(key);
    bool all_brought = true;
    shown.ForEach([&](std::int64_t position) {
      all_brought = all_brought && op.brought_positions.Contains(position);
    });
    if (all_brought) continue;
    for (const VisiblePart& visible : state_->PartsOf(key)) {
      const Part& part = *visible.part;
      if (!PartIsIntact(context_.store_id, part, entry_bytes, visible.count, pages)) {
        ++context_.lost_part_count;
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
    const auto pending = state_->pending().find(key);
    if (pending == state_->pending().end()) continue;
    for (const PendingChunk& chunk : pending->second) {
      AddEntries(chunk.positions, *chunk.bytes, entry_bytes, entries);
      keep.push_back(chunk);
    }
  }
  AddEntries(op.brought_positions, op.brought_entries, row_.layout.EntryBytes(op.head), entries);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Part>> AttachedSession::AllocateChild(const ChildCluster& child,
                                                                 std::int64_t entry_bytes) {
  std::vector<Part> parts;
  const std::int64_t room_max = kPartBytesMax / entry_bytes;
  for (std::int64_t first = 0; first < child.positions.count(); first += room_max) {
    const std::int64_t count = std::min(room_max, child.positions.count() - first);
    const std::int64_t bytes = std::min(2 * count * entry_bytes, kPartBytesMax);
    Part part;
    CAIRN_ASSIGN_OR_RETURN(part.extent,
                           context_.Allocate(ExtentKind::kPool, PoolClassPages(bytes)));
    CAIRN_ASSIGN_OR_RETURN(const std::int64_t id, context_.ids->Next());
    part.id = PartId(id);
    part.positions = child.positions.Slice(first, count);
    parts.push_back(std::move(part));
  }
  return parts;
}

void AttachedSession::FinishReplace(OpSeq op_seq, const std::shared_ptr<Replace>& op,
                                    const PageSet& pages) {
  const std::int64_t entry_bytes = row_.layout.EntryBytes(op->head);
  EntryMap entries;
  std::vector<PendingChunk> keep;
  absl::Status status = CollectReplaced(*op, pages, entries, keep);
  std::vector<std::pair<ClusterKey, std::vector<Part>>> children;
  for (const ChildCluster& child : op->children) {
    if (!status.ok()) break;
    absl::StatusOr<std::vector<Part>> parts = AllocateChild(child, entry_bytes);
    status = parts.status();
    if (parts.ok()) {
      children.emplace_back(ClusterKey{op->layer, op->head, child.cluster_id}, *std::move(parts));
    }
  }
  if (!status.ok()) {  // nothing has changed; the extents free themselves
    Finish(op_seq, status);
    return;
  }
  context_.pending_bytes -= state_->pending_bytes();
  NoteDropped(state_->ApplyReplace(*op));
  context_.pending_bytes += state_->pending_bytes();
  for (auto& [key, parts] : children) {
    for (Part& part : parts) {
      const std::int64_t bytes = part.count() * entry_bytes;
      SharedBuffer image = context_.io->buffers().MakeZeroed(bytes);
      std::int64_t at = 0;
      part.positions.ForEach([&](std::int64_t position) {
        const std::string_view entry = entries.at(position);
        std::memcpy(image->data() + at, entry.data(), entry.size());
        at += entry_bytes;
      });
      SetCrcs(context_.store_id, part, entry_bytes, 0, part.count(), *image, 0);
      new_extents_.push_back(part.extent);
      Write(part.extent, part.extent->first(), std::move(image), WriteCause::kPool);
    }
    state_->PutParts(key, std::move(parts));
  }
  Finish(op_seq, absl::OkStatus());
}

}  // namespace cairn::kv
