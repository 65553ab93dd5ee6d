// MemoryBudget bounds what all requests take together until they run: their bytes, and what is made
// of them. A request claims its part before it takes the memory; where there is no room it is
// refused, and nothing else is disturbed.
//
// Small requests are served whatever large ones do: kRequestFreeBytes of each are not claimed, and
// the last quarter of the budget is for claims of at most an eighth of it.
//
// Threading:  MemoryBudget is safe from any thread; a MemoryClaim is one thread's.
// Ownership:  a claim borrows its budget.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/status.h"

namespace cairn::compute {

inline constexpr std::int64_t kRequestMemoryBytesDefault = std::int64_t{256} << 20;
inline constexpr std::int64_t kRequestMemoryBytesMin = std::int64_t{8} << 20;
inline constexpr std::int64_t kRequestMemoryBytesMax = std::int64_t{1} << 40;

// What no claim is needed for, of each request.
inline constexpr std::int64_t kRequestFreeBytes = 16 << 10;
// What a byte of a request takes at most while it becomes a prompt: itself, the parser's copies of
// the text that it is in, in buffers that have doubled, and then the messages, the template's
// pieces and the tokens.
inline constexpr std::int64_t kMemoryPerRequestByte = 8;
// Memory of a request or a conversation from which on what was freed is worth giving back to the
// system.
inline constexpr std::int64_t kReturnedBytesMin = std::int64_t{4} << 20;

// The claim of a request of so many bytes.
constexpr std::int64_t RequestMemoryBytes(std::int64_t request_bytes) {
  return kMemoryPerRequestByte * std::max<std::int64_t>(0, request_bytes - kRequestFreeBytes);
}

class MemoryBudget {
 public:
  explicit MemoryBudget(std::int64_t bytes_max) : bytes_max_(bytes_max) {}
  ~MemoryBudget() = default;
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  std::int64_t bytes_max() const { return bytes_max_; }
  // Of one claim.
  std::int64_t claim_bytes_max() const { return bytes_max_ / 4 * 3; }
  // The longest request that fits alone.
  std::int64_t request_bytes_max() const {
    return kRequestFreeBytes + claim_bytes_max() / kMemoryPerRequestByte;
  }
  std::int64_t claimed_bytes() const;

 private:
  friend class MemoryClaim;
  // Makes one claim another one.
  absl::Status Change(std::int64_t from_bytes, std::int64_t to_bytes);

  const std::int64_t bytes_max_;
  mutable Mutex mutex_;
  std::int64_t claimed_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;
};

// A part of a budget, given back when it dies.
class MemoryClaim {
 public:
  MemoryClaim() = default;  // of no budget: everything is granted
  explicit MemoryClaim(MemoryBudget& budget) : budget_(&budget) {}
  ~MemoryClaim() { Release(); }
  MemoryClaim(const MemoryClaim&) = delete;
  MemoryClaim& operator=(const MemoryClaim&) = delete;
  MemoryClaim(MemoryClaim&& other) noexcept { *this = std::move(other); }
  MemoryClaim& operator=(MemoryClaim&& other) noexcept;

  std::int64_t bytes() const { return bytes_; }
  // UNAVAILABLE: others have the room now; OUT_OF_RANGE: one may not have so much. The claim stays
  // as it was then. A smaller one is always granted.
  absl::Status Resize(std::int64_t bytes);
  absl::Status Grow(std::int64_t bytes) { return Resize(bytes_ + bytes); }
  // Gives all back; what a large request has freed goes back to the system with it.
  void Release();

 private:
  MemoryBudget* budget_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace cairn::compute
