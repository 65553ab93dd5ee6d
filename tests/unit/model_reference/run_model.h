// Runs a model file the way the tests compare it with a reference.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/kv/kv_format.h"
#include "compute-node/model/forward/dense_attention.h"
#include "compute-node/model/forward/forward.h"
#include "tests/tools/test_threads.h"

namespace cairn::compute {

// Logits of the last token, fed in batches of at most `batch_tokens`; empty, with a test failure,
// on an error.
inline std::vector<float> LastLogits(const std::string& path, std::span<const std::int32_t> tokens,
                                     KvFormat format, std::int64_t batch_tokens = 512) {
  ModelOptions options;
  options.thread_count = test::kThreads;
  options.batch_tokens_max = batch_tokens;
  auto model = Model::Load(path, options);
  if (!model.ok()) {
    ADD_FAILURE() << model.status();
    return {};
  }
  const ModelConfig& config = (*model)->config();
  const auto token_count = static_cast<std::int64_t>(tokens.size());
  DenseAttention attention(config, format, token_count, (*model)->pool());
  std::vector<float> logits(static_cast<std::size_t>(config.vocab_size));
  for (std::int64_t first = 0; first < token_count; first += batch_tokens) {
    const std::int64_t count = std::min(batch_tokens, token_count - first);
    ForwardOutput output;
    if (first + count == token_count) {
      output.last_logits = logits;
    }
    const absl::Status status = (*model)->Forward(
        tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)), first,
        attention, output, nullptr);
    if (!status.ok()) {
      ADD_FAILURE() << status;
      return {};
    }
  }
  return logits;
}

}  // namespace cairn::compute
