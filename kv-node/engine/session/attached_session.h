// AttachedSession applies one session's operations in order: it owns the queue of its channel and
// the session's state, and gives each operation to the part that carries it out. One object lives
// from an attach to its end; the next attach makes a new one from what was committed (rule 4).
//
//   Append       pending entries, which Placer places in pools (placer.h)
//   Replace      Replacer (replacer.h)
//   Checkpoint   Checkpointer (checkpointer.h), with LogWriter and SessionIndex
//   Fetch        FetchReader (fetch_reader.h)
//   Evict        SessionState (state/session_state.h)
//
// Threading:  the engine thread.
// Blocking:   never: an operation that must wait (for room, for I/O, for a checkpoint) stays at the
//             head of the queue, and Pump tries again.
// Errors:     an operation that fails is reported to the observer, and those behind it are refused
//             until its number comes again (rule 14). A failed write ends the attachment.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "kv-node/engine/checkpoint/checkpointer.h"
#include "kv-node/engine/checkpoint/log_writer.h"
#include "kv-node/engine/engine_context.h"
#include "kv-node/engine/fetch/fetch_reader.h"
#include "kv-node/engine/index/session_index.h"
#include "kv-node/engine/inspection.h"
#include "kv-node/engine/load/session_loader.h"
#include "kv-node/engine/place/co_fetches.h"
#include "kv-node/engine/place/placer.h"
#include "kv-node/engine/session/replacer.h"
#include "kv-node/engine/state/segment_space.h"
#include "kv-node/engine/state/session_host.h"
#include "kv-node/engine/state/session_state.h"
#include "kv-node/engine/state/session_writes.h"

namespace cairn::kv {

// What came with Submit.
struct QueuedOperation {
  OpSeq op_seq;          // of a changing operation; 0 for a read
  RequestId request_id;  // of a read
  OpSeq after;           // of a read
  std::variant<ChangingOperation, ReadOperation> operation;
};

// Of a channel, what was submitted and has not left the queue: Submit refuses by it without asking
// the engine thread.
using QueuedCount = std::atomic<std::int32_t>;

// A session spills when the table of pending entries is full and it has this share of it: with
// less, every operation would write a page. So the table holds 1 + sessions / kSpillShare times its
// limit at most.
inline constexpr std::int64_t kSpillShare = 16;

class AttachedSession final : public SessionHost {
 public:
  AttachedSession(EngineContext& context, SessionId id, LoadedState loaded);
  ~AttachedSession();
  AttachedSession(const AttachedSession&) = delete;
  AttachedSession& operator=(const AttachedSession&) = delete;

  SessionId id() const override { return id_; }
  Epoch epoch() const { return row_.epoch; }
  const SessionRow& row() const { return row_; }
  bool HasInChain(SegmentId segment) const {
    return std::any_of(state_->chain().begin(), state_->chain().end(),
                       [segment](const SegmentRows& rows) { return rows.id == segment; });
  }
  // Memory of its rows, and of what is known of their places.
  std::int64_t row_bytes() const {
    return state_->row_bytes() + placer_.pools().memory_bytes() + co_fetches_.memory_bytes();
  }
  Attachment attachment() const;

  void Bind(std::shared_ptr<ChannelObserver> observer, std::shared_ptr<QueuedCount> queued) {
    observer_ = std::move(observer);
    queued_ = std::move(queued);
  }
  bool failed() const { return failed_; }
  bool bound() const { return observer_ != nullptr; }
  // Since when it has waited for its channel.
  EngineTime unbound_since() const { return unbound_since_; }
  // Gives the attachment, to which no channel came, to a later attempt of its owner. False: there
  // is a channel, or it has failed.
  bool TakeUnbound(const AttachAttempt& attempt);
  void Enqueue(QueuedOperation operation) { queue_.push_back(std::move(operation)); }
  // Applies what can be applied now.
  void Pump();
  // Starts one placing if a cluster has enough unplaced entries. Returns whether it did.
  bool PlaceAtIdle() { return queue_.empty() && !ends() && placer_.PlaceAtIdle(); }
  // Takes no more operations, tells the observer `why`, and calls `then` once no I/O and no commit
  // is in flight. What is in memory only is dropped with the object.
  void Stop(const absl::Status& why, std::function<void()> then);
  // NOT_FOUND for a cluster that does not exist.
  absl::StatusOr<InspectionAnswer> Inspect(const InspectionQuestion& question) const;

 private:
  // ---- SessionHost ----
  EngineContext& context() override { return context_; }
  SessionState& state() override { return *state_; }
  SlotCache* cache() override { return cache_; }
  bool stopped() const override { return stopped_; }
  bool ends() const override { return stopped_ || failed_; }
  std::shared_ptr<void> HoldIo() override;
  bool HasIoRoom() override;
  void ReadAtHead(std::vector<PageIndex> pages, AfterRead after, PageIo::ReadDone done,
                  PageIo::Doubt doubt) override;
  void Reply(RequestId request_id, absl::StatusOr<ReadReply> reply) override;
  Applied Finish(OpSeq op_seq, const absl::Status& status) override;
  void Fail(const absl::Status& status) override;
  void TellCheckpointed(OpSeq op_seq, std::int64_t token_count, SegmentId sealed) override;

  // ---- attached_session.cc: the queue ----
  Applied ApplyHead(QueuedOperation& head);
  Applied ApplyChange(OpSeq op_seq, ChangingOperation& operation);
  Applied ApplyAppend(OpSeq op_seq, Append& op);
  // Whether pending entries and buffers leave room for more; if not, starts placings, and a spill
  // where they are not enough.
  bool HasRoom();
  bool WantsSpill() const;
  // Whether there is none, and flash has no room to make some.
  bool IsFull() const;
  void TellFailure();
  // The head of the queue is done with.
  void PopHead();

  // ---- session_reads.cc ----
  Applied ApplyRead(RequestId request_id, const ReadOperation& operation);
  Applied StartGetCarried(RequestId request_id, const GetCarried& op);

  EngineContext& context_;
  const SessionId id_;
  SessionRow row_;  // as committed, but for the owner's attempts behind this attach
  const std::int64_t policy_token_count_;
  EngineTime unbound_since_ = context_.now;
  const std::unique_ptr<SessionState> state_;
  SlotCache* const cache_;
  CoFetches co_fetches_;
  SessionWrites writes_;
  SegmentSpace space_;
  Placer placer_;
  LogWriter log_;
  Replacer replacer_;
  SessionIndex index_;
  Checkpointer checkpointer_;
  FetchReader fetch_reader_;
  std::shared_ptr<ChannelObserver> observer_;  // null: no channel has come yet, as queued_
  std::shared_ptr<QueuedCount> queued_;
  std::deque<QueuedOperation> queue_;
  OpSeq applied_;
  OpSeq refused_;                  // the failed operation; 0: none
  bool head_in_progress_ = false;  // the head of the queue waits for its own I/O
  bool stopped_ = false;
  bool failed_ = false;          // a write failed: everything is refused until the channel ends
  absl::Status untold_failure_;  // from before there was a channel
  std::function<void()> stop_then_;
  int io_count_ = 0;
};

}  // namespace cairn::kv
