#include "compute-node/kv_client/session_protocol.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/rpc/kv_codec.h"
#include "compute-node/kv_client/loss.h"

namespace cairn::compute {

SessionProtocol::SessionProtocol(std::int64_t replay_bytes_max, Attachment attachment,
                                 std::shared_ptr<FetchClock> clock)
    : attachment_(std::move(attachment)),
      acknowledged_(attachment_.op_seq),
      replay_(replay_bytes_max, attachment_.op_seq),
      reads_(std::move(clock)) {}

void SessionProtocol::SetReplayMode(ReplayMode mode) {
  mode_ = mode;
  if (mode == ReplayMode::kNothing) replay_.Forget();
}

SessionProtocol::Outgoing SessionProtocol::Describe(const ChangingOperation& operation, bool keep) {
  Outgoing out;
  out.bytes = OperationBytes(operation);
  if (keep) out.kept = operation;
  if (const auto* checkpoint = std::get_if<Checkpoint>(&operation)) {
    out.checkpoint = CheckpointWait{OpSeq(), checkpoint->token_count, checkpoint->seal, {}};
  }
  return out;
}

absl::StatusOr<OpSeq> SessionProtocol::Number(Outgoing operation) {
  CAIRN_CHECK(state_ == State::kOpen);
  // A checkpoint is what makes room.
  if (operation.kept && !operation.checkpoint) {
    CAIRN_RETURN_IF_ERROR(replay_.CheckRoom(operation.bytes));
  }
  const OpSeq op_seq = operation.kept ? replay_.Keep(*std::move(operation.kept)) : replay_.Skip();
  if (operation.checkpoint) {
    CAIRN_CHECK(!checkpoint_.in_progress());
    checkpoint_ = *operation.checkpoint;
    checkpoint_.op_seq = op_seq;
  }
  return op_seq;
}

SessionProtocol::Asked SessionProtocol::Ask(ReadOperation operation) {
  CAIRN_CHECK(state_ == State::kOpen);
  const OpSeq after = replay_.last();
  auto [id, answer] = reads_.Add({std::move(operation), after});
  return {id, after, std::move(answer)};
}

bool SessionProtocol::OnStopping() {
  node_stops_ = true;
  return LetsGo();
}

bool SessionProtocol::OnCheckpointed(OpSeq op_seq, const absl::StatusOr<Checkpointed>& result) {
  if (!result.ok()) {
    FailStream(result.status());
    return false;
  }
  acknowledged_ = std::max(acknowledged_, op_seq);
  replay_.DropCovered(op_seq);
  if (checkpoint_.op_seq == op_seq) checkpoint_.result = *result;
  return LetsGo();
}

void SessionProtocol::OnFailure(OpSeq op_seq, const absl::Status& status) {
  CAIRN_CHECK(op_seq != OpSeq());
  FailStream(status);
}

void SessionProtocol::FailStream(const absl::Status& status) {
  // What was given up may fail. Operations behind the first that failed are refused because of it.
  if (!discard_ && state_ != State::kFailed) Fail(State::kFailed, status);
}

void SessionProtocol::OnAnswer(RequestId request_id, absl::StatusOr<ReadReply> reply) {
  reads_.Answer(request_id, std::move(reply));
}

bool SessionProtocol::LetsGo() {
  // Operations that no checkpoint is to cover are computed again, with the next one.
  const bool has_all = replay_.bytes() == 0 && !checkpoint_.in_progress();
  if (!node_stops_ || !has_all || state_ != State::kOpen) return false;
  state_ = State::kRecovering;
  return true;
}

void SessionProtocol::OnWriteFailed() {
  if (state_ == State::kOpen) state_ = State::kRecovering;
}

void SessionProtocol::OnStreamEnd() {
  node_stops_ = false;
  if (state_ == State::kOpen) state_ = State::kRecovering;
}

bool SessionProtocol::MayRecover(const absl::Status& end) {
  if (discard_) return true;
  if (state_ == State::kFailed) return false;
  if (!IsLoss(end) && !end.ok()) {
    // The stored epoch is not ours any more.
    const bool is_taken = absl::IsFailedPrecondition(end);
    Fail(State::kFailed,
         is_taken ? Aborted("another owner opened the session: {}", Message(end)) : end);
    return false;
  }
  state_ = State::kRecovering;
  return true;
}

void SessionProtocol::FailRecovery(const absl::Status& status) {
  discard_ = false;
  Fail(State::kFailed, status);
}

bool SessionProtocol::OnAttached(Attachment attachment) {
  attachment_ = std::move(attachment);
  ++reconnect_count_;
  const OpSeq covered = attachment_.op_seq;
  acknowledged_ = covered;
  if (discard_) {
    discard_ = false;
    replay_.Reset(covered);
    checkpoint_ = {};
    state_ = State::kOpen;
    return false;
  }
  if (checkpoint_.in_progress() && covered >= checkpoint_.op_seq) {
    // Durable before the loss; only its reply was lost.
    checkpoint_.result = Checkpointed{
        checkpoint_.token_count, checkpoint_.seal ? attachment_.parent_segment_id : SegmentId()};
  }
  replay_.DropCovered(covered);
  if (replay_.CanReplayBehind(covered)) return true;
  Fail(State::kLost, Aborted("the KV node lost what session {} has behind token {}, and nothing of "
                             "it is kept",
                             attachment_.session_id, attachment_.token_count));
  return false;
}

std::optional<::cairn::kv::v1::ChannelRequest> SessionProtocol::NextToResend(
    ResendCursor& cursor) const {
  ::cairn::kv::v1::ChannelRequest message;
  auto read = reads_.NextAbove(cursor.read);
  std::optional<ReplayBuffer::Kept> kept = replay_.NextBehind(cursor.op_seq);
  if (read && (read->second.after <= cursor.op_seq || !kept)) {
    // A read goes where it was asked, so that it finds what operations behind it replace.
    cursor.read = read->first;
    rpc::SetOperation(read->second.operation, &message);
    message.set_request_id(cursor.read.value());
    message.set_after_op_seq(std::min(read->second.after, cursor.op_seq).value());
    return message;
  }
  if (!kept) return std::nullopt;
  cursor.op_seq = kept->op_seq;
  message.set_op_seq(kept->op_seq.value());
  rpc::SetOperation(std::move(kept->operation), &message);
  return message;
}

bool SessionProtocol::OnResent() {
  state_ = State::kOpen;
  return LetsGo();  // the node may be about to stop already
}

void SessionProtocol::Discard() {
  CAIRN_CHECK(state_ == State::kFailed);
  discard_ = true;
  state_ = State::kRecovering;
}

void SessionProtocol::GoOn(bool has_stream) {
  CAIRN_CHECK(state_ == State::kLost);
  // Recovery has resumed the session already; only its numbers start anew.
  replay_.Reset(attachment_.op_seq);
  checkpoint_ = {};
  state_ = has_stream ? State::kOpen : State::kRecovering;
}

std::optional<absl::StatusOr<Checkpointed>> SessionProtocol::CheckpointOutcome() const {
  const bool has_ended = state_ == State::kLost || state_ == State::kFailed;
  if (checkpoint_.in_progress() && !has_ended) return std::nullopt;
  if (checkpoint_.result) return *checkpoint_.result;
  if (has_ended) return status_;
  return Checkpointed{attachment_.token_count, SegmentId()};
}

void SessionProtocol::Fail(State state, const absl::Status& status) {
  state_ = state;
  status_ = status;
  reads_.FailAll(status);
  replay_.Forget();
}

}  // namespace cairn::compute
