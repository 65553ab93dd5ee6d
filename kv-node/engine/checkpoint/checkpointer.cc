#include "kv-node/engine/checkpoint/checkpointer.h"

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "kv-node/engine/checkpoint/log_plan.h"

namespace cairn::kv {

Checkpointer::Checkpointer(SessionHost& host, const Parts& parts, SessionRow& row,
                           LoadedState& loaded)
    : host_(host),
      context_(host.context()),
      state_(host.state()),
      placer_(parts.placer),
      log_(parts.log),
      index_(parts.index),
      co_fetches_(parts.co_fetches),
      space_(parts.space),
      writes_(parts.writes),
      row_(row),
      segment_row_(std::move(loaded.segment_row)),
      policy_(std::move(loaded.policy)),
      tail_tokens_(std::move(loaded.tail_tokens)),
      tail_start_(loaded.tail_start) {}

void Checkpointer::PutPolicy(PutPolicyState op) {
  policy_.version = op.version;
  policy_.state = std::move(op.state);
}

absl::Status Checkpointer::CheckCheckpoint(const Checkpoint& op) const {
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
  const auto ids = static_cast<std::size_t>(state_.layout().layer_count) *
                   static_cast<std::size_t>(state_.layout().head_count + 1);
  if (op.next_cluster_ids.size() != ids) {
    return InvalidArgument("checkpoint has {} next cluster ids, not {}", op.next_cluster_ids.size(),
                           ids);
  }
  CAIRN_RETURN_IF_ERROR(state_.CheckNextIds(op.next_cluster_ids));
  CAIRN_DCHECK(state_.SumsAreRight());
  if (FailPoint("no position rule at a checkpoint")) return absl::OkStatus();
  return state_.CheckPositions(op.token_count, staged_);
}

// A seal without new positions is a plain checkpoint (rule 2).
bool Checkpointer::Seals(const Checkpoint& op) const {
  return op.seal && (op.token_count > state_.open().start ||
                     FailPoint("a seal without new positions seals (rule 2)"));
}

// The new entries of the checkpoint: rows of the index can do without a run, entries cannot.
std::int64_t Checkpointer::LogPageCountMax() const {
  std::int64_t bytes = state_.pending_bytes();
  for (const auto& [key, entries] : staged_) bytes += std::ssize(entries.entries);
  return bytes / kPageBytes + 1;
}

void Checkpointer::Stage(StageCarried& op) {
  for (CarriedEntries& entries : op.carried) {
    const ClusterKey key{op.layer, entries.head, entries.buffer_cluster_id};
    context_.counts.append_bytes += std::ssize(entries.entries);
    staged_[key] = std::move(entries);
  }
}

Applied Checkpointer::Apply(OpSeq op_seq, Checkpoint& op) {
  // One checkpoint of a session at a time; placings end before the cut, so that a row has one
  // author.
  if ((job_ != nullptr && !FailPoint("a checkpoint does not wait for the one before (rule 8)")) ||
      placer_.is_placing()) {
    return Applied::kWait;
  }
  absl::Status status = CheckCheckpoint(op);
  if (status.ok() && index_.Pack(LogPageCountMax())) return Applied::kWait;
  auto plan = std::make_shared<LogPlan>();
  plan->carried_apart = Seals(op) && !FailPoint("what a seal carries lies among the clusters");
  if (status.ok()) status = LogPlanner(state_).PlanCheckpoint(staged_, *plan);
  if (!status.ok()) {
    staged_.clear();
    return host_.Finish(op_seq, status);
  }
  auto job = std::make_shared<Job>();
  job->op_seq = op_seq;
  job->op = std::move(op);
  const auto cut = [this, job, plan](const PageSet& pages) {
    const OpSeq seq = job->op_seq;
    const absl::Status result = Cut(*job, *plan, pages);
    if (result.ok()) job_ = std::make_unique<Job>(std::move(*job));
    host_.Finish(seq, result);
  };
  if (plan->pages_to_read.empty()) {
    cut(PageSet());
    return Applied::kYes;
  }
  // Records that are written again are read ahead of the cut; operations behind it wait.
  host_.ReadAtHead(std::move(plan->pages_to_read), AfterRead::kIsApplied, cut);
  return Applied::kWait;
}

absl::Status Checkpointer::Cut(Job& job, LogPlan& plan, const PageSet& pages) {
  if (!FailPoint("kept places outlive the cut")) {
    placer_.ForgetPlans();  // what was not placed by now is logged, and may wait for long
  }
  index_.NoteCut();
  const bool seal = Seals(job.op);
  SegmentId next;
  if (seal) {
    CAIRN_ASSIGN_OR_RETURN(const std::int64_t id, context_.ids->Next());
    next = SegmentId(id);
  }
  CAIRN_RETURN_IF_ERROR(log_.Write(plan, pages));
  staged_.clear();
  state_.open().has_checkpoint = true;
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
  const SegmentId segment = state_.open().id;
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
    if (!FailPoint("a seal goes over to the next segment at its commit (rule 2)")) {
      RollTo(job.op.token_count, next);
    }
    co_fetches_.BeginSegment();
    tail_tokens_.clear();
    tail_start_ = job.op.token_count;
  }
  segment_row_ = job.segment_row;
  job.batch.Put(Family::kSessions, SessionKeyBytes(host_.id()), EncodeSessionRow(job.row));
  job.write_number = writes_.last_number();
  return absl::OkStatus();
}

