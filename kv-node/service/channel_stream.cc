#include "kv-node/service/channel_stream.h"

#include <utility>

#include <google/protobuf/arena.h>

#include "cairn/kv/v1/kv.grpc.pb.h"
#include "common/base/check.h"
#include "common/rpc/fetch_frame.h"
#include "common/rpc/kv_codec.h"
#include "common/rpc/status_mapping.h"

namespace cairn::kv {

bool StreamSet::Add(const std::shared_ptr<ChannelStream>& stream) {
  MutexLock lock(mutex_);
  if (stopping_) return false;
  streams_.insert(stream);
  return true;
}

void StreamSet::Remove(ChannelStream* stream) {
  MutexLock lock(mutex_);
  streams_.erase(stream->shared_from_this());
  removed_.NotifyAll();
}

StreamSet::Drained StreamSet::Drain(std::chrono::steady_clock::time_point deadline) {
  std::set<std::shared_ptr<ChannelStream>> told;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    told = streams_;
  }
  std::erase_if(told, [](const auto& stream) { return !stream->TellStopping(); });
  Drained drained{std::ssize(told), 0};
  MutexLock lock(mutex_);
  while (true) {
    for (auto next = told.begin(); next != told.end();) {
      next = streams_.contains(*next) ? std::next(next) : told.erase(next);
    }
    drained.left_count = std::ssize(told);
    if (told.empty() || !removed_.WaitUntil(mutex_, deadline)) return drained;
  }
}

void StreamSet::Stop() {
  std::set<std::shared_ptr<ChannelStream>> streams;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    streams = streams_;
  }
  for (const std::shared_ptr<ChannelStream>& stream : streams) {
    stream->End(Unavailable("the daemon is stopping: connect again when it is back"));
  }
}

bool StreamSet::stopping() const {
  MutexLock lock(mutex_);
  return stopping_;
}

ChannelStream::ChannelStream(Engine* engine, StreamSet* streams, CallGate* gate,
                             std::string boot_token, AppId app)
    : engine_(engine),
      streams_(streams),
      gate_(gate),
      boot_token_(std::move(boot_token)),
      app_(app) {
  gate_->Enter();
}

ChannelStream* ChannelStream::Start(Engine* engine, StreamSet* streams, CallGate* gate,
                                    std::string boot_token, const absl::StatusOr<AppId>& app) {
  std::shared_ptr<ChannelStream> stream(
      new ChannelStream(engine, streams, gate, std::move(boot_token), app.value_or(AppId())));
  stream->self_ = stream;
  absl::Status status = app.status();
  if (!streams->Add(stream)) status = Unavailable("the daemon is stopping");
  if (!status.ok()) {
    stream->End(status);
    return stream.get();
  }
  MutexLock lock(stream->mutex_);
  stream->ReadNextLocked();
  return stream.get();
}

void ChannelStream::End(const absl::Status& status) {
  std::shared_ptr<Channel> dropped;
  MutexLock lock(mutex_);
  dropped = EndLocked(status);
}

bool ChannelStream::TellStopping() {
  MutexLock lock(mutex_);
  if (phase_ != Phase::kOpen || !hears_stopping_) return false;
  ReplyMessage reply = NewReply();
  reply.mutable_stopping();
  WriteLocked(reply, RequestId());
  return true;
}

void ChannelStream::OnReadDone(bool ok) {
  // A fetch names hundreds of clusters: they are made, and go, together.
  google::protobuf::Arena arena;
  auto* message = google::protobuf::Arena::CreateMessage<Message>(&arena);
  const absl::Status decoded = ok ? Decode(message) : absl::OkStatus();
  std::shared_ptr<Channel> dropped;
  {
    MutexLock lock(mutex_);
    // From here on the next message may arrive, on another thread: this one is handled under the
    // same lock, so that none overtakes it.
    reading_ = false;
    if (phase_ == Phase::kEnding) return;
    if (ok && decoded.ok() && phase_ == Phase::kOpen) {
      dropped = HandleLocked(message);
      return;
    }
    if (!ok && phase_ == Phase::kOpen) {
      half_closed_ = true;
      dropped = EndIfDrainedLocked();
      return;
    }
    if (!ok || !decoded.ok()) {
      dropped = EndLocked(decoded);
      return;
    }
    if (rpc::KindOf(*message) != rpc::OperationKind::kHello) {
      dropped = EndLocked(FailedPrecondition("the first message of a Channel must be a Hello"));
      return;
    }
    uses_arena_ = message->hello().uses_arena();
    hears_stopping_ = message->hello().hears_stopping();
    phase_ = Phase::kAttaching;  // reads nothing until it is attached
  }
  HandleHello(*message);
}

