#include "kv-node/engine/attached_session.h"

#include "common/base/check.h"
#include "common/log/log.h"
#include "kv-node/engine/checkpoint_job.h"

namespace cairn::kv {
namespace {

// Far below what a device takes; one fetch has at most kFetchClusterCountMax requests more.
constexpr int kRequestsInFlightMax = 8192;

}  // namespace

AttachedSession::AttachedSession(EngineContext& context, SessionId id, LoadedState loaded)
    : context_(context),
      id_(id),
      row_(std::move(loaded.row)),
      segment_row_(std::move(loaded.segment_row)),
      policy_token_count_(loaded.policy_token_count),
      state_(std::move(loaded.state)),
      pools_(std::move(loaded.pools)),
      co_fetches_(std::move(loaded.co_fetches)),
      fetch_reader_(*this),
      read_ahead_(*this, row_.layout.layer_count),
      applied_(row_.op_seq),
      policy_(std::move(loaded.policy)),
      tail_tokens_(std::move(loaded.tail_tokens)),
      tail_start_(loaded.tail_start),
      regions_(std::move(loaded.regions)),
      log_extents_(std::move(loaded.log_extents)) {
  NoteAllUnplaced();
}

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
  out.next_cluster_ids = segment_row_.next_cluster_ids;
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
  // What was logged is placed as soon as the session is open: the channel may not be there yet.
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
    queue_.pop_front();
    observer_->OnRoom();
  }
  AdvanceCheckpoint();
  read_ahead_.Start();
}

