// ModelConfig: the shape of a model, from the metadata of its GGUF file. Architectures llama (also
// Mistral, and Llama 3 with its rope_freqs tensor) and qwen2.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "compute-node/kernels/attention.h"
#include "compute-node/model/gguf.h"

namespace cairn::compute {

// Bounds on what is accepted; far above the models that Cairn is for.
inline constexpr std::int64_t kLayerCountMax = 512;
inline constexpr std::int64_t kEmbeddingLengthMax = 1 << 16;
inline constexpr std::int64_t kFeedForwardLengthMax = 1 << 20;
inline constexpr std::int64_t kHeadCountMax = 1024;
inline constexpr std::int64_t kVocabSizeMax = 1 << 22;
inline constexpr std::int64_t kContextLengthMax = 1 << 24;

enum class RopePairing {
  kAdjacent,  // (2i, 2i + 1): llama
  kHalves,    // (i, i + head_dim / 2): qwen2
};

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
  double rope_freq_base = 10000.0;
  double rope_frequency_scale = 1.0;  // 1 / factor of linear scaling
  RopePairing rope_pairing = RopePairing::kAdjacent;

  // Query heads that share a KV head: query head h reads KV head h / group_size().
  std::int64_t group_size() const { return head_count / kv_head_count; }
  std::int64_t query_length() const { return head_count * head_dim; }
  std::int64_t kv_length() const { return kv_head_count * head_dim; }
};

// INVALID_ARGUMENT names the key that is missing, of the wrong kind or out of range; UNIMPLEMENTED
// what Cairn cannot compute (another architecture, sliding windows, yarn), and says so.
absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file);

}  // namespace cairn::compute
