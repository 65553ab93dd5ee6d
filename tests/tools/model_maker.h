// Writes complete model files with random weights: architecture keys, tensors, tokenizer. The
// weights mean nothing, but depend only on (seed, tensor name, row), so that files of one preset
// and seed in different types hold the same weights at different precision. Presets are tiny models
// of every architecture that Cairn loads and real shapes for timing.
//
// Threading:  pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "tests/tools/gguf_writer.h"

namespace cairn::test {

struct ModelPreset {
  std::string_view name;
  std::string_view description;
  std::string_view architecture;  // "llama" or "qwen2"
  std::string_view tokenizer;     // "spm", or the name of a BPE pre-tokenizer
  int32_t layer_count;
  int32_t embedding_length;
  int32_t head_count;
  int32_t kv_head_count;
  int32_t head_dim;
  int32_t feed_forward_length;
  int32_t vocab_size;
  int32_t context_length;
  float rope_base;
  float norm_epsilon;
  bool tied;                       // no output.weight
  bool biased;                     // biases on q, k, v
  bool biased_everywhere = false;  // on every matrix of a layer
  float rope_factor = 0;           // > 0: a rope_freqs tensor as Llama 3.1 defines it
  int32_t rope_original_context = 0;
  std::string_view rope_scaling = {};  // "linear" or "yarn" by metadata, with the next two
  float rope_scaling_factor = 0;
  float rope_attention_factor = 0;  // 0: the key is left out
  float rope_beta_fast = 0;         // the same
};

std::span<const ModelPreset> ModelPresets();  // in model_presets.cc

struct ModelOptions {
  std::string preset = {};
  // A name of TensorTypeFromName; q4_0 keeps the embedding and the output matrix as Q6_K. Or
  // "q4_k_m", Q4_K with some matrices in Q6_K. Rows that no block divides are stored in another
  // type of about as many bits.
  std::string type = "f32";
  uint64_t seed = 1;
  // A GGUF file whose tokenizer is copied instead of a small one being built. A vocabulary larger
  // than the preset's makes the model's vocabulary as large; a smaller one is filled with unused
  // tokens.
  std::string vocab_from = {};
};

// Errors:     INVALID_ARGUMENT for an unknown preset or type or an unreadable `vocab_from`.
absl::StatusOr<GgufWriter> MakeModel(const ModelOptions& options);

// MakeModel and write to `path`.
absl::Status WriteModel(const ModelOptions& options, const std::string& path);

}  // namespace cairn::test
