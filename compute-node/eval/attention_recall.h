// AttentionRecall measures, step by step, how much of the attention that a policy's own queries
// give lies on what the policy attended. It keeps all keys of the conversation, rounded as they are
// stored, and computes the softmax over all of them.
//
// Units:      shares of the softmax mass, 0 to 1: of a KV head the mean over the query heads that
//             share it.
// Threading:  as AttentionObserver.
// Memory:     all keys, 4 bytes a number.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "common/kv/kv_format.h"
#include "compute-node/kernels/thread_pool.h"
#include "compute-node/model/config.h"
#include "compute-node/retrieval/selection_options.h"
#include "compute-node/session/attention/stored_attention.h"

namespace cairn::eval {

// Which passes are measured.
struct MeasuredSteps {
  // Passes of one token from this position on are steps; what came before is the prompt.
  std::int64_t first_position = 0;
  // The mass is computed at the first step and at each `every`-th behind it.
  std::int64_t every = 1;
  // Where nullopt is not: only these positions are steps, ascending, none below first_position.
  std::optional<std::vector<std::int64_t>> positions{};

  // The step's number, from 0; nullopt: the position is no step.
  std::optional<std::int64_t> NumberOf(std::int64_t position) const;
};

// Called on the thread of the pass at each step whose mass is computed, once for each KV head of a
// layer, with what it attended, ascending. `row` counts (layer, KV head).
using SelectionSink = std::function<void(std::int64_t position, std::size_t row,
                                         std::span<const std::int64_t> attended)>;

struct RecallOptions {
  KvFormat kv_format = KvFormat::kF16;
  compute::SelectionOptions selection;
  MeasuredSteps steps;
  SelectionSink selected;  // may be empty
};

// What one (layer, KV head) attended, over all steps.
struct HeadAttention {
  double recall_sum = 0;  // over the steps that were computed
  double recall_min = 1;
  std::int64_t recall_count = 0;
  std::int64_t step_count = 0;
  std::int64_t attended_sum = 0;
  std::int64_t attended_max = 0;
  // Steps that attended more than SelectedTokens, and the largest difference.
  std::int64_t over_count = 0;
  std::int64_t over_max = 0;
  std::int64_t arrived_sum = 0;  // entries that came from the KV node

  double recall() const {
    return recall_count == 0 ? 0 : recall_sum / static_cast<double>(recall_count);
  }
};

class AttentionRecall : public compute::AttentionObserver {
 public:
  // Borrows `config` and `pool`, which outlive it.
  AttentionRecall(const compute::ModelConfig& config, const RecallOptions& options,
                  ThreadPool& pool);

  void LayerAttended(const compute::AttentionBatch& batch,
                     std::span<const compute::AttendedEntries> heads) override;

  // By (layer, KV head).
  const std::vector<HeadAttention>& heads() const { return heads_; }
  // Of a (layer, KV head): (position, head_dim), of all positions so far.
  std::span<const float> keys(std::size_t row) const { return keys_[row]; }

 private:
  std::size_t RowOf(int layer, std::int64_t kv_head) const {
    return static_cast<std::size_t>(layer * config_.kv_head_count + kv_head);
  }
  void Keep(const compute::AttentionBatch& batch);
  void Count(const compute::AttendedEntries& told, std::int64_t attended_count,
             std::int64_t token_count, HeadAttention& head) const;
  double Recall(const compute::AttentionBatch& batch, std::int64_t kv_head,
                std::span<const std::int64_t> attended) const;

  const compute::ModelConfig& config_;
  const RecallOptions options_;
  ThreadPool& pool_;
  std::vector<std::vector<float>> keys_;  // by (layer, KV head): (position, head_dim)
  std::vector<HeadAttention> heads_;
};

}  // namespace cairn::eval
