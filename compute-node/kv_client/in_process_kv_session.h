// InProcessKvSession is a KvSession on an engine's channel in the same process.
//
// Threading:  the caller's thread submits; the engine thread answers through the Observer, which
//             the engine shares and which outlives the session.
// Blocking:   Send and StartRead while the channel holds kChannelQueueMax operations.
// Errors:     UNAVAILABLE the engine's inbox is full. A failed operation's status stays until
//             Reattach.
#pragma once

#include <memory>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/kv_client/pending_reads.h"
#include "kv-node/engine/engine.h"

namespace cairn::compute {

// Calls a method of an engine and waits for what it answers.
template <typename T, typename Method, typename... Arguments>
absl::StatusOr<T> AskEngine(kv::Engine& engine, Method method, const Arguments&... arguments) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<T>>>();
  std::future<absl::StatusOr<T>> future = promise->get_future();
  (engine.*method)(kDefaultApp, arguments...,
                   [promise](absl::StatusOr<T> result) { promise->set_value(std::move(result)); });
  return future.get();
}

class InProcessKvSession : public KvSession {
 public:
  // The engine outlives the session. `durable`: see InProcessKvNode.
  static absl::StatusOr<std::unique_ptr<InProcessKvSession>> Open(kv::Engine* engine,
                                                                  const SessionRef& session,
                                                                  bool durable);
  ~InProcessKvSession() override;
  InProcessKvSession(const InProcessKvSession&) = delete;
  InProcessKvSession& operator=(const InProcessKvSession&) = delete;

  const Attachment& attachment() const override { return attachment_; }
  absl::Status Send(ChangingOperation operation) override;
  std::future<absl::StatusOr<ReadReply>> StartRead(ReadOperation operation) override;
  FetchClock& fetch_clock() override { return *fetch_clock_; }
  void ReturnLeases() override {}  // they end with the reply
  bool checkpoint_in_progress() const override;
  absl::StatusOr<Checkpointed> WaitForCheckpoint() override;
  // The engine is in this process: it does not go away.
  void SetInterrupt(Interrupt /*interrupt*/) override {}
  // Nothing is kept to be sent again.
  void SetReplayMode(ReplayMode mode) override { mode_ = mode; }
  std::int64_t replay_bytes() const override { return 0; }
  std::int64_t uncovered_bytes() const override;
  absl::Status Reattach() override;
  std::int32_t reconnect_count() const override { return 0; }

 private:
  // What the engine thread tells; a new one for each attachment.
  struct Observer : public kv::ChannelObserver {
    explicit Observer(std::shared_ptr<FetchClock> clock) : reads(std::move(clock)) {}
    void OnCheckpointed(OpSeq op_seq, const Checkpointed& checkpointed) override;
    void OnFailure(OpSeq op_seq, const absl::Status& failure) override;
    void OnReply(RequestId request_id, absl::StatusOr<ReadReply> reply) override;
    void OnRoom() override;
    // Waits for room on the channel; the status of a failed session.
    absl::Status AwaitRoomLocked() CAIRN_REQUIRES(mutex);

    Mutex mutex;
    CondVar changed;
    absl::Status status CAIRN_GUARDED_BY(mutex);
    std::int32_t queued_count CAIRN_GUARDED_BY(mutex) = 0;
    PendingReads reads CAIRN_GUARDED_BY(mutex);
    CheckpointWait checkpoint CAIRN_GUARDED_BY(mutex);
    // Of operations that were sent, up to the checkpoint, and those that one covers.
    std::int64_t checkpoint_bytes CAIRN_GUARDED_BY(mutex) = 0;
    std::int64_t covered_bytes CAIRN_GUARDED_BY(mutex) = 0;
  };

  InProcessKvSession(kv::Engine* engine, Attachment attachment, bool durable)
      : engine_(engine), durable_(durable), attachment_(std::move(attachment)) {}
  absl::Status AttachChannel();

  kv::Engine* const engine_;
  const bool durable_;
  Attachment attachment_;
  const std::shared_ptr<FetchClock> fetch_clock_ = std::make_shared<FetchClock>();
  OpSeq last_;
  ReplayMode mode_ = ReplayMode::kOperations;
  std::int64_t sent_bytes_ = 0;  // since the channel was attached, but with ReplayMode::kNothing
  std::shared_ptr<Observer> observer_;
  std::shared_ptr<kv::Channel> channel_;
};

}  // namespace cairn::compute
