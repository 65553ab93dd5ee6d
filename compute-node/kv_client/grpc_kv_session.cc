#include "compute-node/kv_client/grpc_kv_session.h"

#include <algorithm>
#include <utility>

#include <google/protobuf/arena.h>

#include "common/base/check.h"
#include "common/base/thread.h"
#include "common/log/log.h"
#include "common/rpc/kv_codec.h"
#include "common/rpc/status_mapping.h"

namespace cairn::compute {
namespace {

// Bytes that numbering adds to a message that was measured before.
constexpr std::int64_t kNumberBytes = 16;

absl::Status CheckMessageSize(const pb::ChannelRequest& message) {
  const auto bytes = static_cast<std::int64_t>(message.ByteSizeLong()) + kNumberBytes;
  if (bytes <= kMessageBytesMax) return absl::OkStatus();
  return InvalidArgument("an operation of {} bytes is more than message_bytes_max {}: split it",
                         bytes, kMessageBytesMax);
}

std::future<absl::StatusOr<ReadReply>> Ready(const absl::Status& status) {
  std::promise<absl::StatusOr<ReadReply>> promise;
  promise.set_value(status);
  return promise.get_future();
}

// Of taking a reply: the handshake for its memory found nobody, or another daemon.
bool IsAwayUnderReply(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kNotFound ||
         status.code() == absl::StatusCode::kDeadlineExceeded;
}

// Of a reply that was not taken for `why`, which may be this process's trouble and not the reply's.
absl::Status CannotTake(const absl::Status& why) {
  if (absl::IsInvalidArgument(why) || absl::IsInternal(why)) {
    return Internal("a reply of the KV node is malformed: {}", Message(why));
  }
  return Annotate(why, "take a reply of the KV node");
}

// What the end of a stream means to its session's caller.
absl::Status EndStatus(const absl::Status& end) {
  // The stored epoch is not ours any more.
  if (end.code() != absl::StatusCode::kFailedPrecondition) return end;
  return Aborted("another owner opened the session: {}", Message(end));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcKvSession>> GrpcKvSession::Open(
    const std::shared_ptr<NodeLink>& link, const SessionRef& session) {
  Backoff backoff(*link);
  auto attacher = std::make_unique<SessionAttacher>(link, session);
  while (true) {
    bool again = false;
    absl::StatusOr<Attached> attached = attacher->Attach(OpSeq(), &again);
    if (attached.ok()) {
      return std::unique_ptr<GrpcKvSession>(
          new GrpcKvSession(std::move(attacher), *std::move(attached)));
    }
    if (!again) return attached.status();
    if (backoff.expired()) return link->DidNotComeBack(attached.status());
    std::this_thread::sleep_until(backoff.Next());
  }
}

GrpcKvSession::GrpcKvSession(std::unique_ptr<SessionAttacher> attacher, Attached attached)
    : attacher_(std::move(attacher)),
      link_(attacher_->link()),
      attachment_(std::move(attached.attachment)),
      acknowledged_(attachment_.op_seq),
      replay_(link_->options().replay_bytes_max, attachment_.op_seq),
      call_(std::move(attached.call)) {
  reply_thread_ = StartThread("kv-replies", [this] { Run(); });
}

GrpcKvSession::~GrpcKvSession() {
  std::shared_ptr<ChannelCall> call;
  pb::CloseSessionRequest request;
  {
    MutexLock lock(mutex_);
    closing_ = true;
    call = call_;
    request.set_session_id(attachment_.session_id.value());
    request.set_epoch(attachment_.epoch.value());
    changed_.NotifyAll();
  }
  attacher_->Cancel();
  if (call != nullptr) {
    // Ending the stream detaches too, but later; the caller may want to seal or delete next.
    grpc::ClientContext context;
    call->connection()->Prepare(&context, link_->CallTime(kCloseTimeMax));
    pb::CloseSessionResponse response;
    call->connection()->stub->CloseSession(&context, request, &response);
    call->Cancel();
    // Memory that the KV node gives back stays in use as long as it is mapped here.
    if (call->connection()->arena != nullptr) call->connection()->arena->Forget();
  }
  reply_thread_.join();
  if (resend_thread_.joinable()) resend_thread_.join();
}

const Attachment& GrpcKvSession::attachment() const {
  MutexLock lock(mutex_);
  visible_attachment_ = attachment_;
  return visible_attachment_;
}

absl::Status GrpcKvSession::AwaitChangeLocked() {
  changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + kInterruptCheckInterval);
  return interrupt_ ? interrupt_() : absl::OkStatus();
}

absl::Status GrpcKvSession::AwaitOpenLocked(Patience patience) {
  while (state_ == State::kRecovering) {
    const absl::Status status = AwaitChangeLocked();
    if (state_ == State::kRecovering && link_->stopped()) {
      return Unavailable("the KV node is away, and this process is stopping");
    }
    if (patience == Patience::kUntilInterrupted) CAIRN_RETURN_IF_ERROR(status);
  }
  return state_ == State::kOpen ? absl::OkStatus() : status_;
}

void GrpcKvSession::Write(const std::shared_ptr<ChannelCall>& call, pb::ChannelRequest& message) {
  for (const RequestId fetch : lease_returns_->Take()) {
    message.add_released_request_ids(fetch.value());
  }
  if (call->Write(message)) return;
  // kv-replies sees the end too and recovers; until then nothing more is to be written.
  MutexLock lock(mutex_);
  if (call_ == call && state_ == State::kOpen) state_ = State::kRecovering;
}

absl::Status GrpcKvSession::Send(ChangingOperation operation) {
  CheckpointWait wait;
  const auto* checkpoint = std::get_if<Checkpoint>(&operation);
  const bool is_checkpoint = checkpoint != nullptr;
  if (is_checkpoint) {
    wait.token_count = checkpoint->token_count;
    wait.seal = checkpoint->seal;
  }
  const std::int64_t bytes = OperationBytes(operation);
  bool keep = false;
  {
    MutexLock lock(mutex_);
    keep = mode_ == ReplayMode::kOperations;
  }
  ChangingOperation kept;
  if (keep) kept = operation;
  pb::ChannelRequest message;
  rpc::SetOperation(std::move(operation), &message);
  CAIRN_RETURN_IF_ERROR(CheckMessageSize(message));

  std::shared_ptr<ChannelCall> call;
  {
    MutexLock lock(mutex_);
    // Not interrupted: the caller could not tell whether the operation counts.
    CAIRN_RETURN_IF_ERROR(AwaitOpenLocked(Patience::kUnlimited));
    if (keep && !is_checkpoint) CAIRN_RETURN_IF_ERROR(replay_.CheckRoom(bytes));
    const OpSeq op_seq = keep ? replay_.Keep(std::move(kept)) : replay_.Skip();
    message.set_op_seq(op_seq.value());
    if (is_checkpoint) {
      CAIRN_CHECK(!checkpoint_.in_progress());
      checkpoint_ = wait;
      checkpoint_.op_seq = op_seq;
    }
    call = call_;
  }
  Write(call, message);
  return absl::OkStatus();
}

absl::Status GrpcKvSession::StartCheckpoint(Checkpoint checkpoint) {
  return Send(std::move(checkpoint));
}

std::future<absl::StatusOr<ReadReply>> GrpcKvSession::StartRead(ReadOperation operation) {
  // A fetch names hundreds of clusters: they are made, and go, together.
  google::protobuf::Arena arena;
  auto& message = *google::protobuf::Arena::CreateMessage<pb::ChannelRequest>(&arena);
  rpc::SetOperation(operation, &message);
  std::shared_ptr<ChannelCall> call;
  std::future<absl::StatusOr<ReadReply>> answer;
  {
    MutexLock lock(mutex_);
    while (true) {
      absl::Status status = AwaitOpenLocked(Patience::kUntilInterrupted);
      if (status.ok() && !reads_.full()) break;
      if (status.ok()) status = AwaitChangeLocked();
      if (!status.ok()) return Ready(status);
    }
    auto [id, future] = reads_.Add({std::move(operation), replay_.last()});
    answer = std::move(future);
    message.set_request_id(id.value());
    message.set_after_op_seq(replay_.last().value());
    call = call_;
  }
  Write(call, message);
  return answer;
}

RequestId GrpcKvSession::SendHint(HintOperation hint) {
  const RequestId id(++last_hint_id_);
  const std::shared_ptr<ChannelCall> call = OpenCall();
  if (call == nullptr || !call->connection()->Has(pb::OPERATION_PREFETCH)) return id;
  pb::ChannelRequest message;
  rpc::SetOperation(hint, &message);
  message.set_request_id(id.value());
  Write(call, message);
  return id;
}

void GrpcKvSession::ReturnLeases() {
  if (lease_returns_->empty()) return;
  const std::shared_ptr<ChannelCall> call = OpenCall();
  if (call == nullptr) return;  // they ended with the stream
  pb::ChannelRequest message;
  message.mutable_release();  // the ids come with every message
  Write(call, message);
}

bool GrpcKvSession::checkpoint_in_progress() const {
  MutexLock lock(mutex_);
  return checkpoint_.in_progress();
}

absl::StatusOr<Checkpointed> GrpcKvSession::WaitForCheckpoint() {
  MutexLock lock(mutex_);
  while (checkpoint_.in_progress() && state_ != State::kLost && state_ != State::kFailed) {
    CAIRN_RETURN_IF_ERROR(AwaitChangeLocked());
  }
  if (checkpoint_.result) return *checkpoint_.result;
  if (state_ == State::kLost || state_ == State::kFailed) return status_;
  return Checkpointed{attachment_.token_count, SegmentId()};
}

void GrpcKvSession::SetReplayMode(ReplayMode mode) {
  MutexLock lock(mutex_);
  mode_ = mode;
  if (mode == ReplayMode::kNothing) replay_.Forget();
}

absl::Status GrpcKvSession::Reattach() {
  MutexLock lock(mutex_);
  while (state_ == State::kRecovering) CAIRN_RETURN_IF_ERROR(AwaitChangeLocked());
  if (state_ == State::kFailed) {
    discard_ = true;
    state_ = State::kRecovering;
    if (call_ != nullptr) call_->Cancel();
    changed_.NotifyAll();
    return AwaitOpenLocked(Patience::kUntilInterrupted);
  }
  if (state_ == State::kLost) {
    // Recovery has resumed the session already; only its numbers start anew.
    replay_.Reset(attachment_.op_seq);
    checkpoint_ = {};
    state_ = call_ != nullptr ? State::kOpen : State::kRecovering;
  }
  return AwaitOpenLocked(Patience::kUntilInterrupted);
}

void GrpcKvSession::Run() {
  const ServingPriority realtime(link_->options().realtime_priority);
  while (true) {
    std::shared_ptr<ChannelCall> call;
    {
      MutexLock lock(mutex_);
      while (!closing_ && call_ == nullptr && state_ == State::kFailed && !discard_) {
        changed_.Wait(mutex_);
      }
      call = call_;
    }
    const absl::Status end = call != nullptr ? ReadReplies(call) : absl::OkStatus();
    if (resend_thread_.joinable()) resend_thread_.join();
    if (!MayRecover(end)) {
      MutexLock lock(mutex_);
      if (closing_) return;
      continue;
    }
    Recover(end);
  }
}

absl::Status GrpcKvSession::ReadReplies(const std::shared_ptr<ChannelCall>& call) {
  while (const std::shared_ptr<pb::ChannelReply> reply = call->Read()) HandleReply(*call, reply);
  const absl::Status end = call->Finish();
  MutexLock lock(mutex_);
  node_stops_ = false;
  call_.reset();
  if (state_ == State::kOpen) state_ = State::kRecovering;
  return end.ok() ? Unavailable("the KV node ended the stream") : end;
}

void GrpcKvSession::HandleReply(ChannelCall& call, const std::shared_ptr<pb::ChannelReply>& reply) {
  if (reply->has_checkpointed()) {
    HandleCheckpointed(*reply);
    return;
  }
  if (reply->has_stopping()) {
    MutexLock lock(mutex_);
    node_stops_ = true;
    LetGoLocked();
    return;
  }
  if (reply->has_failure() && reply->op_seq() != 0) {
    MutexLock lock(mutex_);
    // Those behind the first are refused because of it.
    if (state_ != State::kFailed) {
      FailLocked(State::kFailed, rpc::FailureStatus(reply->failure()));
    }
    return;
  }
  std::shared_ptr<const void> lease;
  if (rpc::HasArenaSpans(*reply)) lease = lease_returns_->Hold(RequestId(reply->request_id()));
  absl::StatusOr<ReadReply> answer =
      rpc::ReadReplyFromProto(reply, call.connection()->arena.get(), lease);
  lease.reset();  // from here on only who waits for the answer decides when the lease ends
  if (!reply->has_failure() && IsAwayUnderReply(answer.status())) {
    // The KV node went away between its reply and the mapping of its memory: the read is repeated.
    call.Cancel();
    return;
  }
  if (!answer.ok() && !reply->has_failure()) answer = CannotTake(answer.status());
  MutexLock lock(mutex_);
  reads_.Answer(RequestId(reply->request_id()), std::move(answer));
  changed_.NotifyAll();
}

void GrpcKvSession::HandleCheckpointed(const pb::ChannelReply& reply) {
  absl::StatusOr<Checkpointed> result = rpc::FromProto(reply.checkpointed());
  const OpSeq op_seq(reply.op_seq());
  MutexLock lock(mutex_);
  if (!result.ok()) {
    FailLocked(State::kFailed, CannotTake(result.status()));
    return;
  }
  acknowledged_ = std::max(acknowledged_, op_seq);
  replay_.DropCovered(op_seq);
  if (checkpoint_.op_seq == op_seq) checkpoint_.result = *result;
  LetGoLocked();
  changed_.NotifyAll();
}

void GrpcKvSession::LetGoLocked() {
  // Operations that no checkpoint is to cover are computed again, with the next one.
  const bool has_all = replay_.bytes() == 0 && !checkpoint_.in_progress();
  if (!node_stops_ || !has_all || state_ != State::kOpen || call_ == nullptr) return;
  state_ = State::kRecovering;
  call_->Cancel();
}

bool GrpcKvSession::MayRecover(const absl::Status& end) {
  MutexLock lock(mutex_);
  if (closing_) return false;
  if (discard_) return true;
  if (state_ == State::kFailed) return false;
  if (!IsLoss(end) && !end.ok()) {
    FailLocked(State::kFailed, EndStatus(end));
    return false;
  }
  state_ = State::kRecovering;
  return true;
}

void GrpcKvSession::Recover(const absl::Status& end) {
  SessionId session;
  OpSeq acknowledged;
  {
    MutexLock lock(mutex_);
    session = attachment_.session_id;
    acknowledged = acknowledged_;
  }
  LogInfo("kv_session_lost session={} reason=\"{}\"", session, Message(end));
  Backoff backoff(*link_);
  while (true) {
    bool again = false;
    absl::StatusOr<Attached> attached = attacher_->Attach(acknowledged, &again);
    if (attached.ok()) {
      Install(*std::move(attached));
      return;
    }
    MutexLock lock(mutex_);
    if (!again || backoff.expired()) {
      discard_ = false;
      FailLocked(State::kFailed,
                 again ? link_->DidNotComeBack(attached.status()) : attached.status());
      return;
    }
    const auto due = backoff.Next();
    while (!closing_ && changed_.WaitUntil(mutex_, due)) {
    }
    if (closing_) return;
  }
}

void GrpcKvSession::Install(Attached attached) {
  MutexLock lock(mutex_);
  if (closing_) return;
  attachment_ = std::move(attached.attachment);
  call_ = std::move(attached.call);
  ++reconnect_count_;
  const OpSeq covered = attachment_.op_seq;
  acknowledged_ = covered;
  LogInfo("kv_session_resumed session={} epoch={} token_count={} op_seq={} last_op_seq={}",
          attachment_.session_id, attachment_.epoch, attachment_.token_count, covered,
          replay_.last());
  if (discard_) {
    discard_ = false;
    replay_.Reset(covered);
    checkpoint_ = {};
    state_ = State::kOpen;
    changed_.NotifyAll();
    return;
  }
  if (checkpoint_.in_progress() && covered >= checkpoint_.op_seq) {
    // Durable before the loss; only its reply was lost.
    checkpoint_.result = Checkpointed{
        checkpoint_.token_count, checkpoint_.seal ? attachment_.parent_segment_id : SegmentId()};
  }
  replay_.DropCovered(covered);
  if (!replay_.CanReplayBehind(covered)) {
    FailLocked(State::kLost,
               Aborted("the KV node lost what session {} has behind token {}, and nothing of it "
                       "is kept",
                       attachment_.session_id, attachment_.token_count));
    return;
  }
  resend_thread_ =
      StartThread("kv-resend", [this, call = call_, covered] { Resend(call, covered); });
}

void GrpcKvSession::FailLocked(State state, const absl::Status& status) {
  state_ = state;
  status_ = status;
  reads_.FailAll(status);
  replay_.Forget();
  changed_.NotifyAll();
}

void GrpcKvSession::Resend(const std::shared_ptr<ChannelCall>& call, OpSeq covered) {
  OpSeq done = covered;
  RequestId last_read;
  while (true) {
    pb::ChannelRequest message;
    {
      MutexLock lock(mutex_);
      if (call_ != call || state_ != State::kRecovering || closing_) return;
      auto read = reads_.NextAbove(last_read);
      std::optional<ReplayBuffer::Kept> kept = replay_.NextBehind(done);
      if (read && (read->second.after <= done || !kept)) {
        // A read goes where it was asked, so that it finds what operations behind it replace.
        last_read = read->first;
        rpc::SetOperation(read->second.operation, &message);
        message.set_request_id(last_read.value());
        message.set_after_op_seq(std::min(read->second.after, done).value());
      } else if (kept) {
        done = kept->op_seq;
        message.set_op_seq(done.value());
        rpc::SetOperation(std::move(kept->operation), &message);
      } else {
        state_ = State::kOpen;
        LetGoLocked();  // it may be about to stop already
        changed_.NotifyAll();
        return;
      }
    }
    if (!call->Write(message)) return;  // kv-replies sees the end and recovers again
  }
}

}  // namespace cairn::compute
