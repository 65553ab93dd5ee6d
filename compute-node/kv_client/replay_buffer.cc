#include "compute-node/kv_client/replay_buffer.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace cairn::compute {

absl::Status ReplayBuffer::CheckRoom(std::int64_t operation_bytes) const {
  if (operation_bytes <= bytes_max_ - bytes_) return absl::OkStatus();
  return ResourceExhausted(
      "the replay buffer holds {} of {} bytes, an operation of {} does not fit: take a checkpoint",
      bytes_, bytes_max_, operation_bytes);
}

OpSeq ReplayBuffer::Keep(ChangingOperation operation) {
  last_ = OpSeq(last_.value() + 1);
  bytes_ += OperationBytes(operation);
  kept_.push_back({last_, std::move(operation)});
  return last_;
}

OpSeq ReplayBuffer::Skip() {
  last_ = OpSeq(last_.value() + 1);
  last_skipped_ = last_;
  return last_;
}

void ReplayBuffer::DropCovered(OpSeq covered) {
  while (!kept_.empty() && kept_.front().op_seq <= covered) {
    bytes_ -= OperationBytes(kept_.front().operation);
    kept_.pop_front();
  }
}

void ReplayBuffer::Forget() {
  if (kept_.empty()) return;
  last_skipped_ = std::max(last_skipped_, kept_.back().op_seq);
  kept_.clear();
  bytes_ = 0;
}

void ReplayBuffer::Reset(OpSeq covered) {
  kept_.clear();
  bytes_ = 0;
  last_ = covered;
  last_skipped_ = OpSeq();
}

std::optional<ReplayBuffer::Kept> ReplayBuffer::NextBehind(OpSeq op_seq) const {
  const auto next =
      std::upper_bound(kept_.begin(), kept_.end(), op_seq,
                       [](OpSeq value, const Kept& kept) { return value < kept.op_seq; });
  if (next == kept_.end()) return std::nullopt;
  return *next;
}

}  // namespace cairn::compute
