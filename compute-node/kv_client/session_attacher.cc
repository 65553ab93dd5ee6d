#include "compute-node/kv_client/session_attacher.h"

#include <utility>

#include "common/rpc/kv_codec.h"
#include "common/rpc/status_mapping.h"

namespace cairn::compute {

class SessionAttacher::Cancellable {
 public:
  Cancellable(SessionAttacher& attacher, grpc::ClientContext& context) : attacher_(attacher) {
    const MutexLock lock(attacher_.mutex_);
    attacher_.waiting_ = &context;
    if (attacher_.cancelled_) context.TryCancel();
  }
  ~Cancellable() {
    const MutexLock lock(attacher_.mutex_);
    attacher_.waiting_ = nullptr;
  }
  Cancellable(const Cancellable&) = delete;
  Cancellable& operator=(const Cancellable&) = delete;

 private:
  SessionAttacher& attacher_;
};

void SessionAttacher::Cancel() {
  const MutexLock lock(mutex_);
  cancelled_ = true;
  if (waiting_ != nullptr) waiting_->TryCancel();
}

absl::StatusOr<Attachment> SessionAttacher::NewEpoch(const NodeConnection& connection,
                                                     OpSeq acknowledged) {
  const AttachAttempt attempt{owner_, ++attempt_count_};
  grpc::ClientContext context;
  const Cancellable cancellable(*this, context);
  if (epoch_ == Epoch()) {
    const std::chrono::milliseconds time_max = link_->CallTime(kCallTimeMax);
    connection.Prepare(&context, time_max);
    pb::OpenSessionResponse response;
    CAIRN_RETURN_IF_ERROR(
        StatusOfCall(connection.stub->OpenSession(
                         &context, rpc::ToProto(OpenRequest{session_, attempt}), &response),
                     time_max));
    return rpc::FromProto(session_.id, std::move(*response.mutable_attachment()));
  }
  const std::chrono::milliseconds time_max = link_->CallTime(kResumeTimeMax);
  connection.Prepare(&context, time_max);
  pb::ResumeSessionResponse response;
  const absl::Status status = StatusOfCall(
      connection.stub->ResumeSession(
          &context, rpc::ToProto(ResumeRequest{session_.id, epoch_, attempt, acknowledged}),
          &response),
      time_max);
  if (absl::IsFailedPrecondition(status)) {
    return Aborted("another owner opened the session: {}", Message(status));
  }
  CAIRN_RETURN_IF_ERROR(status);
  return rpc::FromProto(session_.id, std::move(*response.mutable_attachment()));
}

absl::StatusOr<SessionAttacher::Attached> SessionAttacher::Attach(OpSeq acknowledged, bool* again) {
  absl::StatusOr<std::shared_ptr<const NodeConnection>> connection = link_->Get();
  *again = IsAway(connection.status());
  if (!connection.ok()) return connection.status();
  // The connection is one process's: what it said of its store holds for all that is asked here.
  const absl::Status same_store = link_->CheckStore(**connection, store_id_, session_.id);
  if (!same_store.ok()) return same_store;
  store_id_ = (*connection)->capabilities.store_id();

  absl::StatusOr<Attachment> attachment = NewEpoch(**connection, acknowledged);
  absl::Status status = attachment.status();
  if (attachment.ok()) {
    epoch_ = attachment->epoch;
    session_.uid = attachment->uid;
    absl::StatusOr<std::shared_ptr<ChannelCall>> call =
        ChannelCall::Open(*connection, session_.id, epoch_);
    if (call.ok()) {
      *again = false;
      return Attached{*std::move(attachment), *std::move(call)};
    }
    status = call.status();
    // It did not wait for the channel for so long, or somebody else attached: a resume tells.
    if (absl::IsFailedPrecondition(status)) {
      *again = true;
      return status;
    }
  }
  *again = IsLoss(status);
  if (*again) link_->Drop(*connection);
  return status;
}

}  // namespace cairn::compute
