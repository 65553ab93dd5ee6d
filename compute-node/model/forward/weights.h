// Weights: the named tensors of a model, their shapes checked, their matrices packed for the
// product kernels (kernels/packed_matrix.h), and beside them sums of the query weights, which are
// some percent more (query_sums.h). The file's own pages are dropped from memory as they are
// packed: resident memory is that of one copy. Only the embedding rows that tokens ask for are read
// from the mapping.
// Packed memory uses huge pages where the kernel offers them. All weights are looked through for
// NaN and infinity.
//
// With a cache folder the packed weights are kept in a file (packed_file.h) and mapped from there;
// where that fails they are packed in memory, and the log says why.
//
// Ownership:  borrows the GgufFile, which outlives it; owns the packed memory.
// Threading:  immutable after Load.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "compute-node/kernels/packed_matrix.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/model/config.h"
#include "compute-node/model/forward/packed_file.h"
#include "compute-node/model/gguf/gguf.h"

namespace cairn::compute {

// Shapes as (rows, columns); a bias is empty where the model has none.
struct LayerWeights {
  std::vector<float> attention_norm;  // (embedding)
  PackedMatrix query;                 // (head * head_dim, embedding)
  PackedMatrix key;                   // (kv_head * head_dim, embedding)
  PackedMatrix value;                 // (kv_head * head_dim, embedding)
  PackedMatrix attention_output;      // (embedding, head * head_dim)
  PackedMatrix query_sum;             // (kv_head * head_dim, embedding)
  std::vector<float> query_bias;
  std::vector<float> query_sum_bias;
  std::vector<float> key_bias;
  std::vector<float> value_bias;
  std::vector<float> attention_output_bias;
  std::vector<float> feed_forward_norm;  // (embedding)
  PackedMatrix gate;                     // (feed_forward, embedding)
  PackedMatrix up;                       // (feed_forward, embedding)
  PackedMatrix down;                     // (embedding, feed_forward)
  std::vector<float> gate_bias;
  std::vector<float> up_bias;
  std::vector<float> down_bias;
};

// The weight type of a tensor type, or UNIMPLEMENTED naming the tensor, its type and the supported
// ones.
absl::StatusOr<WeightType> ComputableType(const GgufTensor& tensor);

struct WeightsSurvey {
  // Reasons against the file: tensors that are missing, misshapen or of another model, each type
  // that cannot be computed with once.
  std::vector<absl::Status> problems;
  // What the packed matrices take.
  std::int64_t packed_bytes = 0;
  // Of these a token that is decoded by itself reads once whatever its policy: all but query sums.
  std::int64_t decode_bytes = 0;
};

class Weights {
 public:
  static absl::StatusOr<std::unique_ptr<Weights>> Load(const GgufFile& file,
                                                       const ModelConfig& config, ThreadPool& pool,
                                                       const PackedCache& cache,
                                                       const PackProgress& progress);
  // What Load would say, before it packs anything.
  static WeightsSurvey Survey(const GgufFile& file, const ModelConfig& config);
  ~Weights() = default;
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  const LayerWeights& layer(std::int64_t index) const {
    return layers_[static_cast<std::size_t>(index)];
  }
  const std::vector<float>& output_norm() const { return output_norm_; }
  const PackedMatrix& output() const { return output_; }  // (vocab, embedding)
  // Divisors of the rotary frequencies, head_dim / 2 of them; empty where the model has none.
  const std::vector<float>& rope_factors() const { return rope_factors_; }

  // FAILED_PRECONDITION if packed weights are mapped from a file that was written to since.
  absl::Status CheckIntact() const { return packed_.CheckIntact(); }

  // Decodes the embedding of `token`, which is below vocab_size.
  void ReadEmbedding(std::int64_t token, std::span<float> out) const;

 private:
  friend class WeightsLoader;
  Weights() = default;

  std::vector<LayerWeights> layers_;
  std::vector<float> output_norm_;
  std::vector<float> rope_factors_;
  PackedMatrix output_;
  WeightType embedding_type_ = WeightType::kF32;
  const GgufTensor* embedding_ = nullptr;
  AlignedMapping packed_;
};

}  // namespace cairn::compute
