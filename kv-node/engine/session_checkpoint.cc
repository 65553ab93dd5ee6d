// Checkpoints. The order of docs/on-disk-format.md, "One checkpoint, in order", is in this one
// file: rows are captured at the cut (rule 8), all writes that they name end, the device is
// flushed, the batch is committed, and only then is the checkpoint acknowledged.
#include <algorithm>

#include "common/base/check.h"
#include "common/base/heap.h"
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
  CAIRN_DCHECK(state_->SumsAreRight());
  return state_->CheckPositions(op.token_count, staged_);
}

// A seal without new positions is a plain checkpoint (rule 2).
bool AttachedSession::Seals(const Checkpoint& op) const {
  return op.seal && op.token_count > state_->open().start;
}

Applied AttachedSession::ApplyCheckpoint(OpSeq op_seq, Checkpoint& op) {
  // One checkpoint of a session at a time; placings end before the cut, so that a row has one
  // author.
  if (checkpoint_ != nullptr || !placing_.empty()) return Applied::kWait;
  absl::Status status = CheckCheckpoint(op);
  if (status.ok() && PackIndex()) return Applied::kWait;
  auto plan = std::make_shared<LogPlan>();
  plan->carried_apart = Seals(op);
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

absl::Status AttachedSession::Cut(CheckpointJob& job, LogPlan& plan, const PageSet& pages) {
  planned_.clear();  // what was not placed by now is logged, and may wait for long
  for (auto& [layer, checkpoint_count] : index_refused_) --checkpoint_count;
  std::erase_if(index_refused_, [](const auto& layer) { return layer.second == 0; });
  const bool seal = Seals(job.op);
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
  job.row.checkpoint_time_us = context_.unix_microseconds();
  if (job.row.lifetime == SessionLifetime::kFromCheckpoint) {
    job.row.lifetime = SessionLifetime::kPermanent;
  }
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
    job.row.flash_bytes = 0;
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
    // Whether the batch is there is not known yet: until then nobody may write to what it names or
    // ceases to name.
    for (const auto* extents : {&job->named, &job->released}) {
      for (const ExtentRef& extent : *extents) {
        extent->set_committed(true);
        context_.free_map->Doubt(extent->first(), extent->page_count());
      }
    }
    return Fail(Annotate(status, fmt::format("session {}: checkpoint", id_)));
  }
  for (const ExtentRef& extent : job->named) extent->set_committed(true);
  for (const ExtentRef& extent : job->released) extent->set_committed(false);
  row_ = job->row;
  ++context_.checkpoint_count;
  // What was logged, and the plan of it, are free. Not on this thread, though who allocates
  // meanwhile waits.
  context_.Load<bool>(
      [](MetaReader&) -> absl::StatusOr<bool> {
        ReturnFreedMemory();
        return true;
      },
      [](const absl::StatusOr<bool>&) {});
  if (job->sealed.value() != 0) context_.on_sealed(job->sealed);
  if (stopped_ || observer_ == nullptr) return;
  observer_->OnCheckpointed(job->op_seq, {job->op.token_count, job->sealed});
}

}  // namespace cairn::kv
