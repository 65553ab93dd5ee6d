#include "compute-node/eval/policy_measure.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "compute-node/eval/report.h"
#include "compute-node/eval/watched_policy.h"
#include "compute-node/retrieval/policy_choice.h"

namespace cairn::eval {

absl::Status MeasureOptions::Validate() const {
  if (policies.empty()) return InvalidArgument("evaluate: name at least one policy");
  for (std::size_t i = 0; i < policies.size(); ++i) {
    const compute::PolicyChoice choice{policies[i], selection};
    CAIRN_RETURN_IF_ERROR(choice.Validate());
    const auto before = policies.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(policies.begin(), before, *before) != before) {
      return InvalidArgument("evaluate: policy {} is named twice", *before);
    }
  }
  if (recall_every < 1 || index_every < 1) {
    return InvalidArgument("evaluate: every {} tokens recall and every {} the index: at least 1",
                           recall_every, index_every);
  }
  return absl::OkStatus();
}

PolicyMeasure::PolicyMeasure(const MeasureOptions& options, std::string policy, MeasuredSteps steps,
                             const compute::ModelConfig& config, std::vector<HeadName> head_names,
                             ThreadPool& pool)
    : options_(options),
      config_(config),
      first_position_(steps.first_position),
      pool_(pool),
      recall_(config, RecallOptionsOf(std::move(steps)), pool) {
  result_.policy = std::move(policy);
  result_.head_names = std::move(head_names);
  CAIRN_CHECK_EQ(result_.head_names.size(), recall_.heads().size());
}

RecallOptions PolicyMeasure::RecallOptionsOf(MeasuredSteps steps) {
  RecallOptions recall{.kv_format = options_.kv_format,
                       .selection = options_.selection,
                       .steps = std::move(steps),
                       .selected = nullptr};
  if (options_.selections == nullptr) return recall;
  recall.selected = [this](std::int64_t position, std::size_t row,
                           std::span<const std::int64_t> attended) {
    options_.selections->Write(SelectionLine({.policy = result_.policy,
                                              .position = position,
                                              .head = result_.head_names[row],
                                              .attended = attended}));
  };
  return recall;
}

absl::StatusOr<std::unique_ptr<compute::RetrievalPolicy>> PolicyMeasure::MakePolicy(
    std::string_view name, const compute::PolicyOptions& options) {
  std::unique_ptr<compute::RetrievalPolicy> policy;
  CAIRN_ASSIGN_OR_RETURN(policy, compute::MakePolicy(name, options));
  keeper_ = &policy->keeper();
  result_.reads_everything = policy->traits().selects_without_queries;
  result_.entry_bytes = options.layout.EntryBytes(0);
  if (!options_.follow_clusters || policy->paged_index() == nullptr) return policy;
  dynakv_ = dynamic_cast<const compute::DynaKvPolicy*>(policy.get());
  watch_.emplace(config_, ClusterWatch::Options{.selection = options.selection,
                                                .first_position = first_position_,
                                                .together_every = options_.recall_every});
  shift_.assign(recall_.heads().size(),
                ClusterShift(options.layout.head_dim, options.selection.cluster_target_entries,
                             options.selection.seed));
  return std::make_unique<WatchedPolicy>(std::move(policy), *watch_);
}

void PolicyMeasure::PromptDone(std::int64_t token_count) {
  LookAtIndex(token_count);
  LookAtClusters(token_count);
}

void PolicyMeasure::StepDone(std::int64_t token_count) {
  if (token_count % options_.index_every == 0) LookAtIndex(token_count);
  const std::vector<ShiftSamples>& samples = result_.shift;
  if (!samples.empty() && token_count == 2 * samples.back().token_count) {
    LookAtClusters(token_count);
  }
}

PolicyResult PolicyMeasure::Finish(std::int64_t token_count) {
  LookAtIndex(token_count);
  LookAtClusters(token_count);
  result_.heads = recall_.heads();
  if (watch_.has_value()) result_.clusters = watch_->Counts();
  return std::move(result_);
}

void PolicyMeasure::LayerAttended(const compute::AttentionBatch& batch,
                                  std::span<const compute::AttendedEntries> heads) {
  recall_.LayerAttended(batch, heads);
  if (watch_.has_value()) watch_->LayerAttended(batch, heads);
}

void PolicyMeasure::LookAtIndex(std::int64_t token_count) {
  compute::PolicyStatistics statistics = keeper_->statistics();
  const bool is_new = result_.index.empty() || result_.index.back().token_count < token_count;
  if (!statistics.heads.empty() && is_new) {
    result_.index.push_back({token_count, std::move(statistics)});
  }
}

void PolicyMeasure::LookAtClusters(std::int64_t token_count) {
  if (!watch_.has_value()) return;
  ShiftSamples samples{.token_count = token_count,
                       .heads = std::vector<ShiftSample>(shift_.size())};
  const bool is_old = !result_.shift.empty() && result_.shift.back().token_count == token_count;
  for (std::size_t row = 0; row < shift_.size(); ++row) {
    if (is_old || watch_->Clusters(row).empty()) return;
  }
  pool_.ParallelFor(std::ssize(shift_), [&](std::int64_t index) {
    const std::size_t row = static_cast<std::size_t>(index);
    samples.heads[row] = shift_[row].Sample(KeysOf(row), compute::kSinkTokens,
                                            watch_->stored_end(row), watch_->Clusters(row));
  });
  result_.shift.push_back(std::move(samples));
}

std::vector<float> PolicyMeasure::KeysOf(std::size_t row) const {
  const std::span<const float> kept = recall_.keys(row);
  std::vector<float> keys(kept.begin(), kept.end());
  const std::int64_t number = static_cast<std::int64_t>(row);
  if (dynakv_ != nullptr) {
    dynakv_
        ->metric(static_cast<std::int32_t>(number / config_.kv_head_count),
                 static_cast<std::int32_t>(number % config_.kv_head_count))
        .StretchKeys(keys);
  }
  return keys;
}

std::vector<HeadName> HeadNamesOf(const compute::ModelConfig& config) {
  std::vector<HeadName> names;
  for (std::int64_t layer = 0; layer < config.layer_count; ++layer) {
    for (std::int64_t head = 0; head < config.kv_head_count; ++head) names.push_back({layer, head});
  }
  return names;
}

}  // namespace cairn::eval