absl::Status ChannelStream::Decode(Message* message) {
  const auto bytes = static_cast<std::int64_t>(incoming_.Length());
  if (bytes > kMessageBytesMax) {
    return ResourceExhausted("the message has {} bytes, more than message_bytes_max {}: split it",
                             bytes, kMessageBytesMax);
  }
  const grpc::Status status = grpc::SerializationTraits<Message>::Deserialize(&incoming_, message);
  if (status.ok()) return absl::OkStatus();
  return InvalidArgument("the message of {} bytes is not a ChannelRequest", bytes);
}

void ChannelStream::HandleHello(const Message& message) {
  absl::Status status = rpc::CheckId("hello.session_id", message.hello().session_id());
  if (status.ok()) status = rpc::CheckId("hello.epoch", message.hello().epoch());
  if (!status.ok()) {
    End(status);
    return;
  }
  engine_->Attach(app_, SessionId(message.hello().session_id()), Epoch(message.hello().epoch()),
                  shared_from_this(),
                  [self = shared_from_this()](absl::StatusOr<std::shared_ptr<Channel>> channel) {
                    self->OnAttached(std::move(channel));
                  });
}

void ChannelStream::OnAttached(absl::StatusOr<std::shared_ptr<Channel>> channel) {
  if (!channel.ok()) {
    End(channel.status());
    return;
  }
  std::shared_ptr<Channel> dropped = *std::move(channel);
  MutexLock lock(mutex_);
  if (phase_ != Phase::kAttaching) return;
  channel_ = std::move(dropped);
  phase_ = Phase::kOpen;
  ReplyMessage reply = NewReply();
  reply.mutable_hello();
  WriteLocked(reply, RequestId());
  ReadNextLocked();
}

std::shared_ptr<Channel> ChannelStream::HandleLocked(Message* message) {
  absl::Status status;
  for (const std::int64_t fetch : message->released_request_ids()) leases_.erase(RequestId(fetch));
  switch (rpc::KindOf(*message)) {
    case rpc::OperationKind::kChanging:
      status = HandleChange(message);
      break;
    case rpc::OperationKind::kRead:
      status = HandleRead(*message);
      break;
    case rpc::OperationKind::kRelease:
      leases_.erase(RequestId(message->release().fetch_request_id()));
      break;
    case rpc::OperationKind::kHello:
      status = FailedPrecondition("only the first message of a Channel may be a Hello");
      break;
    case rpc::OperationKind::kNone:
      status = InvalidArgument("a message without an operation that this daemon knows");
      break;
  }
  if (!status.ok()) return EndLocked(status);
  ReadNextLocked();
  return nullptr;
}

absl::Status ChannelStream::HandleChange(Message* message) {
  const OpSeq op_seq(message->op_seq());
  CAIRN_RETURN_IF_ERROR(rpc::CheckId("op_seq", op_seq.value()));
  if (refused_from_ != OpSeq() && op_seq > refused_from_) {
    FailChangeLocked(op_seq, FailedPrecondition("operation {} waits for operation {}, which failed",
                                                op_seq, refused_from_));
    return absl::OkStatus();
  }
  absl::StatusOr<ChangingOperation> operation = rpc::TakeChangingOperation(message);
  if (!operation.ok()) {
    refused_from_ = op_seq;
    FailChangeLocked(op_seq, Annotate(operation.status(), fmt::format("operation {}", op_seq)));
    return absl::OkStatus();
  }
  refused_from_ = OpSeq();
  if (std::holds_alternative<Checkpoint>(*operation)) checkpoints_.insert(op_seq);
  if (!channel_->Submit(op_seq, *std::move(operation))) {
    return Unavailable("the daemon has no room for operation {}: try again", op_seq);
  }
  ++submitted_count_;
  return absl::OkStatus();
}

