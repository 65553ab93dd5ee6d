// ReplayBuffer keeps the changing operations that no checkpoint covers, so that they can be sent
// again when the KV node lost them: docs/compute-node.md, "Talking with the KV node". Operations
// are numbered without gaps; one that was sent but not kept (prefill can compute it again) leaves a
// hole behind which nothing can be replayed.
//
// Threading:  not synchronised; its session's mutex guards it.
// Limits:     bytes_max; Keep refuses beyond it. A checkpoint is always accepted: it is what makes
//             room.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "common/base/status.h"
#include "common/kv/messages.h"

namespace cairn::compute {

class ReplayBuffer {
 public:
  struct Kept {
    OpSeq op_seq;
    ChangingOperation operation;
  };

  // Nothing has been sent behind `covered`.
  ReplayBuffer(std::int64_t bytes_max, OpSeq covered) : bytes_max_(bytes_max) { Reset(covered); }

  // The next operation gets last() + 1.
  OpSeq last() const { return last_; }
  std::int64_t bytes() const { return bytes_; }

  // RESOURCE_EXHAUSTED when an operation of this size does not fit.
  absl::Status CheckRoom(std::int64_t operation_bytes) const;
  // Numbers the operation and keeps it. REQUIRES: it is a checkpoint or CheckRoom said OK.
  OpSeq Keep(ChangingOperation operation);
  // Numbers an operation that is not kept.
  OpSeq Skip();

  // A checkpoint is durable that covers everything up to `covered`.
  void DropCovered(OpSeq covered);
  // Gives up all that is kept; none of it can be replayed.
  void Forget();
  // The session is at `covered` again, with nothing behind it.
  void Reset(OpSeq covered);

  // Whether all operations behind `covered` are here.
  bool CanReplayBehind(OpSeq covered) const { return covered >= last_skipped_; }
  // A copy of the first kept operation behind `op_seq`; nullopt behind the last.
  std::optional<Kept> NextBehind(OpSeq op_seq) const;

 private:
  std::int64_t bytes_max_;
  std::deque<Kept> kept_;  // ascending
  std::int64_t bytes_ = 0;
  OpSeq last_;
  OpSeq last_skipped_;
};

}  // namespace cairn::compute
