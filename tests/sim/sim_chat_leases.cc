// What a chat reads in the node's shared memory, as GrpcKvSession does: when it gives a reply's
// memory back, and whether the reply shows the same until then.
#include <utility>

#include "common/rpc/kv_codec.h"
#include "tests/sim/sim_chat.h"

namespace cairn::sim {
namespace {

std::string BytesOf(const FetchReply& reply) {
  std::string bytes;
  for (const FetchedCluster& cluster : reply.clusters) {
    for (const Span& span : cluster.spans) {
      bytes.append(reinterpret_cast<const char*>(span.bytes.data()), span.bytes.size());
    }
  }
  return bytes;
}

bool WasIntact(const FetchReply& reply) {
  for (const FetchedCluster& cluster : reply.clusters) {
    for (const Span& span : cluster.spans) {
      if (!span.WasIntact()) return false;
    }
  }
  return true;
}

bool IsInArena(const FetchReply& reply) {
  for (const FetchedCluster& cluster : reply.clusters) {
    for (const Span& span : cluster.spans) {
      if (span.arena.granule != nullptr) return true;
    }
  }
  return false;
}

}  // namespace

std::shared_ptr<compute::ArenaMap> SimChat::NewArenaMap() {
  return std::make_shared<compute::ArenaMap>(
      [&node = context_.node, incarnation = context_.node.incarnation()] {
        return node.Handshake(incarnation);
      });
}

bool SimChat::TakeAnswer(RequestId request_id, const std::shared_ptr<pb::ChannelReply>& reply) {
  std::shared_ptr<const void> lease;
  if (rpc::HasArenaSpans(*reply)) lease = lease_returns_->Hold(request_id);
  absl::StatusOr<ReadReply> answer = rpc::ReadReplyFromProto(reply, arena_.get(), lease);
  const absl::Status& why = answer.status();
  if (!reply->has_failure() && (absl::IsUnavailable(why) || absl::IsNotFound(why))) {
    ++context_.counts[absl::IsNotFound(why) ? "stream ended under a reply"
                                            : "node went away under a reply"];
    return false;
  }
  protocol_->OnAnswer(request_id, std::move(answer));
  return true;
}

// Takes along what is given back.
void SimChat::Write(pb::ChannelRequest message) {
  for (const RequestId fetch : lease_returns_->Take()) {
    message.add_released_request_ids(fetch.value());
  }
  stream_->Write(std::move(message));
}

void SimChat::Hold(FetchReply reply) {
  if (!IsInArena(reply)) return;
  ++context_.counts["read in shared memory"];
  if (std::ssize(held_) >= held_max_) return;
  std::string bytes = BytesOf(reply);
  held_.push_back({std::move(reply), std::move(bytes), stream_});
}

// Memory of a stream that has ended may be used again: what was read there is void.
bool SimChat::IsVoid(const FetchReply& reply, const std::shared_ptr<SimStream>& stream) {
  if (WasIntact(reply)) return false;
  if (stream != nullptr && stream->KeepsLeases()) {
    context_.Wrong("session {}: memory was used again that it reads", session_.id);
  }
  ++context_.counts["taken back"];
  return true;
}

void SimChat::CheckHeld(const Held& held) {
  if (IsVoid(held.reply, held.stream.lock())) return;
  if (BytesOf(held.reply) != held.bytes) {
    context_.Wrong("session {}: memory that it reads has other bytes now", session_.id);
  }
  ++context_.counts["given back"];
}

// In any order.
void SimChat::GiveSomeBack() {
  if (!held_.empty() && context_.random(held_max_) < 2) {
    const auto index = static_cast<std::size_t>(context_.random(std::ssize(held_)));
    CheckHeld(held_[index]);
    std::swap(held_[index], held_.back());
    held_.pop_back();
  }
  if (lease_returns_->empty() || context_.random(8) != 0) return;
  if (!IsAttached() || protocol_ == nullptr || protocol_->state() != State::kOpen) return;
  pb::ChannelRequest message;
  message.mutable_release();
  Write(std::move(message));
}

// With the process that reads them.
void SimChat::DropHeld() {
  for (const Held& held : held_) CheckHeld(held);
  held_.clear();
}

}  // namespace cairn::sim