absl::Status ChannelStream::HandleRead(const Message& message) {
  const RequestId request_id(message.request_id());
  CAIRN_RETURN_IF_ERROR(rpc::CheckId("request_id", request_id.value()));
  CAIRN_RETURN_IF_ERROR(
      rpc::CheckBetween("after_op_seq", message.after_op_seq(), 0, INT64_MAX - 1));
  if (unanswered_.contains(request_id)) {
    return InvalidArgument("request_id {} is already in use by an unanswered read", request_id);
  }
  absl::StatusOr<ReadOperation> operation = rpc::ReadOperationFromProto(message);
  if (!operation.ok()) {
    FailReadLocked(request_id, operation.status());
    return absl::OkStatus();
  }
  if (!channel_->Submit(request_id, OpSeq(message.after_op_seq()), *std::move(operation))) {
    return Unavailable("the daemon has no room for read {}: try again", request_id);
  }
  unanswered_.insert(request_id);
  ++submitted_count_;
  return absl::OkStatus();
}

void ChannelStream::OnWriteDone(bool ok) {
  std::shared_ptr<Channel> dropped;
  Reply written;  // its bytes are given back without the mutex
  MutexLock lock(mutex_);
  writing_ = false;
  written = std::move(replies_.front());
  replies_.pop_front();
  unanswered_.erase(written.answers);
  if (phase_ == Phase::kEnding) {
    if (!finished_) {
      finished_ = true;
      Finish(rpc::ToGrpcStatus(end_status_));
    }
    return;
  }
  if (!ok) {
    dropped = EndLocked(Cancelled("the client is gone"));
    return;
  }
  if (!replies_.empty()) {
    writing_ = true;
    StartWrite(&replies_.front().message);
  }
  ReadNextLocked();
  dropped = EndIfDrainedLocked();
}

void ChannelStream::OnCancel() { End(Cancelled("the client cancelled the stream or is gone")); }

void ChannelStream::OnDone() {
  streams_->Remove(this);
  gate_->Leave();
  // Dropped last: the engine may still hold the observer.
  std::shared_ptr<ChannelStream> self = std::move(self_);
}

void ChannelStream::OnCheckpointed(OpSeq op_seq, const Checkpointed& checkpointed) {
  ReplyMessage reply = NewReply();
  reply.set_op_seq(op_seq.value());
  rpc::ToProto(checkpointed, reply.mutable_checkpointed());
  MutexLock lock(mutex_);
  EndCheckpointLocked(op_seq);
  WriteLocked(reply, RequestId());
}

void ChannelStream::OnPassedOver(OpSeq op_seq) {
  std::shared_ptr<Channel> dropped;
  MutexLock lock(mutex_);
  EndCheckpointLocked(op_seq);
  dropped = EndIfDrainedLocked();
}

void ChannelStream::OnFailure(OpSeq op_seq, const absl::Status& status) {
  if (op_seq == OpSeq()) {
    End(status);
    return;
  }
  MutexLock lock(mutex_);
  EndCheckpointLocked(op_seq);
  FailChangeLocked(op_seq, status);
}

void ChannelStream::OnReply(RequestId request_id, absl::StatusOr<ReadReply> reply) {
  if (reply.ok() && std::holds_alternative<FetchReply>(*reply)) {
    MutexLock lock(mutex_);
    QueueFetchReplyLocked(request_id, std::get<FetchReply>(*reply));
    return;
  }
  ReplyMessage message = NewReply();
  message.set_request_id(request_id.value());
  if (reply.ok()) {
    rpc::SetReply(*std::move(reply), &message);
  } else {
    rpc::SetFailure(reply.status(), &message);
  }
  MutexLock lock(mutex_);
  WriteLocked(message, request_id);
}

