#include "compute-node/eval/attention_recall.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "compute-node/kernels/kv_entry.h"
#include "compute-node/retrieval/baselines/token_scores.h"

namespace cairn::eval {
namespace {

// The positions that were attended at a step, one a time. That each is there once is checked: a
// position that counts twice would be recall that is none.
std::vector<std::int64_t> AllAttended(const compute::AttendedEntries& told, std::int64_t position) {
  std::vector<std::int64_t> all = told.fetched;
  all.insert(all.end(), told.held.begin(), told.held.end());
  for (std::int64_t at = told.recent_first; at <= position; ++at) all.push_back(at);
  std::sort(all.begin(), all.end());
  CAIRN_CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
  CAIRN_CHECK_GE(all.front(), 0);
  CAIRN_CHECK_EQ(all.back(), position);
  return all;
}

}  // namespace

std::optional<std::int64_t> MeasuredSteps::NumberOf(std::int64_t position) const {
  if (position < first_position) return std::nullopt;
  if (!positions.has_value()) return position - first_position;
  const auto found = std::lower_bound(positions->begin(), positions->end(), position);
  if (found == positions->end() || *found != position) return std::nullopt;
  return found - positions->begin();
}

AttentionRecall::AttentionRecall(const compute::ModelConfig& config, const RecallOptions& options,
                                 ThreadPool& pool)
    : config_(config),
      options_(options),
      pool_(pool),
      keys_(static_cast<std::size_t>(config.layer_count * config.kv_head_count)),
      heads_(keys_.size()) {}

void AttentionRecall::Keep(const compute::AttentionBatch& batch) {
  const std::size_t dim = static_cast<std::size_t>(config_.head_dim);
  std::vector<std::byte> entry(
      static_cast<std::size_t>(KvEntryBytes(options_.kv_format, config_.head_dim)));
  std::vector<float> value(dim);
  for (std::int64_t head = 0; head < config_.kv_head_count; ++head) {
    std::vector<float>& keys = keys_[RowOf(batch.layer, head)];
    std::size_t to = static_cast<std::size_t>(batch.first_position) * dim;
    CAIRN_CHECK_LE(to, keys.size());
    keys.resize(to + static_cast<std::size_t>(batch.token_count) * dim);
    for (std::int64_t token = 0; token < batch.token_count; ++token) {
      const std::size_t from = static_cast<std::size_t>(token * config_.kv_head_count + head) * dim;
      compute::StoreKvEntry(batch.k.subspan(from, dim), batch.v.subspan(from, dim),
                            options_.kv_format, entry.data());
      compute::LoadKvEntry(entry.data(), options_.kv_format, std::span(keys).subspan(to, dim),
                           value);
      to += dim;
    }
  }
}

double AttentionRecall::Recall(const compute::AttentionBatch& batch, std::int64_t kv_head,
                               std::span<const std::int64_t> attended) const {
  const std::vector<float>& keys = keys_[RowOf(batch.layer, kv_head)];
  const std::int64_t dim = config_.head_dim;
  const std::int64_t group = config_.group_size();
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  std::vector<double> weights(static_cast<std::size_t>(batch.first_position + 1));
  double recall = 0;
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] = scale * static_cast<double>(
                               compute::Dot(batch.q.data() + head * dim,
                                            keys.data() + i * static_cast<std::size_t>(dim), dim));
    }
    const double largest = *std::max_element(weights.begin(), weights.end());
    double all = 0;
    for (double& weight : weights) {
      weight = std::exp(weight - largest);
      all += weight;
    }
    double found = 0;
    for (const std::int64_t position : attended) {
      found += weights[static_cast<std::size_t>(position)];
    }
    recall += found / all;
  }
  return recall / static_cast<double>(group);
}

void AttentionRecall::Count(const compute::AttendedEntries& told, std::int64_t attended_count,
                            std::int64_t token_count, HeadAttention& head) const {
  const std::int64_t budget = compute::SelectedTokens(options_.selection, token_count);
  ++head.step_count;
  head.attended_sum += attended_count;
  head.attended_max = std::max(head.attended_max, attended_count);
  head.over_count += attended_count > budget ? 1 : 0;
  head.over_max = std::max(head.over_max, attended_count - budget);
  head.arrived_sum += told.arrived_count;
}

void AttentionRecall::LayerAttended(const compute::AttentionBatch& batch,
                                    std::span<const compute::AttendedEntries> heads) {
  Keep(batch);
  const std::int64_t position = batch.first_position;
  const std::optional<std::int64_t> step = options_.steps.NumberOf(position);
  if (batch.token_count > 1 || !step.has_value()) return;
  const bool computes = *step % options_.steps.every == 0;
  std::vector<std::vector<std::int64_t>> attended(heads.size());
  pool_.ParallelFor(config_.kv_head_count, [&](std::int64_t kv_head) {
    const std::size_t index = static_cast<std::size_t>(kv_head);
    attended[index] = AllAttended(heads[index], position);
    HeadAttention& head = heads_[RowOf(batch.layer, kv_head)];
    Count(heads[index], std::ssize(attended[index]), position + 1, head);
    if (!computes) return;
    const double recall = Recall(batch, kv_head, attended[index]);
    head.recall_sum += recall;
    head.recall_min = std::min(head.recall_min, recall);
    ++head.recall_count;
  });
  if (!computes || !options_.selected) return;
  for (std::size_t head = 0; head < attended.size(); ++head) {
    options_.selected(position, RowOf(batch.layer, static_cast<std::int64_t>(head)),
                      attended[head]);
  }
}

}  // namespace cairn::eval
