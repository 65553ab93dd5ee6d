#include "tests/sim/sim_stream.h"

#include <utility>

#include "common/rpc/fetch_frame.h"
#include "common/rpc/kv_codec.h"
#include "kv-node/service/channel_stream.h"

namespace cairn::sim {

SimStream::SimStream(SimNode& node, SimWire& wire, Client client)
    : node_(node),
      wire_(wire),
      client_(std::move(client)),
      up_(wire.NewLane([this] { return MayTakeMessage(); })),
      down_(wire.NewLane()),
      uses_arena_(client_.uses_arena) {}

std::shared_ptr<SimStream> SimStream::Open(SimNode& node, SimWire& wire, SessionId session,
                                           Epoch epoch, Client client) {
  auto stream = std::make_shared<SimStream>(node, wire, std::move(client));
  node.Add(stream);
  wire.Send(stream->up_, [stream, session, epoch] { stream->Attach(session, epoch); });
  return stream;
}

bool SimStream::MayTakeMessage() const {
  return !attaching_ && submitted_count_ < kv::kChannelQueueMax &&
         std::ssize(unanswered_) < kFetchesInFlightMax;
}

void SimStream::Attach(SessionId session, Epoch epoch) {
  attaching_ = true;
  node_.core().Attach(
      kDefaultApp, session, epoch, shared_from_this(),
      [self = shared_from_this()](absl::StatusOr<std::shared_ptr<kv::Channel>> channel) {
        self->attaching_ = false;
        if (self->has_ended_) return;
        if (!channel.ok()) return self->EndNode(channel.status());
        self->channel_ = *std::move(channel);
        pb::ChannelReply reply;
        reply.mutable_hello();
        self->Reply(std::move(reply));
      });
}

void SimStream::Write(pb::ChannelRequest message) {
  wire_.Note(message.SerializeAsString());
  auto shared = std::make_shared<pb::ChannelRequest>(std::move(message));
  wire_.Send(up_, [self = shared_from_this(), shared] { self->Handle(*shared); });
}

void SimStream::Cancel() {
  client_ = {};
  wire_.Close(down_);
  wire_.Send(up_, [self = shared_from_this()] { self->EndNode(Cancelled("the client is gone")); });
}

void SimStream::Break(const Random& random) {
  if (has_ended_) return;
  wire_.Cut(down_, random);
  SendEnd(Unavailable("the connection broke"));
  down_is_broken_ = true;
  wire_.Cut(up_, random);
  wire_.Send(up_, [self = shared_from_this()] { self->EndNode(Cancelled("the client is gone")); });
}

void SimStream::TellStopping() {
  if (channel_ == nullptr) return;
  pb::ChannelReply reply;
  reply.mutable_stopping();
  Reply(std::move(reply));
}

void SimStream::OnNodeEnd(const Random& random) {
  channel_.reset();
  leases_.clear();
  has_ended_ = true;
  wire_.Close(up_);
  if (down_is_broken_) return;
  wire_.Cut(down_, random);
  SendEnd(Unavailable("the node went away"));
}

void SimStream::Handle(pb::ChannelRequest& message) {
  if (has_ended_) return;
  for (const std::int64_t fetch : message.released_request_ids()) leases_.erase(RequestId(fetch));
  absl::Status status;
  switch (rpc::KindOf(message)) {
    case rpc::OperationKind::kChanging:
      status = HandleChange(message);
      break;
    case rpc::OperationKind::kRead:
      status = HandleRead(message);
      break;
    case rpc::OperationKind::kRelease:
      break;  // the ids come with every message
    default:
      status = InvalidArgument("a message that no client sends here");
  }
  if (!status.ok()) EndNode(status);
}

absl::Status SimStream::HandleChange(pb::ChannelRequest& message) {
  const OpSeq op_seq(message.op_seq());
  CAIRN_ASSIGN_OR_RETURN(ChangingOperation operation, rpc::TakeChangingOperation(&message));
  if (!channel_->Submit(op_seq, std::move(operation))) return Unavailable("no room");
  ++submitted_count_;
  return absl::OkStatus();
}

absl::Status SimStream::HandleRead(const pb::ChannelRequest& message) {
  const RequestId request_id(message.request_id());
  CAIRN_ASSIGN_OR_RETURN(ReadOperation operation, rpc::ReadOperationFromProto(message));
  if (!channel_->Submit(request_id, OpSeq(message.after_op_seq()), std::move(operation))) {
    return Unavailable("no room");
  }
  unanswered_.insert(request_id);
  ++submitted_count_;
  return absl::OkStatus();
}

void SimStream::OnCheckpointed(OpSeq op_seq, const Checkpointed& checkpointed) {
  pb::ChannelReply reply;
  reply.set_op_seq(op_seq.value());
  rpc::ToProto(checkpointed, reply.mutable_checkpointed());
  Reply(std::move(reply));
}

void SimStream::OnFailure(OpSeq op_seq, const absl::Status& status) {
  if (op_seq == OpSeq()) return EndNode(status);
  pb::ChannelReply reply;
  reply.set_op_seq(op_seq.value());
  rpc::SetFailure(status, &reply);
  Reply(std::move(reply));
}

void SimStream::OnReply(RequestId request_id, absl::StatusOr<ReadReply> answer) {
  unanswered_.erase(request_id);
  if (answer.ok() && std::holds_alternative<FetchReply>(*answer)) {
    return ReplyToFetch(request_id, std::get<FetchReply>(*answer));
  }
  pb::ChannelReply reply;
  reply.set_request_id(request_id.value());
  if (answer.ok()) {
    rpc::SetReply(*std::move(answer), &reply);
  } else {
    rpc::SetFailure(answer.status(), &reply);
  }
  Reply(std::move(reply));
}

// As ChannelStream does.
void SimStream::ReplyToFetch(RequestId request_id, const FetchReply& reply) {
  if (has_ended_) return;
  const bool uses_arena = uses_arena_ && HoldLeases(request_id, reply);
  const grpc::ByteBuffer frame = rpc::FrameFetchReply("", request_id, reply, uses_arena);
  std::vector<grpc::Slice> slices;
  CAIRN_CHECK(frame.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  pb::ChannelReply message;
  CAIRN_CHECK(message.ParseFromString(bytes));
  Reply(std::move(message));
}

// False: there are too many, and bytes go through the socket.
bool SimStream::HoldLeases(RequestId request_id, const FetchReply& reply) {
  if (leases_.contains(request_id) || std::ssize(leases_) >= kv::kLeasedFetchesMax) return false;
  std::vector<std::shared_ptr<const void>> owners;
  for (const FetchedCluster& cluster : reply.clusters) {
    for (const Span& span : cluster.spans) {
      if (span.arena.granule_id != 0) owners.push_back(span.owner);
    }
  }
  if (!owners.empty()) leases_.emplace(request_id, std::move(owners));
  return true;
}

void SimStream::Reply(pb::ChannelReply reply) {
  if (has_ended_ || down_is_broken_) return;
  wire_.Note(reply.SerializeAsString());
  auto shared = std::make_shared<pb::ChannelReply>(std::move(reply));
  wire_.Send(down_, [self = shared_from_this(), shared] {
    const auto on_reply = self->client_.on_reply;  // it may end the stream
    if (on_reply) on_reply(shared);
  });
}

void SimStream::EndNode(const absl::Status& status) {
  if (has_ended_) return;
  const std::shared_ptr<SimStream> self = shared_from_this();
  has_ended_ = true;
  channel_.reset();
  leases_.clear();
  wire_.Close(up_);
  if (!down_is_broken_) SendEnd(status);
  node_.Remove(self);
}

void SimStream::SendEnd(const absl::Status& status) {
  wire_.Send(down_, [self = shared_from_this(), status] {
    self->wire_.Close(self->down_);
    const Client client = std::exchange(self->client_, {});
    if (client.on_end) client.on_end(status);
  });
}

}  // namespace cairn::sim
