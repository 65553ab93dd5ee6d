#include "compute-node/kv_client/grpc_kv_session.h"

#include <google/protobuf/arena.h>

#include "common/base/check.h"
#include "common/base/thread.h"
#include "common/log/log.h"
#include "common/rpc/kv_codec.h"

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

// Of taking a reply: the handshake for its memory found nobody, or another daemon, or one that has
// ended the stream and given the memory back.
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
      protocol_(link_->options().replay_bytes_max, std::move(attached.attachment), fetch_clock_),
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
    request.set_session_id(protocol_.attachment().session_id.value());
    request.set_epoch(protocol_.attachment().epoch.value());
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
  visible_attachment_ = protocol_.attachment();
  return visible_attachment_;
}

absl::Status GrpcKvSession::AwaitChangeLocked() {
  changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + kInterruptCheckInterval);
  return interrupt_ ? interrupt_() : absl::OkStatus();
}

absl::Status GrpcKvSession::AwaitOpenLocked(Patience patience) {
  while (protocol_.state() == State::kRecovering) {
    const absl::Status status = AwaitChangeLocked();
    if (protocol_.state() == State::kRecovering && link_->stopped()) {
      return Unavailable("the KV node is away, and this process is stopping");
    }
    if (patience == Patience::kUntilInterrupted) CAIRN_RETURN_IF_ERROR(status);
  }
  return protocol_.state() == State::kOpen ? absl::OkStatus() : protocol_.status();
}

void GrpcKvSession::Write(const std::shared_ptr<ChannelCall>& call, pb::ChannelRequest& message) {
  for (const RequestId fetch : call->lease_returns().Take()) {
    message.add_released_request_ids(fetch.value());
  }
  if (call->Write(message)) return;
  // kv-replies sees the end too and recovers; until then nothing more is to be written.
  MutexLock lock(mutex_);
  if (call_ == call) protocol_.OnWriteFailed();
}

absl::Status GrpcKvSession::Send(ChangingOperation operation) {
  bool keeps = false;
  {
    MutexLock lock(mutex_);
    keeps = protocol_.keeps();
  }
  SessionProtocol::Outgoing outgoing = SessionProtocol::Describe(operation, keeps);
  pb::ChannelRequest message;
  rpc::SetOperation(std::move(operation), &message);
  CAIRN_RETURN_IF_ERROR(CheckMessageSize(message));

  std::shared_ptr<ChannelCall> call;
  {
    MutexLock lock(mutex_);
    // Not interrupted: the caller could not tell whether the operation counts.
    CAIRN_RETURN_IF_ERROR(AwaitOpenLocked(Patience::kUnlimited));
    CAIRN_ASSIGN_OR_RETURN(const OpSeq op_seq, protocol_.Number(std::move(outgoing)));
    message.set_op_seq(op_seq.value());
    call = call_;
  }
  Write(call, message);
  return absl::OkStatus();
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
      if (status.ok() && !protocol_.reads_full()) break;
      if (status.ok()) status = AwaitChangeLocked();
      if (!status.ok()) return Ready(status);
    }
    SessionProtocol::Asked asked = protocol_.Ask(std::move(operation));
    answer = std::move(asked.answer);
    message.set_request_id(asked.id.value());
    message.set_after_op_seq(asked.after.value());
    call = call_;
  }
  Write(call, message);
  return answer;
}

void GrpcKvSession::ReturnLeases() {
  const std::shared_ptr<ChannelCall> call = OpenCall();
  if (call == nullptr || call->lease_returns().empty()) return;
  pb::ChannelRequest message;
  message.mutable_release();  // the ids come with every message
  Write(call, message);
}

absl::StatusOr<Checkpointed> GrpcKvSession::WaitForCheckpoint() {
  MutexLock lock(mutex_);
  while (true) {
    if (auto outcome = protocol_.CheckpointOutcome()) return *std::move(outcome);
    CAIRN_RETURN_IF_ERROR(AwaitChangeLocked());
  }
}

absl::Status GrpcKvSession::Reattach() {
  MutexLock lock(mutex_);
  while (protocol_.state() == State::kRecovering) CAIRN_RETURN_IF_ERROR(AwaitChangeLocked());
  if (protocol_.state() == State::kFailed) {
    protocol_.Discard();
    if (call_ != nullptr) call_->Cancel();
    changed_.NotifyAll();
  } else if (protocol_.state() == State::kLost) {
    protocol_.GoOn(/*has_stream=*/call_ != nullptr);
  }
  return AwaitOpenLocked(Patience::kUntilInterrupted);
}

