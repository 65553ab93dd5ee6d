#include "compute-node/service/memory_budget.h"

#include "common/base/heap.h"

namespace cairn::compute {

std::int64_t MemoryBudget::claimed_bytes() const {
  const MutexLock lock(mutex_);
  return claimed_bytes_;
}

absl::Status MemoryBudget::Change(std::int64_t from_bytes, std::int64_t to_bytes) {
  if (to_bytes > from_bytes && to_bytes > claim_bytes_max()) {
    return absl::OutOfRangeError(fmt::format(
        "the request takes more than {} bytes of memory while it is read, which is what one may "
        "take: send a shorter one, or start cairn-compute-node with more request_memory_bytes "
        "({} now)",
        claim_bytes_max(), bytes_max_));
  }
  const bool is_large = to_bytes > bytes_max_ / 8;
  const std::int64_t room_bytes = is_large ? claim_bytes_max() : bytes_max_;
  const MutexLock lock(mutex_);
  const std::int64_t all_bytes = claimed_bytes_ - from_bytes + to_bytes;
  if (to_bytes > from_bytes && all_bytes > room_bytes) {
    return Unavailable(
        "there is no memory for this request now: others that are being read have {} of {} bytes; "
        "try again in some seconds",
        claimed_bytes_ - from_bytes, room_bytes);
  }
  claimed_bytes_ = all_bytes;
  return absl::OkStatus();
}

MemoryClaim& MemoryClaim::operator=(MemoryClaim&& other) noexcept {
  if (this == &other) return *this;
  Release();
  budget_ = std::exchange(other.budget_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void MemoryClaim::Release() {
  if (bytes_ >= kReturnedBytesMin) ReturnFreedMemory();
  Resize(0).IgnoreError();  // less is always granted
}

absl::Status MemoryClaim::Resize(std::int64_t bytes) {
  if (budget_ != nullptr) CAIRN_RETURN_IF_ERROR(budget_->Change(bytes_, bytes));
  bytes_ = bytes;
  return absl::OkStatus();
}

}  // namespace cairn::compute
