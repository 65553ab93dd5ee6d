// AttentionScratch is the memory for the running softmax of one pass's queries: allocated and
// touched once, when the model is loaded, and shared by the conversations that take turns on it.
// Holds no keys or values. PassScratch has one for chunks and one for the steps that are computed
// between a chunk's pieces.
//
// Threading:  used by one forward pass at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compute-node/kernels/attention.h"
#include "compute-node/model/config.h"
#include "compute-node/model/forward/forward.h"

namespace cairn::compute {

class AttentionScratch {
 public:
  AttentionScratch(const ModelConfig& config, std::int64_t batch_tokens_max)
      : head_dim_(config.head_dim),
        states_(static_cast<std::size_t>(config.head_count * batch_tokens_max *
                                         AttentionStateFloats(config.head_dim))) {}

  std::int64_t row_count_max() const {
    return std::ssize(states_) / AttentionStateFloats(head_dim_);
  }
  // The states of rows [first, first + count).
  std::span<float> Rows(std::int64_t first, std::int64_t count) {
    const std::int64_t floats = AttentionStateFloats(head_dim_);
    return std::span(states_).subspan(static_cast<std::size_t>(first * floats),
                                      static_cast<std::size_t>(count * floats));
  }

 private:
  const std::int64_t head_dim_;
  std::vector<float> states_;
};

class PassScratch {
 public:
  PassScratch(const ModelConfig& config, std::int64_t chunk_tokens_max)
      : chunk_(config, chunk_tokens_max), step_(config, kStepTokensMax) {}

  // For a pass of so many tokens of one sequence.
  AttentionScratch& For(std::int64_t token_count) {
    return token_count > kStepTokensMax ? chunk_ : step_;
  }

 private:
  AttentionScratch chunk_;
  AttentionScratch step_;
};

}  // namespace cairn::compute