void GrpcKvSession::Run() {
  const ServingPriority realtime(link_->options().realtime_priority);
  while (true) {
    std::shared_ptr<ChannelCall> call;
    {
      MutexLock lock(mutex_);
      while (!closing_ && call_ == nullptr && protocol_.state() == State::kFailed) {
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
  call_.reset();
  protocol_.OnStreamEnd();
  return end.ok() ? Unavailable("the KV node ended the stream") : end;
}

void GrpcKvSession::HandleReply(ChannelCall& call, const std::shared_ptr<pb::ChannelReply>& reply) {
  const OpSeq op_seq(reply->op_seq());
  if (reply->has_checkpointed()) {
    absl::StatusOr<Checkpointed> result = rpc::FromProto(reply->checkpointed());
    if (!result.ok()) result = CannotTake(result.status());
    MutexLock lock(mutex_);
    NoteLocked(protocol_.OnCheckpointed(op_seq, result));
  } else if (reply->has_stopping()) {
    MutexLock lock(mutex_);
    NoteLocked(protocol_.OnStopping());
  } else if (reply->has_failure() && op_seq != OpSeq()) {
    MutexLock lock(mutex_);
    protocol_.OnFailure(op_seq, rpc::FailureStatus(reply->failure()));
    NoteLocked(/*ends_stream=*/false);
  } else {
    HandleRead(call, reply);
  }
}

void GrpcKvSession::HandleRead(ChannelCall& call, const std::shared_ptr<pb::ChannelReply>& reply) {
  const RequestId request_id(reply->request_id());
  std::shared_ptr<const void> lease;
  if (rpc::HasArenaSpans(*reply)) lease = call.lease_returns().Hold(request_id);
  absl::StatusOr<ReadReply> answer =
      rpc::ReadReplyFromProto(reply, call.connection()->arena.get(), lease);
  lease.reset();  // from here on only who waits for the answer decides when the lease ends
  if (!reply->has_failure() && IsAwayUnderReply(answer.status())) {
    // Between its reply and the mapping of its memory the KV node, or the stream, has ended: that
    // is recovered from, and the read repeated.
    call.Cancel();
    return;
  }
  if (!answer.ok() && !reply->has_failure()) answer = CannotTake(answer.status());
  MutexLock lock(mutex_);
  protocol_.OnAnswer(request_id, std::move(answer));
  NoteLocked(/*ends_stream=*/false);
}

void GrpcKvSession::NoteLocked(bool ends_stream) {
  if (ends_stream && call_ != nullptr) call_->Cancel();
  changed_.NotifyAll();
}

bool GrpcKvSession::MayRecover(const absl::Status& end) {
  MutexLock lock(mutex_);
  if (closing_) return false;
  const bool may = protocol_.MayRecover(end);
  changed_.NotifyAll();
  return may;
}

void GrpcKvSession::Recover(const absl::Status& end) {
  SessionId session;
  OpSeq acknowledged;
  {
    MutexLock lock(mutex_);
    session = protocol_.attachment().session_id;
    acknowledged = protocol_.acknowledged();
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
      protocol_.FailRecovery(again ? link_->DidNotComeBack(attached.status()) : attached.status());
      changed_.NotifyAll();
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
  call_ = std::move(attached.call);
  const Attachment& attachment = attached.attachment;
  const ResendCursor covered{attachment.op_seq, RequestId()};
  LogInfo("kv_session_resumed session={} epoch={} token_count={} op_seq={} last_op_seq={}",
          attachment.session_id, attachment.epoch, attachment.token_count, attachment.op_seq,
          protocol_.last_op_seq());
  if (protocol_.OnAttached(attachment)) {
    resend_thread_ =
        StartThread("kv-resend", [this, call = call_, covered] { Resend(call, covered); });
  }
  changed_.NotifyAll();
}

void GrpcKvSession::Resend(const std::shared_ptr<ChannelCall>& call, ResendCursor cursor) {
  while (true) {
    std::optional<pb::ChannelRequest> message;
    {
      MutexLock lock(mutex_);
      if (call_ != call || protocol_.state() != State::kRecovering || closing_) return;
      message = protocol_.NextToResend(cursor);
      if (!message) {
        NoteLocked(protocol_.OnResent());
        return;
      }
    }
    if (!call->Write(*message)) return;  // kv-replies sees the end and recovers again
  }
}

}  // namespace cairn::compute
