#include "compute-node/kv_client/in_process_kv_session.h"

#include <utility>
#include <variant>

#include "common/base/check.h"

namespace cairn::compute {

absl::StatusOr<std::unique_ptr<InProcessKvSession>> InProcessKvSession::Open(
    kv::Engine* engine, const SessionRef& session, bool durable) {
  CAIRN_ASSIGN_OR_RETURN(
      Attachment attachment,
      AskEngine<Attachment>(*engine, &kv::Engine::OpenSession, OpenRequest{session, {}}));
  std::unique_ptr<InProcessKvSession> out(
      new InProcessKvSession(engine, std::move(attachment), durable));
  CAIRN_RETURN_IF_ERROR(out->AttachChannel());
  return out;
}

absl::Status InProcessKvSession::AttachChannel() {
  observer_ = std::make_shared<Observer>(fetch_clock_);
  last_ = attachment_.op_seq;
  sent_bytes_ = 0;
  CAIRN_ASSIGN_OR_RETURN(channel_, AskEngine<std::shared_ptr<kv::Channel>>(
                                       *engine_, &kv::Engine::Attach, attachment_.session_id,
                                       attachment_.epoch, observer_));
  return absl::OkStatus();
}

InProcessKvSession::~InProcessKvSession() {
  if (channel_ == nullptr) return;
  // Waits until the session is detached, so that the caller may seal or delete it next.
  AskEngine<std::monostate>(*engine_, &kv::Engine::CloseSession, attachment_.session_id,
                            attachment_.epoch)
      .IgnoreError();  // it may be deleted or another's by now
}

absl::Status InProcessKvSession::Send(ChangingOperation operation) {
  const auto* checkpoint = std::get_if<Checkpoint>(&operation);
  if (mode_ == ReplayMode::kOperations) sent_bytes_ += OperationBytes(operation);
  MutexLock lock(observer_->mutex);
  CAIRN_RETURN_IF_ERROR(observer_->AwaitRoomLocked());
  last_ = OpSeq(last_.value() + 1);
  if (checkpoint != nullptr) {
    CAIRN_CHECK(!observer_->checkpoint.in_progress());
    observer_->checkpoint = {last_, checkpoint->token_count, checkpoint->seal, std::nullopt};
    observer_->checkpoint_bytes = sent_bytes_;
  }
  ++observer_->queued_count;
  if (!channel_->Submit(last_, std::move(operation))) {
    observer_->status = Unavailable("the engine has no room for operation {}", last_);
    return observer_->status;
  }
  return absl::OkStatus();
}

std::future<absl::StatusOr<ReadReply>> InProcessKvSession::StartRead(ReadOperation operation) {
  MutexLock lock(observer_->mutex);
  absl::Status status = observer_->AwaitRoomLocked();
  while (status.ok() && observer_->reads.full()) {
    observer_->changed.Wait(observer_->mutex);
    status = observer_->AwaitRoomLocked();
  }
  if (!status.ok()) {
    std::promise<absl::StatusOr<ReadReply>> promise;
    promise.set_value(status);
    return promise.get_future();
  }
  // Nothing is asked again here, so of the operation only its kind is kept.
  const Fetch* fetch = std::get_if<Fetch>(&operation);
  ReadOperation kind = GetPolicyState{};
  if (fetch != nullptr) kind.emplace<Fetch>().layer = fetch->layer;
  auto [id, answer] = observer_->reads.Add({std::move(kind), last_});
  ++observer_->queued_count;
  if (!channel_->Submit(id, last_, std::move(operation))) {
    observer_->reads.Answer(id, Unavailable("the engine has no room for a read"));
    --observer_->queued_count;
  }
  return std::move(answer);
}

std::int64_t InProcessKvSession::uncovered_bytes() const {
  if (!durable_) return 0;
  MutexLock lock(observer_->mutex);
  return sent_bytes_ - observer_->covered_bytes;
}

bool InProcessKvSession::checkpoint_in_progress() const {
  MutexLock lock(observer_->mutex);
  return observer_->checkpoint.in_progress();
}

absl::StatusOr<Checkpointed> InProcessKvSession::WaitForCheckpoint() {
  MutexLock lock(observer_->mutex);
  while (observer_->checkpoint.in_progress() && observer_->status.ok()) {
    observer_->changed.Wait(observer_->mutex);
  }
  if (observer_->checkpoint.result) return *observer_->checkpoint.result;
  CAIRN_RETURN_IF_ERROR(observer_->status);
  return Checkpointed{attachment_.token_count, SegmentId()};
}

absl::Status InProcessKvSession::Reattach() {
  const ResumeRequest request{attachment_.session_id, attachment_.epoch, {}, OpSeq()};
  CAIRN_ASSIGN_OR_RETURN(attachment_,
                         AskEngine<Attachment>(*engine_, &kv::Engine::ResumeSession, request));
  return AttachChannel();
}

absl::Status InProcessKvSession::Observer::AwaitRoomLocked() {
  while (status.ok() && queued_count >= kv::kChannelQueueMax) changed.Wait(mutex);
  return status;
}

void InProcessKvSession::Observer::OnCheckpointed(OpSeq op_seq, const Checkpointed& checkpointed) {
  MutexLock lock(mutex);
  if (checkpoint.op_seq == op_seq) {
    checkpoint.result = checkpointed;
    covered_bytes = checkpoint_bytes;
  }
  changed.NotifyAll();
}

void InProcessKvSession::Observer::OnFailure(OpSeq /*op_seq*/, const absl::Status& failure) {
  MutexLock lock(mutex);
  if (!status.ok()) return;  // those behind the first are refused because of it
  status = failure;
  reads.FailAll(status);
  changed.NotifyAll();
}

void InProcessKvSession::Observer::OnReply(RequestId request_id, absl::StatusOr<ReadReply> reply) {
  MutexLock lock(mutex);
  reads.Answer(request_id, std::move(reply));
  changed.NotifyAll();
}

void InProcessKvSession::Observer::OnRoom() {
  MutexLock lock(mutex);
  --queued_count;
  changed.NotifyAll();
}

}  // namespace cairn::compute
