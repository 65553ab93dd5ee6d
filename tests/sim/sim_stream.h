// SimStream is one call of KvService.Channel over a SimWire: the client's end, the node's end with
// the engine's channel, and the messages between them as they are on a socket.
//
// Threading:  one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "cairn/kv/v1/kv.pb.h"
#include "kv-node/engine/engine.h"
#include "tests/sim/sim_node.h"
#include "tests/sim/sim_wire.h"

namespace cairn::sim {

namespace pb = ::cairn::kv::v1;

class SimStream final : public kv::ChannelObserver, public std::enable_shared_from_this<SimStream> {
 public:
  using Random = SimWire::Random;
  // The client's ears. The first reply is a hello.
  struct Client {
    std::function<void(const std::shared_ptr<pb::ChannelReply>& reply)> on_reply;
    std::function<void(const absl::Status& end)> on_end;
    bool uses_arena = false;
  };

  static std::shared_ptr<SimStream> Open(SimNode& node, SimWire& wire, SessionId session,
                                         Epoch epoch, Client client);
  SimStream(SimNode& node, SimWire& wire, Client client);
  ~SimStream() override = default;
  SimStream(const SimStream&) = delete;
  SimStream& operator=(const SimStream&) = delete;

  // ---- the client's end ----
  void Write(pb::ChannelRequest message);
  // Hears nothing any more; the node's end learns of it behind what was written.
  void Cancel();
  // Whether the node's end keeps the memory of what it answered as it is, until it is given back.
  bool KeepsLeases() const { return !has_ended_; }
  // Both ends lose each other, and some of what is on its way.
  void Break(const Random& random);

  // ---- the node's end ----
  // The process is about to stop.
  void TellStopping();
  // The process ends.
  void OnNodeEnd(const Random& random);
  void OnCheckpointed(OpSeq op_seq, const Checkpointed& checkpointed) override;
  void OnFailure(OpSeq op_seq, const absl::Status& status) override;
  void OnReply(RequestId request_id, absl::StatusOr<ReadReply> reply) override;
  void OnRoom() override { --submitted_count_; }

 private:
  bool MayTakeMessage() const;
  void Attach(SessionId session, Epoch epoch);
  void Handle(pb::ChannelRequest& message);
  absl::Status HandleChange(pb::ChannelRequest& message);
  absl::Status HandleRead(const pb::ChannelRequest& message);
  void ReplyToFetch(RequestId request_id, const FetchReply& reply);
  bool HoldLeases(RequestId request_id, const FetchReply& reply);
  void Reply(pb::ChannelReply reply);
  void EndNode(const absl::Status& status);
  void SendEnd(const absl::Status& status);

  SimNode& node_;
  SimWire& wire_;
  Client client_;
  const std::int64_t up_;
  const std::int64_t down_;
  const bool uses_arena_;
  bool down_is_broken_ = false;
  // Of the node's end.
  bool has_ended_ = false;
  bool attaching_ = false;
  std::shared_ptr<kv::Channel> channel_;
  std::int32_t submitted_count_ = 0;
  std::set<RequestId> unanswered_;
  // Owners of ranges that the client may read, by fetch.
  std::map<RequestId, std::vector<std::shared_ptr<const void>>> leases_;
};

}  // namespace cairn::sim
