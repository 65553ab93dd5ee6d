#include "compute-node/eval/coded_keys.h"

#include <algorithm>

#include "compute-node/kernels/kv_entry.h"
#include "compute-node/kernels/ops.h"

namespace cairn::eval {

CodedKeys::CodedKeys(compute::KvAttention& attention, const compute::ModelConfig& config,
                     const compute::RotaryAngles& angles, KvFormat format, bool keeps_rotated)
    : attention_(attention),
      config_(config),
      angles_(angles),
      format_(format),
      keeps_rotated_(keeps_rotated),
      cosines_(angles.frequencies.size()),
      sines_(angles.frequencies.size()),
      entry_(static_cast<std::size_t>(KvEntryBytes(format, config.head_dim))),
      no_value_(static_cast<std::size_t>(config.head_dim)),
      keys_(HeadIndex(config.layer_count, 0)),
      rotated_keys_(HeadIndex(config.layer_count, 0)) {}

absl::Status CodedKeys::Attend(const compute::AttentionBatch& batch) {
  batch_keys_.assign(batch.k.begin(), batch.k.end());
  const auto dim = static_cast<std::size_t>(config_.head_dim);
  std::span<float> left = batch_keys_;
  for (std::int64_t token = 0; token < batch.token_count; ++token) {
    const std::int64_t position = batch.first_position + token;
    const std::span<float> keys = left.first(dim * static_cast<std::size_t>(config_.kv_head_count));
    left = left.subspan(keys.size());
    for (std::int64_t head = 0; keeps_rotated_ && head < config_.kv_head_count; ++head) {
      std::vector<float>& rotated = rotated_keys_[HeadIndex(batch.layer, head)];
      const std::span<float> key = keys.subspan(static_cast<std::size_t>(head) * dim, dim);
      rotated.insert(rotated.end(), key.begin(), key.end());
    }
    Rotate(-position, 1 / angles_.magnitude, keys);
    for (std::int64_t head = 0; head < config_.kv_head_count; ++head) {
      const std::size_t index = HeadIndex(batch.layer, head);
      const std::span<float> key = keys.subspan(static_cast<std::size_t>(head) * dim, dim);
      RoundToFormat(key);
      keys_[index].insert(keys_[index].end(), key.begin(), key.end());
      if (stand_ins_.empty()) continue;
      const auto stand_in =
          static_cast<std::size_t>(stand_ins_[index][static_cast<std::size_t>(position)]);
      std::copy_n(keys_[index].begin() + static_cast<std::ptrdiff_t>(stand_in * dim), dim,
                  key.begin());
    }
    Rotate(position, angles_.magnitude, keys);
  }
  if (stand_ins_.empty()) return attention_.Attend(batch);
  compute::AttentionBatch coded = batch;
  coded.k = batch_keys_;
  return attention_.Attend(coded);
}

void CodedKeys::Rotate(std::int64_t position, double magnitude, std::span<float> keys) {
  compute::ComputeRopeAngles(position, angles_.frequencies, magnitude, cosines_, sines_);
  const compute::RopeAngles angles{cosines_, sines_};
  for (; !keys.empty(); keys = keys.subspan(static_cast<std::size_t>(config_.head_dim))) {
    const std::span<float> key = keys.first(static_cast<std::size_t>(config_.head_dim));
    if (config_.rotary_pairs == compute::RotaryPairs::kHalves) {
      compute::RopeHalves(angles, key);
    } else {
      compute::RopeAdjacent(angles, key);
    }
  }
}

void CodedKeys::RoundToFormat(std::span<float> key) {
  compute::StoreKvEntry(key, no_value_, format_, entry_.data());
  compute::LoadKvEntry(entry_.data(), format_, key, no_value_);
}

}  // namespace cairn::eval