void ChannelStream::QueueFetchReplyLocked(RequestId request_id, const FetchReply& reply) {
  if (phase_ == Phase::kEnding) return;
  // A request id that still has leases of an older fetch would add to them without end.
  const bool uses_arena = uses_arena_ && !leases_.contains(request_id) &&
                          static_cast<std::int64_t>(leases_.size()) < kLeasedFetchesMax;
  if (uses_arena) HoldLeasesLocked(request_id, reply);
  QueueLocked({rpc::FrameFetchReply(boot_token_, request_id, reply, uses_arena), request_id});
}

void ChannelStream::HoldLeasesLocked(RequestId request_id, const FetchReply& reply) {
  std::vector<std::shared_ptr<const void>> owners;
  for (const FetchedCluster& cluster : reply.clusters) {
    for (const Span& span : cluster.spans) {
      // Mostly one for the whole fetch, whatever it points to.
      const bool known = !owners.empty() && !owners.back().owner_before(span.owner) &&
                         !span.owner.owner_before(owners.back());
      if (span.arena.granule_id != 0 && !known) owners.push_back(span.owner);
    }
  }
  if (!owners.empty()) leases_.emplace(request_id, std::move(owners));
}

void ChannelStream::OnRoom() {
  std::shared_ptr<Channel> dropped;
  MutexLock lock(mutex_);
  --submitted_count_;
  ReadNextLocked();
  dropped = EndIfDrainedLocked();
}

void ChannelStream::ReadNextLocked() {
  const bool wants = phase_ == Phase::kAwaitHello ||
                     (phase_ == Phase::kOpen && submitted_count_ < kChannelQueueMax &&
                      unanswered_.size() < static_cast<std::size_t>(kFetchesInFlightMax) &&
                      static_cast<std::int64_t>(replies_.size()) < kReplyQueueMax);
  if (!wants || reading_ || half_closed_) return;
  reading_ = true;
  StartRead(&incoming_);
}

void ChannelStream::WriteLocked(const ReplyMessage& message, RequestId answers) {
  Reply reply;
  reply.answers = answers;
  bool own_buffer = false;
  const grpc::Status status =
      grpc::SerializationTraits<ReplyMessage>::Serialize(message, &reply.message, &own_buffer);
  CAIRN_CHECK(status.ok());
  QueueLocked(std::move(reply));
}

void ChannelStream::QueueLocked(Reply reply) {
  if (phase_ == Phase::kEnding) return;
  replies_.push_back(std::move(reply));
  if (writing_) return;
  writing_ = true;
  StartWrite(&replies_.front().message);
}

void ChannelStream::EndCheckpointLocked(OpSeq op_seq) {
  const auto found = checkpoints_.find(op_seq);
  if (found != checkpoints_.end()) checkpoints_.erase(found);
}

void ChannelStream::FailChangeLocked(OpSeq op_seq, const absl::Status& status) {
  ReplyMessage reply = NewReply();
  reply.set_op_seq(op_seq.value());
  rpc::SetFailure(status, &reply);
  WriteLocked(reply, RequestId());
}

void ChannelStream::FailReadLocked(RequestId request_id, const absl::Status& status) {
  ReplyMessage reply = NewReply();
  reply.set_request_id(request_id.value());
  rpc::SetFailure(status, &reply);
  WriteLocked(reply, RequestId());
}

std::shared_ptr<Channel> ChannelStream::EndLocked(const absl::Status& status) {
  if (phase_ == Phase::kEnding) return nullptr;
  phase_ = Phase::kEnding;
  end_status_ = status;
  leases_.clear();
  // The reply that is being written stays until OnWriteDone; the others will not be.
  replies_.resize(writing_ ? 1 : 0);
  if (!writing_) {
    finished_ = true;
    Finish(rpc::ToGrpcStatus(status));
  }
  return std::move(channel_);
}

std::shared_ptr<Channel> ChannelStream::EndIfDrainedLocked() {
  const bool drained = half_closed_ && submitted_count_ == 0 && checkpoints_.empty() &&
                       unanswered_.empty() && replies_.empty();
  return drained ? EndLocked(absl::OkStatus()) : nullptr;
}

ChannelStream::ReplyMessage ChannelStream::NewReply() const {
  ReplyMessage reply;
  reply.set_boot_token(boot_token_);
  return reply;
}

}  // namespace cairn::kv
