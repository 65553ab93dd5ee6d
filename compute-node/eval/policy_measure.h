// PolicyMeasure looks at one conversation under one policy and says what the policy attended and
// what its index holds. Whoever drives the conversation makes its policy here, has it tell this
// observer what it attends, and says how far it is.
//
// Threading:  as AttentionObserver; different layers' clusters may change at the same time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/kv/kv_format.h"
#include "compute-node/eval/attention_recall.h"
#include "compute-node/eval/cluster_shift.h"
#include "compute-node/eval/cluster_watch.h"
#include "compute-node/eval/divergence.h"
#include "compute-node/eval/output_file.h"
#include "compute-node/retrieval/dynakv/dynakv_policy.h"
#include "compute-node/retrieval/policy_registry.h"

namespace cairn::eval {

// Numbers of the model's, which a trace may have some of.
struct HeadName {
  std::int64_t layer = 0;
  std::int64_t kv_head = 0;
};

// What is measured of which policies.
struct MeasureOptions {
  std::vector<std::string> policies;  // each once
  compute::SelectionOptions selection;
  KvFormat kv_format = KvFormat::kF16;
  std::string small_key_bits;  // as in SessionOptions
  // Of the prompt, stored in one pass: as many as the model was loaded for.
  std::int64_t chunk_tokens = 4096;
  // At which of the steps recall is measured: the first, and one in so many behind it.
  std::int64_t recall_every = 8;
  // Whenever the conversation's tokens are a multiple of it, the index is looked at.
  std::int64_t index_every = 1024;
  // Whether clusters of policies with an index are followed, step by step (ClusterWatch), and
  // compared with other ways to make them (ClusterShift), behind the prompt, whenever the tokens
  // have doubled, and at the end.
  bool follow_clusters = false;
  // Gets what was attended where recall is measured, a line for each policy, step, layer and KV
  // head (SelectionLine); null: nothing does. Outlives the measuring.
  OutputFile* selections = nullptr;

  // INVALID_ARGUMENT for policies that are not there or named twice, and for what is out of range.
  absl::Status Validate() const;
};

// What the index held when the conversation had so many tokens.
struct IndexSample {
  std::int64_t token_count = 0;
  compute::PolicyStatistics statistics;
};

// When the conversation had so many tokens.
struct ShiftSamples {
  std::int64_t token_count = 0;
  std::vector<ShiftSample> heads;  // by (layer, KV head)
};

struct PolicyResult {
  std::string policy;
  bool reads_everything = false;  // then there is no budget
  // From full attention, of the tokens behind each fed one; without any where no model ran.
  Divergence divergence;
  std::vector<HeadAttention> heads;  // by (layer, KV head)
  std::vector<HeadName> head_names;  // of the same
  // Behind the prompt, at the multiples, and at the end; empty for a policy without an index.
  std::vector<IndexSample> index;
  // With follow_clusters, of a policy with an index.
  std::optional<ClusterCounts> clusters;
  std::vector<ShiftSamples> shift;
  std::int64_t entry_bytes = 0;  // one entry of one KV head
};

// Called behind each token that was fed or replayed.
using EvalProgress = std::function<void(std::int64_t done_count, std::int64_t all_count)>;

class PolicyMeasure : public compute::AttentionObserver {
 public:
  // Borrows `options`, `config` and `pool`, which outlive it. `head_names` are by (layer, KV head)
  // of the config.
  PolicyMeasure(const MeasureOptions& options, std::string policy, MeasuredSteps steps,
                const compute::ModelConfig& config, std::vector<HeadName> head_names,
                ThreadPool& pool);

  // The conversation's policy, which lives until Finish.
  absl::StatusOr<std::unique_ptr<compute::RetrievalPolicy>> MakePolicy(
      std::string_view name, const compute::PolicyOptions& options);
  // The conversation has so many tokens, of the prompt; and behind a step.
  void PromptDone(std::int64_t token_count);
  void StepDone(std::int64_t token_count);
  // REQUIRES: the last call.
  PolicyResult Finish(std::int64_t token_count);

  const std::string& policy() const { return result_.policy; }
  Divergence& divergence() { return result_.divergence; }

  void LayerAttended(const compute::AttentionBatch& batch,
                     std::span<const compute::AttendedEntries> heads) override;

 private:
  RecallOptions RecallOptionsOf(MeasuredSteps steps);
  void LookAtIndex(std::int64_t token_count);
  // Nothing as long as no clusters are there.
  void LookAtClusters(std::int64_t token_count);
  // As the policy sees them.
  std::vector<float> KeysOf(std::size_t row) const;

  const MeasureOptions& options_;
  const compute::ModelConfig& config_;
  const std::int64_t first_position_;
  ThreadPool& pool_;
  PolicyResult result_;
  AttentionRecall recall_;
  std::optional<ClusterWatch> watch_;
  std::vector<ClusterShift> shift_;                 // by (layer, KV head)
  const compute::ClusterKeeper* keeper_ = nullptr;  // of the conversation's policy
  const compute::DynaKvPolicy* dynakv_ = nullptr;   // if it is one
};

// All heads of a model.
std::vector<HeadName> HeadNamesOf(const compute::ModelConfig& config);

}  // namespace cairn::eval
