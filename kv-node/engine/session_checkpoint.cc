// Checkpoints. The order of architecture "Checkpoint" is in this one file: rows are captured at the
// cut (rule 8), all writes that they name end, the device is flushed, the batch is committed, and
// only then is the checkpoint acknowledged.
#include <algorithm>

#include "common/base/clock.h"
#include "kv-node/engine/checkpoint_job.h"

namespace cairn::kv {
void SetCrcs(const StoreId& store, Part& part, std::int64_t entry_bytes, std::int64_t first,
             std::int64_t count, const AlignedBuffer& image, std::int64_t image_begin) {
  for (const PagePiece& piece : PiecesOf(part, entry_bytes, first, count)) {
    const auto number = static_cast<std::size_t>(piece.page_number);
    if (part.crcs.size() <= number) part.crcs.resize(number + 1);
    const std::int64_t page_begin =
        (piece.page.value() - part.extent->first().value()) * kPageBytes - image_begin;
    part.crcs[number] =
        PartCrc(store, part.id, piece.page_number,
                image.span().subspan(static_cast<std::size_t>(page_begin + piece.begin),
                                     static_cast<std::size_t>(piece.end - piece.begin)));
  }
}

absl::Status AttachedSession::CheckCheckpoint(const Checkpoint& op) const {
  const std::int64_t tokens_end =
      op.token_ids_start + static_cast<std::int64_t>(op.token_ids.size());
  if (op.token_ids_start < tail_start_ ||
      op.token_ids_start > tail_start_ + static_cast<std::int64_t>(tail_tokens_.size()) ||
      tokens_end != op.token_count) {
    return InvalidArgument(
        "checkpoint of {} tokens brings ids {} to {}: they must begin between {} and {} and end "
        "there",
        op.token_count, op.token_ids_start, tokens_end, tail_start_,
        tail_start_ + static_cast<std::int64_t>(tail_tokens_.size()));
  }
  const auto ids = static_cast<std::size_t>(row_.layout.layer_count) *
                   static_cast<std::size_t>(row_.layout.head_count + 1);
  if (op.next_cluster_ids.size() != ids) {
    return InvalidArgument("checkpoint has {} next cluster ids, not {}", op.next_cluster_ids.size(),
                           ids);
  }
  CAIRN_RETURN_IF_ERROR(state_->CheckNextIds(op.next_cluster_ids));
  return state_->CheckPositions(op.token_count, staged_);
}

AttachedSession::Applied AttachedSession::ApplyCheckpoint(OpSeq op_seq, Checkpoint& op) {
  // One checkpoint of a session at a time; placings end before the cut, so that a row has one
  // author.
  if (checkpoint_ != nullptr || !placing_.empty()) return Applied::kWait;
  absl::Status status = CheckCheckpoint(op);
  auto plan = std::make_shared<LogPlan>();
  if (status.ok()) status = PlanLog(*plan);
  if (!status.ok()) {
    staged_.clear();
    return Finish(op_seq, status);
  }
  auto job = std::make_shared<CheckpointJob>();
  job->op_seq = op_seq;
  job->op = std::move(op);
  const auto cut = [this, job, plan](const PageSet& pages) {
    const OpSeq seq = job->op_seq;
    head_in_progress_ = false;
    if (stopped_ || failed_) return;
    const absl::Status result = Cut(*job, *plan, pages);
    if (result.ok()) checkpoint_ = std::make_unique<CheckpointJob>(std::move(*job));
    Finish(seq, result);
  };
  if (plan->pages_to_read.empty()) {
    cut(PageSet());
    return Applied::kYes;
  }
  // Records that are written again are read ahead of the cut; operations behind it wait.
  head_in_progress_ = true;
  context_.io->Read(std::move(plan->pages_to_read), ReadCause::kPlace,
                    [this, cut, io = HoldIo()](const PageSet& pages) {
                      cut(pages);
                      if (stopped_) return;
                      queue_.pop_front();
                      observer_->OnRoom();
                    });
  return Applied::kWait;
}

absl::Status AttachedSession::PlanLog(LogPlan& plan) const {
  // Records that carried entries have in this segment: any row may name them (architecture "Write
  // path").
  std::map<std::pair<ClusterKey, std::int64_t>, const Part*> records;  // key without the id
  for (const auto& [key, parts] : state_->open().carried) {
    for (const Part& part : parts) {
      records[{{key.layer, key.head, ClusterId(0)}, part.positions.first()}] = &part;
    }
  }
  const auto record_of = [&](const ClusterKey& key, std::int64_t position) -> const Part* {
    const auto found = records.find({{key.layer, key.head, ClusterId(0)}, position});
    return found == records.end() ? nullptr : found->second;
  };
  plan.pending = state_->pending();  // shares the bytes
  for (const auto& [key, chunks] : plan.pending) {
    std::vector<LogItem>& items = plan.parts[key];
    const auto own = state_->open().parts.find(key);
    if (own != state_->open().parts.end()) {
      for (const Part& part : own->second) items.push_back(LogItem::Existing(part));
    }
    for (const PendingChunk& chunk : chunks)
      PlanChunk(key, chunk, record_of, items, plan.new_bytes);
  }
  for (const auto& staged : staged_) {
    CAIRN_RETURN_IF_ERROR(PlanCarried(staged.first, staged.second, record_of, plan));
  }
  PlanStragglers(plan);
  return absl::OkStatus();
}

absl::Status AttachedSession::PlanCarried(
    const ClusterKey& key, const CarriedEntries& entries,
    const std::function<const Part*(const ClusterKey&, std::int64_t)>& record_of,
    LogPlan& plan) const {
  std::vector<LogItem>& items = plan.carried[key];
  const std::int64_t entry_bytes = state_->EntryBytes(key);
  absl::Status status;
  entries.positions.ForEach([&](std::int64_t position) {
    if (const Part* record = record_of(key, position)) {
      items.push_back(LogItem::Existing(*record));
      return;
    }
    if (!entries.brought_positions.Contains(position)) {
      status = InvalidArgument(
          "checkpoint: position {} of layer {} head {} is carried without its bytes, and it has no "
          "record in this segment",
          position, key.layer, key.head);
      return;
    }
    const std::int64_t index = entries.brought_positions.CountBelow(position);
    const auto offset = static_cast<std::size_t>(index * entry_bytes);
    items.push_back(LogItem::New(
        Positions::Range(position, 1),
        std::string_view(entries.entries).substr(offset, static_cast<std::size_t>(entry_bytes))));
    plan.new_bytes += entry_bytes;
  });
  return status;
}

void AttachedSession::PlanChunk(
    const ClusterKey& key, const PendingChunk& chunk,
    const std::function<const Part*(const ClusterKey&, std::int64_t)>& record_of,
    std::vector<LogItem>& items, std::int64_t& new_bytes) const {
  const std::int64_t entry_bytes = state_->EntryBytes(key);
  const std::int64_t record_entries_max = kPartBytesMax / entry_bytes;
  std::int64_t index = 0;
  std::int64_t first = 0;  // of the entries that have no record yet
  const auto flush = [&] {
    for (; first < index;) {
      const std::int64_t count = std::min(index - first, record_entries_max);
      items.push_back(LogItem::New(chunk.positions.Slice(first, count),
                                   std::string_view(*chunk.bytes)
                                       .substr(static_cast<std::size_t>(first * entry_bytes),
                                               static_cast<std::size_t>(count * entry_bytes))));
      new_bytes += count * entry_bytes;
      first += count;
    }
  };
  chunk.positions.ForEach([&](std::int64_t position) {
    if (const Part* record = record_of(key, position)) {
      flush();
      items.push_back(LogItem::Existing(*record));
      first = index + 1;
    }
    ++index;
  });
  flush();
}

// Rule 19: when the new run would be one too many of its size class, what is still named in the
// runs of that class is written again in it.
void AttachedSession::PlanStragglers(LogPlan& plan) const {
  std::map<const Extent*, std::int64_t> named_bytes;  // log runs that stay named
  const auto count_items = [&](const ClusterKey& key, const std::vector<LogItem>& items) {
    for (const LogItem& item : items) {
      if (item.existing && IsLog(*item.existing)) {
        named_bytes[item.existing->extent.get()] +=
            item.existing->count() * state_->EntryBytes(key);
      }
    }
  };
  for (const auto& [key, parts] : state_->open().parts) {
    if (plan.parts.contains(key)) continue;
    for (const Part& part : parts) {
      if (IsLog(part)) named_bytes[part.extent.get()] += part.count() * state_->EntryBytes(key);
    }
  }
  for (const auto& [key, items] : plan.parts) count_items(key, items);
  for (const auto& [key, items] : plan.carried) count_items(key, items);

  std::set<const Extent*> again;
  for (bool more = plan.new_bytes > 0; more;) {
    more = false;
    const std::int64_t bytes = plan.new_bytes + plan.again_bytes;
    const int size_class = LogRunClass((bytes + kPageBytes - 1) / kPageBytes);
    std::vector<const Extent*> same;
    for (const auto& [extent, named] : named_bytes) {
      if (!again.contains(extent) && LogRunClass(extent->page_count()) == size_class) {
        same.push_back(extent);
      }
    }
    if (static_cast<int>(same.size()) + 1 <= kLogRunsMax) break;
    for (const Extent* extent : same) {
      again.insert(extent);
      plan.again_bytes += named_bytes[extent];
      more = true;
    }
  }
  if (again.empty()) return;
  for (const auto& [key, parts] : state_->open().parts) {
    const bool names_one = std::any_of(parts.begin(), parts.end(), [&](const Part& part) {
      return again.contains(part.extent.get());
    });
    if (!names_one || plan.parts.contains(key)) continue;
    for (const Part& part : parts) plan.parts[key].push_back(LogItem::Existing(part));
  }
  const auto mark = [&](const ClusterKey& key, std::vector<LogItem>& items) {
    for (LogItem& item : items) {
      if (!item.existing || !again.contains(item.existing->extent.get())) continue;
      item.again = true;
      const Part& part = *item.existing;
      for (const PagePiece& piece : PiecesOf(part, state_->EntryBytes(key), 0, part.count())) {
        plan.pages_to_read.push_back(piece.page);
      }
    }
  };
  for (auto& [key, items] : plan.parts) mark(key, items);
  for (auto& [key, items] : plan.carried) mark(key, items);
}

absl::Status AttachedSession::Cut(CheckpointJob& job, LogPlan& plan, const PageSet& pages) {
  planned_.clear();  // what was not placed by now is logged, and may wait for long
  // A seal without new positions is a plain checkpoint (rule 2).
  const bool seal = job.op.seal && job.op.token_count > state_->open().start;
  SegmentId next;
  if (seal) {
    CAIRN_ASSIGN_OR_RETURN(const std::int64_t id, context_.ids->Next());
    next = SegmentId(id);
  }
  CAIRN_RETURN_IF_ERROR(WriteLog(plan, pages));
  staged_.clear();
  state_->open().has_checkpoint = true;
  policy_.random_state = job.op.random_state;

  job.row = row_;
  job.row.op_seq = job.op_seq;
  job.row.token_count = job.op.token_count;
  job.row.checkpoint_time_us = UnixMicroseconds();
  job.segment_row = segment_row_;
  job.segment_row.token_count = job.op.token_count;
  job.segment_row.has_checkpoint = true;
  job.segment_row.sealed = seal;
  job.segment_row.next_cluster_ids = job.op.next_cluster_ids;
  CaptureRows(job);
  CaptureLinks(job);
  CaptureAllocation(job);
  CaptureTokens(job);
  const SegmentId segment = state_->open().id;
  job.batch.Put(Family::kSegments, SegmentHeadKey(segment), EncodeSegmentRow(job.segment_row));
  job.batch.Put(Family::kSegments, SegmentPolicyKey(segment), EncodePolicyRow(policy_));
  if (seal) {
    job.sealed = segment;
    job.row.segment = next;
    job.segment_row.parent = segment;
    job.segment_row.start = job.op.token_count;
    job.segment_row.sealed = false;
    job.segment_row.has_checkpoint = false;
    job.batch.Put(Family::kSegments, SegmentHeadKey(next), EncodeSegmentRow(job.segment_row));
    job.batch.Put(Family::kSegments, SegmentPolicyKey(next), EncodePolicyRow(policy_));
    state_->Roll(job.op.token_count, next);
    regions_.clear();
    log_extents_.clear();
    pools_->Clear();
    co_fetches_.BeginSegment();
    tail_tokens_.clear();
    tail_start_ = job.op.token_count;
  }
  segment_row_ = job.segment_row;
  job.batch.Put(Family::kSessions, SessionKeyBytes(id_), EncodeSessionRow(job.row));
  job.write_seq = write_seq_;
  return absl::OkStatus();
}

void AttachedSession::AdvanceCheckpoint() {
  if (checkpoint_ == nullptr || checkpoint_->flushing || stopped_ || failed_) return;
  if (!writes_in_flight_.empty() && *writes_in_flight_.begin() <= checkpoint_->write_seq) return;
  checkpoint_->flushing = true;
  if (!context_.options.durable) return CommitCheckpoint();
  context_.io->Flush([this, io = HoldIo()](const absl::Status& status) {
    if (stopped_ || failed_) return;  // rule 4: given up
    if (!status.ok()) return Fail(Annotate(status, fmt::format("session {}: flush", id_)));
    CommitCheckpoint();
  });
}

void AttachedSession::CommitCheckpoint() {
  context_.Commit(std::move(checkpoint_->batch),
                  [this, io = HoldIo()](const absl::Status& status) { Committed(status); });
}

void AttachedSession::Committed(const absl::Status& status) {
  const std::unique_ptr<CheckpointJob> job = std::move(checkpoint_);
  if (!status.ok()) {
    return Fail(Annotate(status, fmt::format("session {}: checkpoint", id_)));
  }
  for (const ExtentRef& extent : job->named) extent->set_committed(true);
  for (const ExtentRef& extent : job->released) extent->set_committed(false);
  const Epoch epoch = row_.epoch;
  row_ = job->row;
  row_.epoch = epoch;
  ++context_.checkpoint_count;
  if (stopped_ || observer_ == nullptr) return;
  observer_->OnCheckpointed(job->op_seq, {job->op.token_count, job->sealed});
}

}  // namespace cairn::kv
