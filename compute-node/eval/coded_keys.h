// CodedKeys attends through another attention with keys that a run-length code would give back
// (key_runs.h): each is taken back to what it was before rotary embedding, replaced by the key that
// stands for it, and rotated to its own position.
//
// Threading:  as KvAttention.
// Memory:     all keys in f32, and once more as the model rotated them if they are kept.
// Ownership:  borrows the attention below and the angles, which outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/kv/kv_format.h"
#include "compute-node/eval/key_runs.h"
#include "compute-node/model/forward/forward.h"

namespace cairn::eval {

class CodedKeys : public compute::KvAttention {
 public:
  // Keys are rounded to `format` before anything else is done with them. `keeps_rotated`: whether
  // rotated_keys will be asked for.
  CodedKeys(compute::KvAttention& attention, const compute::ModelConfig& config,
            const compute::RotaryAngles& angles, KvFormat format, bool keeps_rotated);

  // From the first token on; for (layer, KV head) by HeadIndex. Without it keys pass as they came.
  void Code(std::vector<KeyStandIns> stand_ins) { stand_ins_ = std::move(stand_ins); }

  absl::Status Attend(const compute::AttentionBatch& batch) override;

  std::size_t HeadIndex(std::int64_t layer, std::int64_t kv_head) const {
    return static_cast<std::size_t>(layer * config_.kv_head_count + kv_head);
  }
  // Of a layer and KV head: (token, head_dim), before rotation.
  std::span<const float> keys(std::size_t head) const { return keys_[head]; }
  // The same as the model rotated them, not rounded.
  std::span<const float> rotated_keys(std::size_t head) const { return rotated_keys_[head]; }

 private:
  // All heads of a token by `position`'s angles; by those of -position and the inverse of the
  // magnitude it is undone.
  void Rotate(std::int64_t position, double magnitude, std::span<float> keys);
  void RoundToFormat(std::span<float> key);

  compute::KvAttention& attention_;
  const compute::ModelConfig config_;
  const compute::RotaryAngles& angles_;
  const KvFormat format_;
  const bool keeps_rotated_;
  std::vector<float> cosines_;
  std::vector<float> sines_;
  std::vector<std::byte> entry_;
  std::vector<float> no_value_;
  std::vector<float> batch_keys_;
  std::vector<KeyStandIns> stand_ins_;
  std::vector<std::vector<float>> keys_;
  std::vector<std::vector<float>> rotated_keys_;
};

}  // namespace cairn::eval