void Checkpointer::Advance() {
  if (job_ == nullptr || job_->flushing || host_.ends()) return;
  if (!writes_.HasEndedUpTo(job_->write_number) &&
      !FailPoint("commit before the writes have ended")) {
    return;
  }
  job_->flushing = true;
  if (!context_.options.durable || FailPoint("no flush before the commit")) return Commit();
  context_.io->Flush([this, io = host_.HoldIo()](const absl::Status& status) {
    if (host_.ends()) return;  // rule 4: given up
    if (!status.ok() && !FailPoint("a flush that failed is forgotten")) {
      return host_.Fail(Annotate(status, fmt::format("session {}: flush", host_.id())));
    }
    Commit();
  });
}

void Checkpointer::Commit() {
  if (FailPoint("rows that change behind the cut are committed (rule 8)")) CaptureRows(*job_);
  if (FailPoint("acknowledge before the commit")) {
    host_.TellCheckpointed(job_->op_seq, job_->op.token_count, job_->sealed);
  }
  context_.Commit(std::move(job_->batch),
                  [this, io = host_.HoldIo()](const absl::Status& status) { Committed(status); });
}

void Checkpointer::Committed(const absl::Status& status) {
  const std::unique_ptr<Job> job = std::move(job_);
  if (!status.ok()) {
    // Whether the batch is there is not known yet: until then nobody may write to what it names or
    // ceases to name.
    for (const auto* extents : {&job->named, &job->released}) {
      for (const ExtentRef& extent : *extents) {
        extent->set_committed(true);
        context_.free_map->Doubt(extent->first(), extent->page_count());
      }
    }
    return host_.Fail(Annotate(status, fmt::format("session {}: checkpoint", host_.id())));
  }
  for (const ExtentRef& extent : job->named) extent->set_committed(true);
  for (const ExtentRef& extent : job->released) extent->set_committed(false);
  row_ = job->row;
  ++context_.counts.checkpoint_count;
  // What was logged, and the plan of it, are free. Not on this thread, though who allocates
  // meanwhile waits.
  context_.Load<bool>(
      [return_freed_memory = context_.return_freed_memory](MetaReader&) -> absl::StatusOr<bool> {
        return_freed_memory();
        return true;
      },
      [](const absl::StatusOr<bool>&) {});
  if (job->sealed.value() != 0) context_.on_sealed(job->sealed);
  if (FailPoint("a seal goes over to the next segment at its commit (rule 2)") &&
      job->sealed.value() != 0) {
    RollTo(job->op.token_count, job->row.segment);
  }
  host_.TellCheckpointed(job->op_seq, job->op.token_count, job->sealed);
}

void Checkpointer::RollTo(std::int64_t start, SegmentId next) {
  state_.Roll(start, next);
  space_.BeginSegment();
  placer_.pools().Clear();
}

}  // namespace cairn::kv
