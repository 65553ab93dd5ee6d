#include "compute-node/kv_client/channel_call.h"

#include <utility>

#include <google/protobuf/arena.h>

#include "common/rpc/status_mapping.h"

namespace cairn::compute {

ChannelCall::ChannelCall(std::shared_ptr<const NodeConnection> connection)
    : connection_(std::move(connection)) {
  connection_->Prepare(&context_);
  stream_ = connection_->stub->Channel(&context_);
}

ChannelCall::~ChannelCall() {
  if (finished_) return;
  Cancel();
  Finish().IgnoreError();  // nobody asks any more
}

absl::StatusOr<std::shared_ptr<ChannelCall>> ChannelCall::Open(
    std::shared_ptr<const NodeConnection> connection, SessionId session, Epoch epoch) {
  std::shared_ptr<ChannelCall> call(new ChannelCall(std::move(connection)));
  pb::ChannelRequest hello;
  hello.mutable_hello()->set_session_id(session.value());
  hello.mutable_hello()->set_epoch(epoch.value());
  hello.mutable_hello()->set_uses_arena(call->connection_->arena != nullptr);
  hello.mutable_hello()->set_hears_stopping(call->connection_->checkpoints_at_stop);
  call->Write(hello);  // a failure shows in Read
  const std::shared_ptr<pb::ChannelReply> reply = call->Read();
  if (reply == nullptr) {
    absl::Status status = call->Finish();
    if (status.ok()) status = Unavailable("the KV node ended the stream at once");
    return status;
  }
  if (!reply->has_hello()) return Internal("the KV node answered Hello with another reply");
  return call;
}

bool ChannelCall::Write(const pb::ChannelRequest& message) {
  MutexLock lock(write_mutex_);
  return stream_->Write(message);
}

std::shared_ptr<pb::ChannelReply> ChannelCall::Read() {
  // A fetch reply is hundreds of small messages: they are made, and go, together.
  auto arena = std::make_shared<google::protobuf::Arena>();
  auto* reply = google::protobuf::Arena::CreateMessage<pb::ChannelReply>(arena.get());
  if (!stream_->Read(reply)) return nullptr;
  return {std::move(arena), reply};
}

absl::Status ChannelCall::Finish() {
  MutexLock lock(write_mutex_);
  finished_ = true;
  return rpc::FromGrpcStatus(stream_->Finish());
}

}  // namespace cairn::compute
