// Model: the weights of one GGUF file and the forward pass over them. Forward reads layer by layer,
// as the papers write it, and leaves to a KvAttention where keys and values live and how they are
// attended.
//
// One pass takes tokens of several sequences: each weight that is read serves all of them.
//
// Determinism: the logits of a token depend only on the tokens' hidden states and on what the
// KvAttention answers, bit for bit: not on the thread count and not on how many other tokens, of
// this sequence or of others, are in the pass.
//
// Threading:  one Forward at a time for a Model (it owns scratch memory), but for one of at most
//             kStepTokensMax tokens from the `between` of a longer one; everything const is safe
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

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/kv/kv_format.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/model/config.h"
#include "compute-node/model/forward/packed_file.h"
#include "compute-node/model/forward/rope.h"
#include "compute-node/model/gguf/gguf.h"

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
  // If not null: to be called between pieces of long work, from the thread that called Attend.
  const std::function<void()>* between = nullptr;
};

// Why keys or values of the batch cannot be stored: FAILED_PRECONDITION about the first entry that
// `format` cannot hold, with the tensors that made it and what to do. REQUIRES: there is one.
absl::Status KvMisfitError(const AttentionBatch& batch, std::int64_t head_dim, KvFormat format);

// What a KvAttention wants to know of a layer's queries ahead.
enum class Forecast {
  kNone,
  kQuerySums,  // (kv_head, head_dim): of the queries of the heads that share a KV head
  kQueries,    // (head, head_dim)
};

// Where keys and values live and how they are attended is not the model's business: Forward calls
// Attend once a layer, in layer order, from the thread that called Forward. An error ends Forward
// with it. Attend may use the model's thread pool, which is idle then.
class KvAttention {
 public:
  virtual ~KvAttention() = default;
  virtual absl::Status Attend(const AttentionBatch& batch) = 0;

  // What Predict should be called with for the layer, in a pass of one token. Queries cost the
  // product with the layer's query weights once more; sums, in a model whose KV heads have several
  // query heads, less by that.
  virtual Forecast WantedForecast(int /*layer*/) const { return Forecast::kNone; }
  // About what the queries of `layer`, or their sums, will be, rotated: projected from what the
  // layer before has without its feed-forward part, which is computed meanwhile. Called between the
  // Attend of the layer before and that of `layer`; the same whatever else the pass computes.
  virtual void Predict(int /*layer*/, std::span<const float> /*queries*/) {}
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

// What one sequence has in a pass.
struct SequencePass {
  std::span<const std::int32_t> tokens;  // consecutive from first_position
  std::int64_t first_position = 0;
  KvAttention* attention = nullptr;
  ForwardOutput output;
  // May be null; when it becomes true, the sequence ends with CANCELLED between two layers.
  const std::atomic<bool>* cancel = nullptr;
  // How it ended: OK; INVALID_ARGUMENT for a token id or position out of range; CANCELLED; what the
  // KvAttention answered; what Model::CheckIntact says behind the pass. Set by Forward.
  absl::Status status;
};

// A pass of at most so many tokens is a step: short, and allowed within a longer pass.
inline constexpr std::int64_t kStepTokensMax = 128;

struct ModelOptions {
  int thread_count = 1;  // threads that compute, the caller included; at most kThreadCountMax
  // The most tokens that one Forward takes. Scratch memory for that many is allocated and touched
  // by Load.
  std::int64_t batch_tokens_max = 4096;
  // Where packed weights are kept from one load to the next (weights.h); empty: nowhere.
  std::string packed_directory;
  // Models with fewer bytes of packed weights are packed in memory all the same.
  std::int64_t packed_bytes_min = kPackedFileBytesMin;
  // Called during Load with the bytes of weights done and the total; may be empty.
  std::function<void(std::int64_t done_bytes, std::int64_t total_bytes)> progress;
};

inline constexpr std::int64_t kBatchTokensMax = 1 << 16;

// Bytes of scratch memory that Load allocates for passes of `batch_tokens`.
std::int64_t ForwardScratchBytes(const ModelConfig& config, std::int64_t batch_tokens);

struct ForwardScratch;
class Weights;

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

  const ModelConfig& config() const { return config_; }
  const GgufFile& file() const { return *file_; }
  ThreadPool& pool() { return pool_; }
  const RotaryAngles& rotary_angles() const { return rope_; }
  // The digest of the whole file, or of all parts, 32 bytes; computed when first asked for, then
  // cached on disk (model_digest.h). FAILED_PRECONDITION if the file is no longer what was loaded.
  absl::StatusOr<std::string> Digest() const;

  // FAILED_PRECONDITION, from then on, once a file that is computed with was written to or could
  // not be read.
  absl::Status CheckIntact() const;

  // Runs 1 to batch_tokens_max tokens in all through the model. A sequence that fails does not
  // disturb the others. `between`, if set, is called by a pass of more than kStepTokensMax tokens
  // between its pieces of work, some tens of milliseconds apart; the pool is idle then.
  void Forward(std::span<SequencePass* const> sequences, const std::function<void()>& between);
  // The same for one sequence; answers its status.
  absl::Status Forward(std::span<const std::int32_t> tokens, std::int64_t first_position,
                       KvAttention& attention, const ForwardOutput& output,
                       const std::atomic<bool>* cancel);

 private:
  explicit Model(const ModelOptions& options);
  absl::Status CheckSequence(const SequencePass& sequence) const;

  ThreadPool pool_;
  const std::int64_t batch_tokens_max_;
  std::unique_ptr<GgufFile> file_;
  ModelConfig config_;
  std::unique_ptr<Weights> weights_;
  RotaryAngles rope_;
  std::unique_ptr<ForwardScratch> scratch_;
  std::unique_ptr<ForwardScratch> step_scratch_;
  mutable Mutex digest_mutex_;
  mutable std::string digest_ CAIRN_GUARDED_BY(digest_mutex_);
  mutable Mutex intact_mutex_;
  mutable absl::Status not_intact_ CAIRN_GUARDED_BY(intact_mutex_);  // what stays
};

}  // namespace cairn::compute
