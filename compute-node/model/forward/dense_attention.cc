#include "compute-node/model/forward/dense_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/check.h"
#include "compute-node/kernels/attention.h"
#include "compute-node/kernels/kv_entry.h"

namespace cairn::compute {
namespace {

// Tokens that one index of a loop attends for: their query rows share the conversion of each block
// of entries, while their states stay in the cache.
constexpr std::int64_t kTokensPerIndex = 16;

}  // namespace

DenseAttention::DenseAttention(const ModelConfig& config, KvFormat format,
                               std::int64_t token_count_max, ThreadPool& pool)
    : config_(config),
      format_(format),
      token_count_max_(token_count_max),
      entry_bytes_(KvEntryBytes(format, config.head_dim)),
      pool_(pool),
      heads_(static_cast<std::size_t>(config.layer_count * config.kv_head_count)),
      layer_token_counts_(static_cast<std::size_t>(config.layer_count)) {}

std::int64_t DenseAttention::token_count() const {
  return *std::min_element(layer_token_counts_.begin(), layer_token_counts_.end());
}

void DenseAttention::Truncate(std::int64_t token_count) {
  CAIRN_CHECK_GE(token_count, 0);
  for (std::int64_t& count : layer_token_counts_) {
    count = std::min(count, token_count);
  }
}

std::byte* DenseAttention::EntryAt(std::int64_t layer, std::int64_t kv_head,
                                   std::int64_t position) {
  return heads_[static_cast<std::size_t>(layer * config_.kv_head_count + kv_head)].data() +
         position * entry_bytes_;
}

absl::Status DenseAttention::Store(const AttentionBatch& batch) {
  std::int64_t& held = layer_token_counts_[static_cast<std::size_t>(batch.layer)];
  if (batch.first_position != held) {
    return InvalidArgument(
        "store layer {}: the batch begins at position {}, but {} tokens are held", batch.layer,
        batch.first_position, held);
  }
  const std::int64_t end = batch.first_position + batch.token_count;
  if (end > token_count_max_) {
    return ResourceExhausted("store layer {}: {} tokens are over this cache's limit {}",
                             batch.layer, end, token_count_max_);
  }
  for (std::int64_t head = 0; head < config_.kv_head_count; ++head) {
    std::vector<std::byte>& entries =
        heads_[static_cast<std::size_t>(batch.layer * config_.kv_head_count + head)];
    if (static_cast<std::int64_t>(entries.size()) < end * entry_bytes_) {
      entries.resize(static_cast<std::size_t>(end * entry_bytes_));
    }
  }
  const auto row = static_cast<std::size_t>(config_.head_dim);
  for (std::int64_t token = 0; token < batch.token_count; ++token) {
    for (std::int64_t head = 0; head < config_.kv_head_count; ++head) {
      const auto from =
          static_cast<std::size_t>(token * config_.kv_length() + head * config_.head_dim);
      const KvMisfit misfit =
          StoreKvEntry(batch.k.subspan(from, row), batch.v.subspan(from, row), format_,
                       EntryAt(batch.layer, head, batch.first_position + token));
      if (misfit != KvMisfit::kNone) return KvMisfitError(batch, config_.head_dim, format_);
    }
  }
  held = end;
  return absl::OkStatus();
}

absl::Status DenseAttention::Attend(const AttentionBatch& batch) {
  CAIRN_RETURN_IF_ERROR(Store(batch));
  const std::int64_t index_count = (batch.token_count + kTokensPerIndex - 1) / kTokensPerIndex;
  pool_.ParallelFor(index_count * config_.kv_head_count, [&](std::int64_t index) {
    const std::int64_t first = index / config_.kv_head_count * kTokensPerIndex;
    AttendRows(batch, index % config_.kv_head_count, first,
               std::min(kTokensPerIndex, batch.token_count - first));
  });
  return absl::OkStatus();
}

void DenseAttention::AttendRows(const AttentionBatch& batch, std::int64_t kv_head,
                                std::int64_t first_token, std::int64_t token_count) {
  const std::int64_t group = config_.group_size();
  const std::int64_t head_dim = config_.head_dim;
  const std::int64_t state_floats = AttentionStateFloats(head_dim);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  std::vector<float> states(static_cast<std::size_t>(token_count * group * state_floats));
  InitAttention(states, head_dim);
  // Rows (token, head of the group): the queries of a token's group are neighbours, those of tokens
  // are not, so that they are gathered.
  std::vector<float> queries(static_cast<std::size_t>(token_count * group * head_dim));
  for (std::int64_t token = 0; token < token_count; ++token) {
    const float* from = batch.q.data() + (first_token + token) * config_.query_length() +
                        kv_head * group * head_dim;
    std::copy(from, from + group * head_dim, queries.begin() + token * group * head_dim);
  }
  const QueryRows rows{queries.data(), token_count * group, head_dim};
  std::vector<std::int32_t> visible(static_cast<std::size_t>(token_count * group));
  const std::byte* entries[kAttentionBlockEntries];
  const std::int64_t first_position = batch.first_position + first_token;
  const std::int64_t end = first_position + token_count;
  for (std::int64_t block = 0; block < end; block += kAttentionBlockEntries) {
    const std::int64_t count = std::min<std::int64_t>(kAttentionBlockEntries, end - block);
    for (std::int64_t e = 0; e < count; ++e) {
      entries[e] = EntryAt(batch.layer, kv_head, block + e);
    }
    for (std::int64_t row = 0; row < rows.row_count; ++row) {
      const std::int64_t position = first_position + row / group;
      visible[static_cast<std::size_t>(row)] =
          static_cast<std::int32_t>(std::clamp<std::int64_t>(position + 1 - block, 0, count));
    }
    AttendBlock({entries, static_cast<std::size_t>(count)}, format_, head_dim, scale, rows, visible,
                states);
  }
  for (std::int64_t token = 0; token < token_count; ++token) {
    float* out = batch.out.data() + (first_token + token) * config_.query_length() +
                 kv_head * group * head_dim;
    const auto floats = static_cast<std::size_t>(group * state_floats);
    FinishAttention({states.data() + token * group * state_floats, floats}, head_dim, out,
                    head_dim);
  }
}

}  // namespace cairn::compute
