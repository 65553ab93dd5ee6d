// GrpcKvSession is a KvSession over a Channel stream: a SessionProtocol with its threads. When the
// stream ends it connects again, resumes the epoch, sends the rest again and repeats the reads.
//
// Threading:  the caller's thread writes; "kv-replies" reads and recovers; while operations are
//             sent again, "kv-resend" writes and the caller waits, so that replies are read
//             meanwhile and the two flow controls cannot block each other. mutex_ guards what they
//             share; it is never held while writing or reading.
// Ownership:  shares the link.
#pragma once

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "compute-node/kv_client/channel_call.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/kv_client/node_link.h"
#include "compute-node/kv_client/session_attacher.h"
#include "compute-node/kv_client/session_protocol.h"

namespace cairn::compute {

// How long the destructor waits for the KV node to detach the session.
inline constexpr std::chrono::milliseconds kCloseTimeMax{5000};

class GrpcKvSession : public KvSession {
 public:
  // OpenSession and its stream; tried again while the node is away.
  static absl::StatusOr<std::unique_ptr<GrpcKvSession>> Open(const std::shared_ptr<NodeLink>& link,
                                                             const SessionRef& session);
  ~GrpcKvSession() override;
  GrpcKvSession(const GrpcKvSession&) = delete;
  GrpcKvSession& operator=(const GrpcKvSession&) = delete;

  void SetInterrupt(Interrupt interrupt) override { interrupt_ = std::move(interrupt); }
  const Attachment& attachment() const override;
  absl::Status Send(ChangingOperation operation) override;
  std::future<absl::StatusOr<ReadReply>> StartRead(ReadOperation operation) override;
  FetchClock& fetch_clock() override { return *fetch_clock_; }
  void ReturnLeases() override;
  bool checkpoint_in_progress() const override {
    MutexLock lock(mutex_);
    return protocol_.checkpoint_in_progress();
  }
  absl::StatusOr<Checkpointed> WaitForCheckpoint() override;
  bool wants_checkpoint() const override {
    MutexLock lock(mutex_);
    return protocol_.wants_checkpoint();
  }
  absl::Status AwaitNode() override {
    MutexLock lock(mutex_);
    return AwaitOpenLocked(Patience::kUntilInterrupted);
  }
  void SetReplayMode(ReplayMode mode) override {
    MutexLock lock(mutex_);
    protocol_.SetReplayMode(mode);
  }
  std::int64_t replay_bytes() const override {
    MutexLock lock(mutex_);
    return protocol_.replay_bytes();
  }
  absl::Status Reattach() override;
  std::int32_t reconnect_count() const override {
    MutexLock lock(mutex_);
    return protocol_.reconnect_count();
  }

 private:
  using State = SessionProtocol::State;
  using Attached = SessionAttacher::Attached;

  GrpcKvSession(std::unique_ptr<SessionAttacher> attacher, Attached attached);

  // The caller's thread.
  enum class Patience : std::uint8_t { kUntilInterrupted, kUnlimited };
  // Waits for a change, or until the next look at the interrupt; what that answers.
  absl::Status AwaitChangeLocked() CAIRN_REQUIRES(mutex_);
  absl::Status AwaitOpenLocked(Patience patience) CAIRN_REQUIRES(mutex_);
  void Write(const std::shared_ptr<ChannelCall>& call, pb::ChannelRequest& message);
  // Null while the session recovers or is lost.
  std::shared_ptr<ChannelCall> OpenCall() const {
    MutexLock lock(mutex_);
    return protocol_.state() == State::kOpen ? call_ : nullptr;
  }

  // The thread "kv-replies".
  void Run();
  absl::Status ReadReplies(const std::shared_ptr<ChannelCall>& call);
  void HandleReply(ChannelCall& call, const std::shared_ptr<pb::ChannelReply>& reply);
  void HandleRead(ChannelCall& call, const std::shared_ptr<pb::ChannelReply>& reply);
  // Of an event that the protocol was told.
  void NoteLocked(bool ends_stream) CAIRN_REQUIRES(mutex_);
  // Ends when the session is attached again, failed, or closing.
  void Recover(const absl::Status& end);
  bool MayRecover(const absl::Status& end);
  void Install(Attached attached);

  // The thread "kv-resend".
  void Resend(const std::shared_ptr<ChannelCall>& call, ResendCursor cursor);

  const std::unique_ptr<SessionAttacher> attacher_;  // of kv-replies
  const std::shared_ptr<NodeLink> link_;
  mutable Attachment visible_attachment_;  // the caller's copy
  Interrupt interrupt_;                    // the caller's

  const std::shared_ptr<FetchClock> fetch_clock_ = std::make_shared<FetchClock>();

  mutable Mutex mutex_;
  CondVar changed_;
  SessionProtocol protocol_ CAIRN_GUARDED_BY(mutex_);
  bool closing_ CAIRN_GUARDED_BY(mutex_) = false;
  std::shared_ptr<ChannelCall> call_ CAIRN_GUARDED_BY(mutex_);  // null while there is none

  std::thread resend_thread_;  // owned by kv-replies
  std::thread reply_thread_;
};

}  // namespace cairn::compute
