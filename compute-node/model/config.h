// ModelConfig: the shape of a model, from the metadata of its GGUF file. Architectures llama (also
// Mistral, and Llama 3 with its rope_freqs tensor) and qwen2.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "compute-node/kernels/attention.h"
#include "compute-node/kernels/ops.h"
#include "compute-node/model/gguf/gguf.h"

namespace cairn::compute {

// Bounds on what is accepted; far above the models that Cairn is for.
inline constexpr std::int64_t kLayerCountMax = 512;
inline constexpr std::int64_t kEmbeddingLengthMax = 1 << 16;
inline constexpr std::int64_t kFeedForwardLengthMax = 1 << 20;
inline constexpr std::int64_t kHeadCountMax = 1024;
inline constexpr std::int64_t kVocabSizeMax = 1 << 22;
inline constexpr std::int64_t kContextLengthMax = 1 << 24;

inline constexpr std::string_view kArchitectureNames = "llama (also Mistral and Llama 3) and qwen2";

struct ModelConfig {
  std::string architecture;  // "llama" or "qwen2"
  std::string name;          // general.name, may be empty
  std::int64_t layer_count = 0;
  std::int64_t embedding_length = 0;
  std::int64_t feed_forward_length = 0;
  std::int64_t head_count = 0;
  std::int64_t kv_head_count = 0;
  std::int64_t head_dim = 0;  // of keys and of values
  std::int64_t vocab_size = 0;
  std::int64_t context_length = 0;
  double rms_norm_epsilon = 0;
  RotaryPairs rotary_pairs = RotaryPairs::kAdjacent;
  double rope_freq_base = 10000.0;
  double rope_frequency_scale = 1.0;  // 1 / factor of linear scaling and of YaRN
  double rope_magnitude = 1.0;        // of sines and cosines, beside YaRN's own
  // YaRN; see rope.h. How much of it extrapolates, 0 to 1; 0: there is none, scaling is linear.
  double yarn_ext_factor = 0.0;
  double yarn_original_context = 0.0;  // tokens
  double yarn_beta_fast = 32.0;        // turns over the original context
  double yarn_beta_slow = 1.0;

  // Query heads that share a KV head: query head h reads KV head h / group_size().
  std::int64_t group_size() const { return head_count / kv_head_count; }
  std::int64_t query_length() const { return head_count * head_dim; }
  std::int64_t kv_length() const { return kv_head_count * head_dim; }
};

// INVALID_ARGUMENT names the key that is missing, of the wrong kind or out of range; UNIMPLEMENTED
// what Cairn cannot compute (another architecture, sliding windows, ...), and says so.
absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file);

// The same for reports about files that do not run.
struct ModelConfigReport {
  // What could be read. With problems it must not be computed with.
  ModelConfig config;
  bool shape_is_known = false;         // layers, lengths, heads and context could be read
  bool architecture_is_known = false;  // the tensors' names are those that Cairn knows
  std::vector<absl::Status> problems;  // all reasons against the file, in the order of reading
};
ModelConfigReport ReportModelConfig(const GgufFile& file);

}  // namespace cairn::compute
