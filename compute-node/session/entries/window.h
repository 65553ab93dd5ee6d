// Window holds the newest entries of a conversation in memory, for all layers and heads: they are
// attended at every step and reach the KV node's clusters only when they leave.
//
// The rule: a conversation of T tokens keeps positions [WindowStart(T, capacity), T), at least
// capacity - kWindowStep + 1 of them (as far as there are so many). Its start moves in steps of
// kWindowStep tokens, so that entries leave in one message for many tokens, and depends on T only:
// not on how the text was cut into prompts and steps.
//
// Threading:  one thread for changes; different entries may be written at the same time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/check.h"
#include "common/kv/messages.h"
#include "compute-node/kernels/attention.h"

namespace cairn::compute {

// A multiple of the attention block: then blocks have the same borders whether their entries are in
// the window or in a cluster, and a token's result does not depend on when they left.
inline constexpr std::int64_t kWindowStep = kAttentionBlockEntries;
inline constexpr std::int64_t kWindowTokensMin = 2 * kWindowStep;
inline constexpr std::int64_t kWindowTokensMax = 128;

constexpr std::int64_t WindowStart(std::int64_t token_count, std::int64_t capacity) {
  const std::int64_t surplus = token_count - (capacity - kWindowStep + 1);
  return surplus <= 0 ? 0 : surplus / kWindowStep * kWindowStep;
}

// The same of policies that choose what a step attends: `kept` newest tokens, as far as there is
// room for a step more, and what has come since the start moved. Finding clusters for what leaves
// takes a look at all of a layer's, so more tokens leave together where there are more: what each
// pays then stays the same. No more than a third of what is kept, because what is in the window
// counts as attended. Where the step doubles, the start may be a step before what has left already.
inline constexpr std::int64_t kSparseWindowStepMin = 8;
inline constexpr std::int64_t kSparseWindowStepMax = 32;
inline constexpr std::int64_t kTokensPerSparseWindowStep = 1024;

constexpr std::int64_t SparseWindowStep(std::int64_t token_count, std::int64_t kept,
                                        std::int64_t capacity) {
  const std::int64_t third = std::min(kept, capacity - kSparseWindowStepMin) / 3;
  const std::int64_t most = std::min(token_count / kTokensPerSparseWindowStep, third);
  std::int64_t step = kSparseWindowStepMin;
  while (2 * step <= std::min(most, kSparseWindowStepMax)) step *= 2;
  return step;
}

// REQUIRES: capacity >= kWindowTokensMin.
constexpr std::int64_t SparseWindowStart(std::int64_t token_count, std::int64_t kept,
                                         std::int64_t capacity) {
  const std::int64_t step = SparseWindowStep(token_count, kept, capacity);
  // Room for the token that is being computed.
  const std::int64_t surplus = token_count - std::min(kept, capacity - step);
  return surplus <= 0 ? 0 : surplus / step * step;
}

class Window {
 public:
  // REQUIRES: kWindowTokensMin <= capacity <= kWindowTokensMax.
  Window(const EntryLayout& layout, std::int64_t capacity)
      : capacity_(capacity), head_count_(layout.head_count), entry_bytes_(layout.EntryBytes(0)) {
    CAIRN_CHECK(capacity >= kWindowTokensMin && capacity <= kWindowTokensMax);
    bytes_.resize(static_cast<std::size_t>(layout.TokenBytes() * capacity));
  }

  std::int64_t capacity() const { return capacity_; }
  std::int64_t size_bytes() const { return static_cast<std::int64_t>(bytes_.size()); }

  // Room for the entry of `position`, which shares it with position + capacity and so on.
  std::byte* Entry(std::int32_t layer, std::int32_t head, std::int64_t position) {
    return bytes_.data() + Offset(layer, head, position);
  }
  const std::byte* Entry(std::int32_t layer, std::int32_t head, std::int64_t position) const {
    return bytes_.data() + Offset(layer, head, position);
  }

 private:
  std::size_t Offset(std::int32_t layer, std::int32_t head, std::int64_t position) const {
    const std::int64_t row = (layer * head_count_ + head) * capacity_ + position % capacity_;
    return static_cast<std::size_t>(row * entry_bytes_);
  }

  const std::int64_t capacity_;
  const std::int64_t head_count_;
  const std::int64_t entry_bytes_;
  std::vector<std::byte> bytes_;  // (layer, head, position % capacity)
};

}  // namespace cairn::compute
