#include "compute-node/kv_client/session_attacher.h"

#include <utility>
#include <variant>

#include "common/rpc/kv_codec.h"
#include "common/rpc/status_mapping.h"
#include "compute-node/kv_client/loss.h"

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

absl::StatusOr<Attachment> SessionAttacher::Ask(const NodeConnection& connection,
                                                const OpenRequest& request) {
  grpc::ClientContext context;
  const Cancellable cancellable(*this, context);
  const std::chrono::milliseconds time_max = link_->CallTime(kCallTimeMax);
  connection.Prepare(&context, time_max);
  pb::OpenSessionResponse response;
  CAIRN_RETURN_IF_ERROR(StatusOfCall(
      connection.stub->OpenSession(&context, rpc::ToProto(request), &response), time_max));
  return rpc::FromProto(owner_.session_id(), std::move(*response.mutable_attachment()));
}

absl::StatusOr<Attachment> SessionAttacher::Ask(const NodeConnection& connection,
                                                const ResumeRequest& request) {
  grpc::ClientContext context;
  const Cancellable cancellable(*this, context);
  const std::chrono::milliseconds time_max = link_->CallTime(kResumeTimeMax);
  connection.Prepare(&context, time_max);
  pb::ResumeSessionResponse response;
  CAIRN_RETURN_IF_ERROR(StatusOfCall(
      connection.stub->ResumeSession(&context, rpc::ToProto(request), &response), time_max));
  return rpc::FromProto(owner_.session_id(), std::move(*response.mutable_attachment()));
}

absl::StatusOr<SessionAttacher::Attached> SessionAttacher::Attach(OpSeq acknowledged, bool* again) {
  absl::StatusOr<std::shared_ptr<const NodeConnection>> connection = link_->Get();
  *again = IsAway(connection.status());
  if (!connection.ok()) return connection.status();
  CAIRN_RETURN_IF_ERROR(
      owner_.MeetStore(link_->socket_path(), (*connection)->capabilities.store_id()));

  const auto attempt = owner_.NextAttempt(acknowledged);
  absl::StatusOr<Attachment> attachment =
      std::visit([&](const auto& request) { return Ask(**connection, request); }, attempt);
  absl::Status status = owner_.Explain(attachment.status());
  if (attachment.ok()) {
    owner_.OnAttached(*attachment);
    absl::StatusOr<std::shared_ptr<ChannelCall>> call =
        ChannelCall::Open(*connection, attachment->session_id, attachment->epoch);
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
