// ForwardPass is one pass of tokens through the layers of a Model, in the order in which the papers
// write them.
//
// Threading:  one thread, which uses the pool; no two passes on one ForwardScratch.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "compute-node/kernels/activations.h"
#include "compute-node/kernels/matmul.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/model/config.h"
#include "compute-node/model/forward/forward.h"
#include "compute-node/model/forward/rope.h"
#include "compute-node/model/forward/weights.h"

namespace cairn::compute {

// Memory for a pass of `tokens_max` tokens, allocated and touched when it is made, so that a pass
// allocates nothing that grows with its tokens.
struct ForwardScratch {
  ForwardScratch(const ModelConfig& config, std::int64_t tokens_max);

  // For all tokens, (token, ...).
  std::vector<float> hidden;    // (embedding)
  std::vector<float> query;     // (head, head_dim)
  std::vector<float> attended;  // (head, head_dim)
  std::vector<float> key;       // (kv_head, head_dim)
  std::vector<float> value;     // (kv_head, head_dim)
  std::vector<float> cosines;   // (head_dim / 2)
  std::vector<float> sines;     // (head_dim / 2)
  // For the tokens that are worked on at a time.
  std::vector<float> normed;     // (embedding)
  std::vector<float> projected;  // (embedding)
  std::vector<float> gate;       // (feed_forward)
  std::vector<float> up;         // (feed_forward)
  std::vector<ActivationBlock> blocks;
  std::vector<float> logits;  // of several sequences' last tokens; grown when first needed
};

// What a pass reads of its model.
struct ModelParts {
  const ModelConfig& config;
  const Weights& weights;
  ThreadPool& pool;
  const RotaryAngles& rope;
};

class ForwardPass {
 public:
  // Borrows all; they outlive it. The sequences' tokens and positions are valid.
  ForwardPass(const ModelParts& parts, ForwardScratch& scratch,
              std::span<SequencePass* const> sequences, std::function<void()> between);

  // Sets the status of every sequence.
  void Run();

 private:
  // Rows of the pass: tokens that follow each other in the scratch memory.
  struct Rows {
    std::int64_t first;
    std::int64_t count;
  };
  struct Sequence {
    SequencePass* pass;
    Rows rows;
  };

  void Embed();
  void ComputeAngles();
  void RunLayer(std::int64_t index);
  void Attend(std::int64_t layer, const Sequence& sequence);
  // Calls body(rows) for a piece of `all` at a time.
  template <typename Body>
  void ForPieces(std::span<const Rows> all, const Body& body);
  // Row `row` of `rows`, as its token's.
  void RotateHeads(std::vector<float>& rows, std::int64_t row, std::int64_t token,
                   std::int64_t head_count);
  template <typename RowOf>
  void Multiply(std::int64_t token_count, std::int64_t column_count, const RowOf& row_of,
                const float* values, std::span<const MatMulJob> jobs);
  template <typename IndexOf>
  void MultiplyNormalised(std::int64_t count, const IndexOf& index_of, std::span<const float> norm,
                          std::span<const MatMulJob> jobs);
  void ProjectQueryKeyValue(const LayerWeights& layer, Rows rows);
  void PredictQueries(std::int64_t layer, Rows rows, Forecast forecast);
  void ProjectAttended(const LayerWeights& layer, Rows rows);
  void FeedForward(const LayerWeights& layer, Rows rows);
  void AddProjected(Rows rows);
  std::vector<Rows> WantedRows() const;
  void WriteLastLogits();
  void WriteAllLogits(const Sequence& sequence);
  bool AllFailed() const;

  const ModelConfig& config_;
  const Weights& weights_;
  ThreadPool& pool_;
  const RotaryAngles& rope_;
  ForwardScratch& scratch_;
  const std::function<void()> between_;
  std::vector<Sequence> sequences_;
  std::int64_t token_count_ = 0;
};

}  // namespace cairn::compute
