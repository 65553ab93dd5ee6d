// ChannelStream is one call of KvService.Channel: it decodes messages, hands them to the engine's
// channel, and writes the replies. It holds no session state beyond what it must not ask the engine
// for.
//
// Threading:  reactions run on gRPC threads, observer methods on the engine thread; mutex_ guards
//             all they share. gRPC never runs a reaction inside Start* or Finish, so these are
//             called with the mutex held.
// Blocking:   never.
// Limits:     a message has at most kMessageBytesMax bytes. It reads the next message only while
//             the engine's channel has room (kChannelQueueMax), fewer than kFetchesInFlightMax
//             reads are unanswered, and fewer than kReplyQueueMax replies wait to be written.
// Ownership:  holds itself until OnDone; the engine's channel shares it as the observer. Bytes of a
//             fetch reply are lent to gRPC until the transport has sent them.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "cairn/kv/v1/kv.pb.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/kv/messages.h"
#include "kv-node/engine/engine.h"
#include "kv-node/service/call_gate.h"

namespace cairn::kv {

inline constexpr std::int64_t kReplyQueueMax = 128;
// Fetches whose leases one stream may hold; beyond, replies carry their bytes.
inline constexpr std::int64_t kLeasedFetchesMax = 64;

class ChannelStream;

// All live streams, so that a stopping daemon can end them. Safe from any thread.
class StreamSet {
 public:
  // False: the daemon is stopping.
  bool Add(const std::shared_ptr<ChannelStream>& stream);
  void Remove(ChannelStream* stream);
  // Add refuses from now on. Tells the streams whose clients want to hear it, and waits for their
  // end, until the deadline. How many there were, and how many are left.
  struct Drained {
    std::int64_t told_count = 0;
    std::int64_t left_count = 0;
  };
  Drained Drain(std::chrono::steady_clock::time_point deadline);
  // Ends every stream with UNAVAILABLE; Add refuses from now on.
  void Stop();
  // Drain or Stop was called.
  bool stopping() const;

 private:
  mutable Mutex mutex_;
  CondVar removed_;
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  std::set<std::shared_ptr<ChannelStream>> streams_ CAIRN_GUARDED_BY(mutex_);
};

class ChannelStream : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                      public ChannelObserver,
                      public std::enable_shared_from_this<ChannelStream> {
 public:
  // Starts a stream that lives until gRPC is done with it. `app`: its caller, or why nobody may use
  // it; the stream ends with that status. Engine, set and gate outlive the server.
  static ChannelStream* Start(Engine* engine, StreamSet* streams, CallGate* gate,
                              std::string boot_token, const absl::StatusOr<AppId>& app);

  // Ends the call once the message that is being written is out.
  void End(const absl::Status& status);
  // Tells the client that the daemon is about to stop. False: it does not want to hear it, or the
  // stream is not bound.
  bool TellStopping();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void OnCheckpointed(OpSeq op_seq, const Checkpointed& checkpointed) override;
  void OnFailure(OpSeq op_seq, const absl::Status& status) override;
  void OnPassedOver(OpSeq op_seq) override;
  void OnReply(RequestId request_id, absl::StatusOr<ReadReply> reply) override;
  void OnRoom() override;

 private:
  enum class Phase : std::uint8_t { kAwaitHello, kAttaching, kOpen, kEnding };
  struct Reply {
    grpc::ByteBuffer message;
    RequestId answers;  // 0: no read
  };
  using Message = ::cairn::kv::v1::ChannelRequest;
  using ReplyMessage = ::cairn::kv::v1::ChannelReply;

  ChannelStream(Engine* engine, StreamSet* streams, CallGate* gate, std::string boot_token,
                AppId app);

  absl::Status Decode(Message* message);
  // Returns the channel when the message ended the stream.
  std::shared_ptr<Channel> HandleLocked(Message* message) CAIRN_REQUIRES(mutex_);
  void HandleHello(const Message& message);
  void OnAttached(absl::StatusOr<std::shared_ptr<Channel>> channel);
  absl::Status HandleChange(Message* message) CAIRN_REQUIRES(mutex_);
  absl::Status HandleRead(const Message& message) CAIRN_REQUIRES(mutex_);
  void QueueFetchReplyLocked(RequestId request_id, const FetchReply& reply) CAIRN_REQUIRES(mutex_);
  void HoldLeasesLocked(RequestId request_id, const FetchReply& reply) CAIRN_REQUIRES(mutex_);

  void ReadNextLocked() CAIRN_REQUIRES(mutex_);
  void WriteLocked(const ReplyMessage& message, RequestId answers) CAIRN_REQUIRES(mutex_);
  void QueueLocked(Reply reply) CAIRN_REQUIRES(mutex_);
  void FailChangeLocked(OpSeq op_seq, const absl::Status& status) CAIRN_REQUIRES(mutex_);
  void EndCheckpointLocked(OpSeq op_seq) CAIRN_REQUIRES(mutex_);
  void FailReadLocked(RequestId request_id, const absl::Status& status) CAIRN_REQUIRES(mutex_);
  // Returns the channel, to be dropped without the mutex.
  std::shared_ptr<Channel> EndLocked(const absl::Status& status) CAIRN_REQUIRES(mutex_);
  // A client that will send no more still gets all its answers.
  std::shared_ptr<Channel> EndIfDrainedLocked() CAIRN_REQUIRES(mutex_);
  ReplyMessage NewReply() const;

  Engine* const engine_;
  StreamSet* const streams_;
  CallGate* const gate_;
  const std::string boot_token_;
  const AppId app_;
  std::shared_ptr<ChannelStream> self_;  // until OnDone
  grpc::ByteBuffer incoming_;            // belongs to the read in progress

  Mutex mutex_;
  Phase phase_ CAIRN_GUARDED_BY(mutex_) = Phase::kAwaitHello;
  bool reading_ CAIRN_GUARDED_BY(mutex_) = false;
  bool writing_ CAIRN_GUARDED_BY(mutex_) = false;
  bool finished_ CAIRN_GUARDED_BY(mutex_) = false;
  absl::Status end_status_ CAIRN_GUARDED_BY(mutex_);
  std::shared_ptr<Channel> channel_ CAIRN_GUARDED_BY(mutex_);
  std::int32_t submitted_count_ CAIRN_GUARDED_BY(mutex_) = 0;
  // A message whose decoding failed never reaches the engine; what comes behind it is refused here
  // until its number is sent again. 0: none.
  OpSeq refused_from_ CAIRN_GUARDED_BY(mutex_);
  bool half_closed_ CAIRN_GUARDED_BY(mutex_) = false;
  // Submitted, and nothing was said of them yet. A number may be sent again meanwhile.
  std::multiset<OpSeq> checkpoints_ CAIRN_GUARDED_BY(mutex_);
  std::set<RequestId> unanswered_ CAIRN_GUARDED_BY(mutex_);
  std::deque<Reply> replies_ CAIRN_GUARDED_BY(mutex_);  // the first is being written
  bool uses_arena_ CAIRN_GUARDED_BY(mutex_) = false;
  bool hears_stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  // Owners of ranges that the client may read, by fetch.
  std::map<RequestId, std::vector<std::shared_ptr<const void>>> leases_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv
