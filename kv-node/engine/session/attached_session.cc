#include "kv-node/engine/session/attached_session.h"

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "common/log/log.h"
#include "kv-node/engine/session/operation_checks.h"

namespace cairn::kv {
namespace {

// Far below what a device takes; one fetch has at most kFetchClusterCountMax requests more.
constexpr int kRequestsInFlightMax = 8192;

}  // namespace

AttachedSession::AttachedSession(EngineContext& context, SessionId id, LoadedState loaded)
    : context_(context),
      id_(id),
      row_(std::move(loaded.row)),
      policy_token_count_(loaded.policy_token_count),
      state_(std::move(loaded.state)),
      cache_(context.caches == nullptr ? nullptr : &context.caches->Of(row_.app)),
      co_fetches_(std::move(loaded.co_fetches)),
      writes_(*this),
      space_(std::move(loaded.regions), std::move(loaded.log_extents)),
      placer_(*this, co_fetches_, std::move(loaded.pools), writes_),
      log_(*this, placer_, space_, writes_),
      replacer_(*this, placer_, co_fetches_, log_, writes_),
      index_(*this, space_, writes_),
      checkpointer_(*this, {placer_, log_, index_, co_fetches_, space_, writes_}, row_, loaded),
      fetch_reader_(*this),
      applied_(row_.op_seq) {}

AttachedSession::~AttachedSession() {
  CAIRN_CHECK_EQ(io_count_, 0);
  context_.pending_bytes -= state_->pending_bytes();
}

Attachment AttachedSession::attachment() const {
  Attachment out;
  out.session_id = id_;
  out.uid = row_.uid;
  out.epoch = row_.epoch;
  out.token_count = row_.token_count;
  out.op_seq = row_.op_seq;
  out.layout = row_.layout;
  out.key = row_.key;
  out.next_cluster_ids = checkpointer_.segment_row().next_cluster_ids;
  out.segment_id = state_->open().id;
  out.parent_segment_id = state_->open().parent;
  out.segment_start = state_->open().start;
  out.policy_token_count = policy_token_count_;
  return out;
}

bool AttachedSession::TakeUnbound(const AttachAttempt& attempt) {
  if (bound() || failed_) return false;
  row_.owner = attempt;
  unbound_since_ = context_.now;
  return true;
}

std::shared_ptr<void> AttachedSession::HoldIo() {
  ++io_count_;
  return {this, [](AttachedSession* session) {
            --session->io_count_;
            if (session->io_count_ > 0 || !session->stop_then_) return;
            // The object may be deleted by it: behind this callback, not inside.
            session->context_.post(std::exchange(session->stop_then_, nullptr));
          }};
}

void AttachedSession::Stop(const absl::Status& why, std::function<void()> then) {
  CAIRN_CHECK(!stopped_);
  stopped_ = true;
  queue_.clear();
  if (observer_ != nullptr) observer_->OnFailure(OpSeq(0), why);
  if (io_count_ == 0) {
    context_.post(std::move(then));
  } else {
    stop_then_ = std::move(then);
  }
}

void AttachedSession::Fail(const absl::Status& status) {
  if (stopped_ || failed_) return;
  LogError("session={} failed error=\"{}\"", id_, ToStd(status.message()));
  failed_ = true;
  // The channel may not be there yet.
  untold_failure_ = status;
  TellFailure();
}

void AttachedSession::TellFailure() {
  if (observer_ == nullptr || untold_failure_.ok()) return;
  observer_->OnFailure(OpSeq(0), std::exchange(untold_failure_, absl::OkStatus()));
}

void AttachedSession::Pump() {
  if (!stopped_) TellFailure();
  while (!stopped_ && !head_in_progress_ && !queue_.empty()) {
    if (!failed_ && ApplyHead(queue_.front()) == Applied::kWait) break;
    PopHead();
  }
  checkpointer_.Advance();
}

void AttachedSession::PopHead() {
  queue_.pop_front();
  queued_->fetch_sub(1);
  observer_->OnRoom();
}

Applied AttachedSession::ApplyHead(QueuedOperation& head) {
  if (auto* read = std::get_if<ReadOperation>(&head.operation)) {
    if (head.after > applied_ && !FailPoint("a read comes before what it follows (rule 14)")) {
      Reply(head.request_id,
            FailedPrecondition("the read follows operation {}, and only {} has been applied",
                               head.after, applied_));
      return Applied::kYes;
    }
    const Applied applied = ApplyRead(head.request_id, *read);
    const auto* fetch = std::get_if<Fetch>(read);
    if (fetch != nullptr && applied == Applied::kYes) {
      co_fetches_.Note(fetch->layer, fetch->clusters);
    }
    return applied;
  }
  const std::int64_t next = applied_.value() + 1;
  if (head.op_seq.value() > next && refused_.value() == 0 &&
      !FailPoint("operations may be missing (rule 14)")) {
    Finish(OpSeq(next), InvalidArgument("operation {} is missing: {} came", next, head.op_seq));
  }
  if (head.op_seq.value() != next) {
    // Sent again, and applied before; or refused with the one that failed.
    observer_->OnPassedOver(head.op_seq);
    return Applied::kYes;
  }
  refused_ = OpSeq(0);
  return ApplyChange(head.op_seq, std::get<ChangingOperation>(head.operation));
}

Applied AttachedSession::Finish(OpSeq op_seq, const absl::Status& status) {
  if (status.ok()) {
    applied_ = op_seq;
  } else {
    (FailPoint("an operation that failed counts as applied (rule 14)") ? applied_ : refused_) =
        op_seq;
    observer_->OnFailure(op_seq, status);
  }
  return Applied::kYes;
}

void AttachedSession::TellCheckpointed(OpSeq op_seq, std::int64_t token_count, SegmentId sealed) {
  if (stopped_ || observer_ == nullptr) return;
  observer_->OnCheckpointed(op_seq, {token_count, sealed});
}

Applied AttachedSession::ApplyChange(OpSeq op_seq, ChangingOperation& operation) {
  absl::Status status = CheckPlace(row_.layout, operation);
  if (!status.ok()) return Finish(op_seq, status);
  if (auto* append = std::get_if<Append>(&operation)) return ApplyAppend(op_seq, *append);
  if (auto* replace = std::get_if<Replace>(&operation)) {
    if (!HasRoom()) return Applied::kWait;
    if (IsFull()) return Finish(op_seq, placer_.error());
    return replacer_.Apply(op_seq, *replace);
  }
  if (auto* checkpoint = std::get_if<Checkpoint>(&operation)) {
    return checkpointer_.Apply(op_seq, *checkpoint);
  }
  if (auto* stage = std::get_if<StageCarried>(&operation)) {
    status = CheckCarried(row_.layout, *stage);
    if (status.ok()) checkpointer_.Stage(*stage);
  } else if (auto* rows = std::get_if<PutIndexRows>(&operation)) {
    status = state_->CheckIndexRows(*rows);
    if (status.ok()) state_->PutIndexRows(rows->layer, rows->rows);
  } else if (const auto* evict = std::get_if<Evict>(&operation)) {
    status = state_->CheckEvict(*evict);
    if (status.ok()) state_->ApplyEvict(*evict);
  } else {
    checkpointer_.PutPolicy(std::move(std::get<PutPolicyState>(operation)));
  }
  return Finish(op_seq, status);
}

Applied AttachedSession::ApplyAppend(OpSeq op_seq, Append& op) {
  if (!HasRoom()) return Applied::kWait;
  if (IsFull()) return Finish(op_seq, placer_.error());
  const absl::Status status = CheckAppend(*state_, op);
  if (!status.ok()) return Finish(op_seq, status);
  for (ClusterEntries& entries : op.clusters) {
    const ClusterKey key{op.layer, entries.cluster.head, entries.cluster.cluster_id};
    const std::int64_t bytes = std::ssize(entries.entries);
    context_.pending_bytes += bytes;
    context_.counts.append_bytes += bytes;
    state_->Append(key, std::move(entries));
    placer_.NoteUnplaced(key);
    // A cluster that fills a pool has nothing to wait for.
    if (state_->PendingCount(key) * state_->EntryBytes(key) >= kPartBytesMax) placer_.Start(key);
  }
  return Finish(op_seq, absl::OkStatus());
}

bool AttachedSession::HasIoRoom() {
  // The engine tries again when some have ended.
  if (context_.io->in_flight_count() >= kRequestsInFlightMax) return false;
  BufferPool& buffers = context_.io->buffers();
  // A client that reads no more must not stop the others: what it leaves unsent counts against its
  // own session only.
  const auto has_room = [&] {
    const bool own_count = !context_.options.answers_are_held;
    const std::int64_t others_bytes =
        buffers.unsent_bytes() - (own_count ? fetch_reader_.unsent_bytes() : 0);
    return buffers.used_bytes() - others_bytes < context_.options.io_bytes_max;
  };
  if (has_room()) return true;
  buffers.WakeAtRelease();
  return has_room();
}

bool AttachedSession::HasRoom() {
  if (!HasIoRoom()) return false;
  const bool was_refused = log_.TakeSpillFailure();
  if (context_.pending_bytes < context_.options.pending_bytes_max) {
    placer_.NoteRoom();
    return true;
  }
  if (was_refused) return true;
  placer_.PlaceForRoom();
  // A placing that reads will make room, and so will one that waits for a write to end.
  if (placer_.is_placing() || placer_.waits()) return false;
  if (WantsSpill()) log_.Spill();
  // Done, or refused with the placer's error; or the table is full of what other sessions have, and
  // this one goes over the limit by one operation.
  return !head_in_progress_;
}

bool AttachedSession::WantsSpill() const {
  const std::int64_t full_bytes = context_.options.pending_bytes_max;
  if (context_.pending_bytes < full_bytes) return false;
  const bool always = FailPoint("a page is spilled for each operation");
  return state_->pending_bytes() >= full_bytes / kSpillShare || always || !placer_.error().ok();
}

bool AttachedSession::IsFull() const {
  return !placer_.error().ok() && context_.pending_bytes >= context_.options.pending_bytes_max;
}

void AttachedSession::ReadAtHead(std::vector<PageIndex> pages, AfterRead after,
                                 PageIo::ReadDone done, PageIo::Doubt doubt) {
  head_in_progress_ = true;
  context_.io->Read(
      std::move(pages), ReadCause::kPlace,
      [this, after, done = std::move(done), io = HoldIo()](PageSet set) {
        head_in_progress_ = false;
        if (stopped_) return;
        if (!failed_) done(std::move(set));
        if (after == AfterRead::kIsApplied) PopHead();
      },
      std::move(doubt));
}

}  // namespace cairn::kv
