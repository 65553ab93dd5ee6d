// SessionProtocol is what one attached session knows of its stream to the KV node: what was sent
// and no checkpoint covers yet, which reads are unanswered, and what has to be sent again behind a
// loss. It has no thread, no lock and no socket: GrpcKvSession gives it those, a simulation others.
//
// States: open (messages go out), recovering (calls wait), lost (the node's state is older than
// what can be sent again, until GoOn), failed (the status stays until Discard).
//
// Threading:  not synchronised; its owner's mutex guards it. Answers of reads wake their futures.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "cairn/kv/v1/kv.pb.h"
#include "common/base/status.h"
#include "common/kv/messages.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/kv_client/pending_reads.h"
#include "compute-node/kv_client/replay_buffer.h"

namespace cairn::compute {

// What is still to be sent again on a new stream: all behind these.
struct ResendCursor {
  OpSeq op_seq;
  RequestId read;
};

class SessionProtocol {
 public:
  enum class State : std::uint8_t { kOpen, kRecovering, kLost, kFailed };

  SessionProtocol(std::int64_t replay_bytes_max, Attachment attachment,
                  std::shared_ptr<FetchClock> clock);
  ~SessionProtocol() = default;
  SessionProtocol(const SessionProtocol&) = delete;
  SessionProtocol& operator=(const SessionProtocol&) = delete;

  State state() const { return state_; }
  // Why it is lost or failed.
  const absl::Status& status() const { return status_; }
  const Attachment& attachment() const { return attachment_; }
  // The last operation that a checkpoint is known to cover.
  OpSeq acknowledged() const { return acknowledged_; }
  // The last that was sent.
  OpSeq last_op_seq() const { return replay_.last(); }
  std::int64_t replay_bytes() const { return replay_.bytes(); }
  std::int32_t reconnect_count() const { return reconnect_count_; }
  // Whether what is sent has to be kept.
  bool keeps() const { return mode_ == ReplayMode::kOperations; }
  void SetReplayMode(ReplayMode mode);
  bool reads_full() const { return reads_.full(); }
  // See KvSession.
  bool wants_checkpoint() const { return node_stops_ && state_ == State::kOpen; }

  // ---- what goes out ----
  // An operation of so many bytes; `kept` is a copy for when it has to be sent again.
  struct Outgoing {
    std::int64_t bytes = 0;
    std::optional<ChangingOperation> kept;
    std::optional<CheckpointWait> checkpoint;  // that it is
  };
  static Outgoing Describe(const ChangingOperation& operation, bool keep);
  // RESOURCE_EXHAUSTED: it cannot be kept, and is not to be sent. REQUIRES: open; for a checkpoint,
  // none is in progress.
  absl::StatusOr<OpSeq> Number(Outgoing operation);
  // REQUIRES: open, not reads_full().
  struct Asked {
    RequestId id;
    OpSeq after;
    std::future<absl::StatusOr<ReadReply>> answer;
  };
  Asked Ask(ReadOperation operation);

  // ---- what comes in. True: the stream is to be ended now, and its end recovered from, because
  // the node is about to stop and has all that this session has. ----
  bool OnStopping();
  bool OnCheckpointed(OpSeq op_seq, const absl::StatusOr<Checkpointed>& result);
  void OnFailure(OpSeq op_seq, const absl::Status& status);
  void OnAnswer(RequestId request_id, absl::StatusOr<ReadReply> reply);

  // ---- the stream ends, and another one begins ----
  // It takes no more; what it still gives is to be read.
  void OnWriteFailed();
  void OnStreamEnd();
  // Begins to recover from such an end; false: it has failed, or fails by that.
  bool MayRecover(const absl::Status& end);
  void FailRecovery(const absl::Status& status);
  // Attached again: whether all that ResendCursor{attachment().op_seq} leaves is to be sent.
  bool OnAttached(Attachment attachment);
  // The next message to be sent again; none: OnResent.
  std::optional<::cairn::kv::v1::ChannelRequest> NextToResend(ResendCursor& cursor) const;
  // As OnStopping.
  bool OnResent();

  // ---- the caller's wishes ----
  // Failed: begins to recover, and gives up what was sent.
  void Discard();
  bool discards() const { return discard_; }
  // Lost: goes on from the attachment.
  void GoOn(bool has_stream);
  bool checkpoint_in_progress() const { return checkpoint_.in_progress(); }
  // How the last checkpoint ended; none: it is in progress.
  std::optional<absl::StatusOr<Checkpointed>> CheckpointOutcome() const;

 private:
  void Fail(State state, const absl::Status& status);
  void FailStream(const absl::Status& status);
  bool LetsGo();

  State state_ = State::kOpen;
  absl::Status status_;
  bool discard_ = false;  // the next recovery sends nothing again
  Attachment attachment_;
  OpSeq acknowledged_;
  ReplayMode mode_ = ReplayMode::kOperations;
  ReplayBuffer replay_;
  PendingReads reads_;
  CheckpointWait checkpoint_;
  bool node_stops_ = false;  // the one that the stream goes to
  std::int32_t reconnect_count_ = 0;
};

}  // namespace cairn::compute
