// Model: the weights of one GGUF file and the forward pass over them. Forward reads layer by layer,
// as the papers write it, and leaves to a KvAttention where keys and values live and how they are
// attended.
//
// Determinism: the logits of a token depend only on the tokens' hidden states and on what the
// KvAttention answers, bit for bit: not on the thread count and not on how many other tokens are in
// the batch.
//
// Threading:  one Forward at a time for a Model (it owns scratch memory); everything const is safe
//             from any thread.
// Ownership:  the weights stay in the file's mapping, or in repacked copies that replace it
//             (weights.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/model/config.h"
#include "compute-node/model/gguf.h"

namespace cairn::compute {

// One layer's attention input for tokens [first_position, first_position + token_count).
struct AttentionBatch {
  int layer;
  std::int64_t first_position;
  std::int64_t token_count;
  std::span<const float> q;  // (token, head, head_dim), rotated
  std::span<const float> k;  // (token, kv_head, head_dim), rotated
  std::span<const float> v;  // (token, kv_head, head_dim)
  std::span<float> out;      // (token, head, head_dim)
};

// Where keys and values live and how they are attended is not the model's business: Forward calls
// Attend once a layer, in layer order, from the thread that called Forward. An error ends Forward
// with it. Attend may use the model's thread pool, which is idle then.
class KvAttention {
 public:
  virtual ~KvAttention() = default;
  virtual absl::Status Attend(const AttentionBatch& batch) = 0;
};

// What Forward computes after the last layer. Without a target Forward only fills the KV cache.
struct ForwardOutput {
  // If not empty: the last token's logits, vocab_size floats.
  std::span<float> last_logits;
  // If set: called with every token's logits, in order, some rows at a time: `logits` is (row,
  // vocab_size), the first row belongs to token `first_token` of the batch. The span is valid
  // during the call. An error ends Forward with it.
  std::function<absl::Status(std::int64_t first_token, std::span<const float> logits)> all_logits;
};

struct ModelOptions {
  int thread_count = 1;  // threads that compute, the caller included; at most kThreadCountMax
  // The most tokens that one Forward takes. Scratch memory for that many is allocated and touched
  // by Load.
  std::int64_t batch_tokens_max = 4096;
  // Called during Load with the bytes of weights done and the total; may be empty.
  std::function<void(std::int64_t done_bytes, std::int64_t total_bytes)> progress;
};

inline constexpr std::int64_t kBatchTokensMax = 1 << 16;

class Model {
 public:
  // Errors:     those of GgufFile::Open and ReadModelConfig; INVALID_ARGUMENT for a missing or
  //             misshapen tensor, UNIMPLEMENTED for a tensor type that cannot be computed with,
  //             both naming the tensor.
  static absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& path,
                                                     const ModelOptions& options);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const;
  const GgufFile& file() const;
  ThreadPool& pool();
  // SHA-256 of the whole file, 32 bytes; computed when first asked for, then cached on disk
  // (model_digest.h).
  absl::StatusOr<std::string> Digest() const;

  // Runs `tokens` (1 to batch_tokens_max of one sequence, consecutive from `first_position`)
  // through the model. `cancel` may be null; when it becomes true, Forward ends with CANCELLED
  // between two layers.
  //
  // Errors:     INVALID_ARGUMENT for a token id or position out of range; CANCELLED; what the
  //             KvAttention answered.
  absl::Status Forward(std::span<const std::int32_t> tokens, std::int64_t first_position,
                       KvAttention& attention, const ForwardOutput& output,
                       const std::atomic<bool>* cancel);

 private:
  struct Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::compute
