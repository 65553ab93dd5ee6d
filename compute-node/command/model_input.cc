#include "compute-node/command/model_input.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <system_error>
#include <thread>

#include "common/command/input.h"

namespace cairn::cli {
namespace {

// Ids go between files and memory as they are.
static_assert(std::endian::native == std::endian::little);

constexpr std::int64_t kTokenFileBytesMax = 1 << 26;

}  // namespace

absl::Status AboutFile(const absl::Status& status, const std::string& path) {
  if (status.ok() || Message(status).find(path) != std::string::npos) {
    return status;
  }
  return Annotate(status, path);
}

int ThreadCount(int threads) {
  return threads > 0
             ? threads
             : std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kThreadsMax);
}

absl::StatusOr<std::unique_ptr<compute::Model>> LoadModel(const std::string& path, int threads) {
  compute::ModelOptions options;
  options.thread_count = ThreadCount(threads);
  options.batch_tokens_max = kBatchTokens;
  auto model = compute::Model::Load(path, options);
  if (!model.ok()) return AboutFile(model.status(), path);
  return model;
}

absl::StatusOr<std::vector<std::int32_t>> ReadTokens(const std::string& path) {
  std::string bytes;
  CAIRN_ASSIGN_OR_RETURN(bytes, ReadFile(path, kTokenFileBytesMax));
  if (bytes.empty()) {
    return InvalidArgument("read {}: it is empty; write at least one token id", path);
  }
  if (bytes.size() % sizeof(std::int32_t) != 0) {
    return InvalidArgument(
        "read {}: {} bytes are no whole number of token ids; write each as a little-endian int32 "
        "of 4 bytes",
        path, bytes.size());
  }
  std::vector<std::int32_t> tokens(bytes.size() / sizeof(std::int32_t));
  bytes.copy(reinterpret_cast<char*>(tokens.data()), bytes.size());
  return tokens;
}

absl::Status CheckTokens(std::span<const std::int32_t> tokens, std::int64_t more_count,
                         const std::string& path, const compute::ModelConfig& config) {
  const std::int64_t token_count = std::ssize(tokens) + more_count;
  if (token_count > config.context_length) {
    return InvalidArgument("read {}: {} tokens are more than the model's context of {}", path,
                           token_count, config.context_length);
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= config.vocab_size) {
      return InvalidArgument("read {}: token {} is id {}, but the model's ids are 0 to {}", path, i,
                             tokens[i], config.vocab_size - 1);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckIsNoInput(const std::string& output, std::span<const std::string> inputs) {
  std::error_code ignored;  // a file that is not there is no other's equivalent
  for (const std::string& input : inputs) {
    if (std::filesystem::equivalent(output, input, ignored)) {
      return InvalidArgument("write {}: it is the same file as the input {}", output, input);
    }
  }
  return absl::OkStatus();
}

}  // namespace cairn::cli