Applied AttachedSession::ApplyHead(QueuedOperation& head) {
  if (auto* read = std::get_if<ReadOperation>(&head.operation)) {
    if (head.after > applied_) {
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
  if (const auto* hint = std::get_if<HintOperation>(&head.operation)) {
    read_ahead_.Apply(head.request_id, *hint, fetch_reader_.read_bytes());
    return Applied::kYes;
  }
  const std::int64_t next = applied_.value() + 1;
  if (head.op_seq.value() > next && refused_.value() == 0) {
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
    refused_ = op_seq;
    observer_->OnFailure(op_seq, status);
  }
  return Applied::kYes;
}

absl::Status AttachedSession::CheckPlace(const ChangingOperation& operation) const {
  std::int32_t layer = 0;
  std::int32_t head = kAllHeads;
  std::visit(
      [&](const auto& op) {
        if constexpr (requires { op.layer; }) layer = op.layer;
        if constexpr (requires { op.head; }) head = op.head;
      },
      operation);
  if (layer >= 0 && layer < row_.layout.layer_count && head >= kAllHeads &&
      head < row_.layout.head_count) {
    return absl::OkStatus();
  }
  return InvalidArgument("layer {} head {} does not exist: the session has {} layers of {} heads",
                         layer, head, row_.layout.layer_count, row_.layout.head_count);
}

Applied AttachedSession::ApplyChange(OpSeq op_seq, ChangingOperation& operation) {
  const absl::Status place = CheckPlace(operation);
  if (!place.ok()) return Finish(op_seq, place);
  if (auto* append = std::get_if<Append>(&operation)) return ApplyAppend(op_seq, *append);
  if (auto* stage = std::get_if<StageCarried>(&operation)) return ApplyStageCarried(op_seq, *stage);
  if (auto* checkpoint = std::get_if<Checkpoint>(&operation)) {
    return ApplyCheckpoint(op_seq, *checkpoint);
  }
  if (auto* replace = std::get_if<Replace>(&operation)) return ApplyReplace(op_seq, *replace);
  if (auto* rows = std::get_if<PutIndexRows>(&operation)) {
    const absl::Status status = state_->CheckIndexRows(*rows);
    if (!status.ok()) return Finish(op_seq, status);
    state_->PutIndexRows(rows->layer, rows->rows);
    return Finish(op_seq, absl::OkStatus());
  }
  if (const auto* put = std::get_if<PutNeighbours>(&operation)) {
    const absl::Status status = CheckNeighbours(row_.layout, *put);
    if (status.ok()) co_fetches_.Give(*put);
    return Finish(op_seq, status);
  }
  auto& policy = std::get<PutPolicyState>(operation);
  policy_.version = policy.version;
  policy_.state = std::move(policy.state);
  return Finish(op_seq, absl::OkStatus());
}

absl::Status AttachedSession::CheckEntries(std::int32_t layer, std::int32_t head,
                                           const Positions& positions, std::int64_t bytes) const {
  if (layer < 0 || layer >= row_.layout.layer_count || head < kAllHeads ||
      head >= row_.layout.head_count) {
    return InvalidArgument("layer {} head {} does not exist", layer, head);
  }
  if (row_.layout.EntryBytes(head) > kPartBytesMax) {
    return InvalidArgument("an entry of head {} has {} bytes, more than the largest part, {}", head,
                           row_.layout.EntryBytes(head), kPartBytesMax);
  }
  const std::int64_t want = positions.count() * row_.layout.EntryBytes(head);
  if (bytes == want) return absl::OkStatus();
  return InvalidArgument("layer {} head {}: {} entries have {} bytes, not {}", layer, head,
                         positions.count(), bytes, want);
}

absl::Status AttachedSession::CheckAppend(const Append& op) const {
  if (op.clusters.empty()) {
    return InvalidArgument("append to layer {} names no clusters", op.layer);
  }
  std::set<ClusterRef> seen;
  for (const ClusterEntries& entries : op.clusters) {
    CAIRN_RETURN_IF_ERROR(CheckEntries(op.layer, entries.cluster.head, entries.positions,
                                       static_cast<std::int64_t>(entries.entries.size())));
    if (entries.positions.empty() || entries.cluster.cluster_id.value() < 1 ||
        !seen.insert(entries.cluster).second) {
      return InvalidArgument(
          "append to layer {}: cluster {} has no positions, no id, or is named twice", op.layer,
          entries.cluster.cluster_id);
    }
    CAIRN_RETURN_IF_ERROR(state_->CheckAppend(
        {op.layer, entries.cluster.head, entries.cluster.cluster_id}, entries.positions));
  }
  return absl::OkStatus();
}

absl::Status AttachedSession::CheckCarried(std::int32_t layer,
                                           const CarriedEntries& entries) const {
  CAIRN_RETURN_IF_ERROR(CheckEntries(layer, entries.head, entries.brought_positions,
                                     static_cast<std::int64_t>(entries.entries.size())));
  absl::Status status;
  entries.brought_positions.ForEach([&](std::int64_t position) {
    if (!status.ok() || entries.positions.Contains(position)) return;
    status = InvalidArgument(
        "carried entries of layer {} head {}: position {} is brought and is not one of the "
        "positions that are carried",
        layer, entries.head, position);
  });
  return status;
}

bool AttachedSession::HasIoRoom() {
  // The engine tries again when some have ended.
  if (context_.io->in_flight_count() >= kRequestsInFlightMax) return false;
  BufferPool& buffers = context_.io->buffers();
  // A client that reads no more must not stop the others: what it leaves unsent counts against its
  // own session only.
  const auto has_room = [&] {
    const std::int64_t unsent_by_others = buffers.unsent_bytes() - fetch_reader_.unsent_bytes();
    return buffers.used_bytes() - unsent_by_others < context_.options.io_bytes_max;
  };
  if (has_room()) return true;
  buffers.WakeAtRelease();
  return has_room();
}

bool AttachedSession::HasRoom() {
  if (!HasIoRoom()) return false;
  const bool was_refused = std::exchange(spill_failed_, false);
  if (context_.pending_bytes < context_.options.pending_bytes_max) {
    tried_for_room_.clear();
    return true;
  }
  if (was_refused) return true;
  PlaceForRoom();
  // A placing that reads will make room, and so will one that waits for a write to end.
  if (!placing_.empty() || place_waits_) return false;
  if (WantsSpill()) Spill();
  // Done, or refused with place_error_; or the table is full of what other sessions have, and this
  // one goes over the limit by one operation.
  return !head_in_progress_;
}

bool AttachedSession::WantsSpill() const {
  const std::int64_t full_bytes = context_.options.pending_bytes_max;
  if (context_.pending_bytes < full_bytes) return false;
  return state_->pending_bytes() >= full_bytes / kSpillShare || !place_error_.ok();
}

Applied AttachedSession::ApplyAppend(OpSeq op_seq, Append& op) {
  if (!HasRoom()) return Applied::kWait;
  if (!place_error_.ok() && context_.pending_bytes >= context_.options.pending_bytes_max) {
    return Finish(op_seq, place_error_);
  }
  const absl::Status status = CheckAppend(op);
  if (!status.ok()) return Finish(op_seq, status);
  for (ClusterEntries& entries : op.clusters) {
    const ClusterKey key{op.layer, entries.cluster.head, entries.cluster.cluster_id};
    context_.pending_bytes += static_cast<std::int64_t>(entries.entries.size());
    context_.append_bytes += static_cast<std::int64_t>(entries.entries.size());
    state_->Append(key, std::move(entries));
    NoteUnplaced(key);
    // A cluster that fills a pool has nothing to wait for.
    if (state_->PendingCount(key) * state_->EntryBytes(key) >= kPartBytesMax) {
      StartPlacing(key);
    }
  }
  return Finish(op_seq, absl::OkStatus());
}

Applied AttachedSession::ApplyStageCarried(OpSeq op_seq, StageCarried& op) {
  for (const CarriedEntries& entries : op.carried) {
    const absl::Status status = CheckCarried(op.layer, entries);
    if (!status.ok()) return Finish(op_seq, status);
  }
  for (CarriedEntries& entries : op.carried) {
    const ClusterKey key{op.layer, entries.head, entries.buffer_cluster_id};
    context_.append_bytes += static_cast<std::int64_t>(entries.entries.size());
    staged_[key] = std::move(entries);
  }
  return Finish(op_seq, absl::OkStatus());
}

}  // namespace cairn::kv
