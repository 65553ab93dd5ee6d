#include "compute-node/kv_client/session_attacher.h"

#include <utility>
#include <variant>

#include <absl/cleanup/cleanup.h>

#include "common/rpc/kv_codec.h"
#include "compute-node/kv_client/loss.h"

namespace cairn::compute {

void SessionAttacher::SetWaiting(grpc::ClientContext* context) {
  const MutexLock lock(mutex_);
  waiting_ = context;
  if (context != nullptr && cancelled_) context->TryCancel();
}

void SessionAttacher::Cancel() {
  const MutexLock lock(mutex_);
  cancelled_ = true;
  if (waiting_ != nullptr) waiting_->TryCancel();
}

template <typename Request, typename Response>
absl::StatusOr<Attachment> SessionAttacher::Ask(const NodeConnection& connection,
                                                std::chrono::milliseconds time_max,
                                                StubMethod<Request, Response> method,
                                                const Request& request) {
  grpc::ClientContext context;
  SetWaiting(&context);
  const absl::Cleanup ended = [this] { SetWaiting(nullptr); };
  time_max = link_->CallTime(time_max);
  connection.Prepare(&context, time_max);
  Response response;
  CAIRN_RETURN_IF_ERROR(
      StatusOfCall((connection.stub.get()->*method)(&context, request, &response), time_max));
  return rpc::FromProto(owner_.session_id(), std::move(*response.mutable_attachment()));
}

absl::StatusOr<SessionAttacher::Attached> SessionAttacher::Attach(OpSeq acknowledged, bool* again) {
  absl::StatusOr<std::shared_ptr<const NodeConnection>> connection = link_->Get();
  *again = IsAway(connection.status());
  if (!connection.ok()) return connection.status();
  CAIRN_RETURN_IF_ERROR(
      owner_.MeetStore(link_->socket_path(), (*connection)->capabilities.store_id()));

  const auto attempt = owner_.NextAttempt(acknowledged);
  const auto* open = std::get_if<OpenRequest>(&attempt);
  absl::StatusOr<Attachment> attachment =
      open != nullptr
          ? Ask(**connection, kCallTimeMax, &pb::KvService::Stub::OpenSession, rpc::ToProto(*open))
          : Ask(**connection, kResumeTimeMax, &pb::KvService::Stub::ResumeSession,
                rpc::ToProto(std::get<ResumeRequest>(attempt)));
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
