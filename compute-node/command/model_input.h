// What the commands that run a model by themselves take: token ids from a file, and the model.
//
// Threading:  pure functions on the file system.
// Errors:     name the file.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "compute-node/model/config.h"
#include "compute-node/model/forward/forward.h"

namespace cairn::cli {

// Tokens that one Forward takes.
inline constexpr std::int64_t kBatchTokens = 512;
inline constexpr int kThreadsMax = 256;

// A message about a model always says which file it is about.
absl::Status AboutFile(const absl::Status& status, const std::string& path);

// `threads`, or, for 0, one for each processor.
int ThreadCount(int threads);

absl::StatusOr<std::unique_ptr<compute::Model>> LoadModel(const std::string& path, int threads);

// At least one id; each a little-endian int32. INVALID_ARGUMENT for anything else.
absl::StatusOr<std::vector<std::int32_t>> ReadTokens(const std::string& path);
// Whether the model has these ids, and a context for `more_count` tokens behind them.
absl::Status CheckTokens(std::span<const std::int32_t> tokens, std::int64_t more_count,
                         const std::string& path, const compute::ModelConfig& config);

// INVALID_ARGUMENT when writing `output` would destroy one of the inputs.
absl::Status CheckIsNoInput(const std::string& output, std::span<const std::string> inputs);

}  // namespace cairn::cli
