#include "compute-node/kernels/attention.h"

#include <algorithm>
#include <limits>

#include "common/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute-node/kernels/attention.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include "compute-node/kernels/attention-inl.h"

#if HWY_ONCE
namespace cairn::compute {

HWY_EXPORT(LoadBlockEntries);
HWY_EXPORT(LoadMeanEntries);
HWY_EXPORT(AttendBlockRows);
HWY_EXPORT(ScoreBlockRows);
HWY_EXPORT(AddRowWeights);

void InitAttention(std::span<float> states, std::int64_t head_dim) {
  const auto floats = static_cast<std::size_t>(AttentionStateFloats(head_dim));
  CAIRN_CHECK_EQ(states.size() % floats, 0U);
  std::fill(states.begin(), states.end(), 0.0F);
  for (std::size_t i = 0; i < states.size(); i += floats) {
    states[i] = -std::numeric_limits<float>::infinity();
  }
}

void LoadBlock(std::span<const std::byte* const> entries,
               std::span<const std::byte* const> next_entries, KvFormat format,
               std::int64_t head_dim, KvBlock& block) {
  CAIRN_CHECK_LE(entries.size(), static_cast<std::size_t>(kAttentionBlockEntries));
  CAIRN_CHECK(head_dim > 0 && head_dim <= kHeadDimMax && head_dim % 8 == 0);
  block.entry_count = std::ssize(entries);
  block.head_dim = head_dim;
  if (entries.empty()) return;
  HWY_DYNAMIC_DISPATCH(LoadBlockEntries)(entries, next_entries, format, block);
}

void LoadMeans(const QuantizedMeans& means, KvBlock& block) {
  const std::size_t count = means.keys.size();
  const std::int64_t head_dim = std::ssize(means.centre);
  CAIRN_CHECK(count <= kAttentionBlockEntries && means.values.size() == count);
  CAIRN_CHECK(means.key_scales.size() == count && means.value_scales.size() == count);
  CAIRN_CHECK(head_dim > 0 && head_dim <= kHeadDimMax && head_dim % 8 == 0);
  block.entry_count = std::ssize(means.keys);
  block.head_dim = head_dim;
  if (count > 0) HWY_DYNAMIC_DISPATCH(LoadMeanEntries)(means, block);
}

void AttendBlock(const KvBlock& block, float scale, const QueryRows& queries,
                 std::span<const std::int32_t> visible_counts, std::span<float> states) {
  CAIRN_CHECK_EQ(states.size(), static_cast<std::size_t>(queries.row_count *
                                                         AttentionStateFloats(block.head_dim)));
  CAIRN_CHECK(visible_counts.empty() ||
              visible_counts.size() == static_cast<std::size_t>(queries.row_count));
  if (block.entry_count == 0) return;
  HWY_DYNAMIC_DISPATCH(AttendBlockRows)({block, scale, queries, visible_counts, states.data()});
}

void AttendMeans(const KvBlock& block, std::span<const float> biases, float scale,
                 const QueryRows& queries, std::span<float> states) {
  CAIRN_CHECK_EQ(states.size(), static_cast<std::size_t>(queries.row_count *
                                                         AttentionStateFloats(block.head_dim)));
  CAIRN_CHECK_EQ(std::ssize(biases), block.entry_count);
  if (block.entry_count == 0) return;
  alignas(64) float padded[kAttentionBlockEntries] = {};
  std::copy(biases.begin(), biases.end(), padded);
  HWY_DYNAMIC_DISPATCH(AttendBlockRows)({block, scale, queries, {}, states.data(), padded});
}

void ScoreBlock(const KvBlock& block, float scale, const QueryRows& queries,
                std::span<const std::int32_t> visible_counts, std::span<float> scores) {
  CAIRN_CHECK_GE(std::ssize(scores), queries.row_count * kAttentionBlockEntries);
  CAIRN_CHECK(visible_counts.empty() ||
              visible_counts.size() == static_cast<std::size_t>(queries.row_count));
  HWY_DYNAMIC_DISPATCH(ScoreBlockRows)
  ({block, scale, queries, visible_counts, nullptr}, scores.data());
}

void AddWeights(std::span<const float> state, std::span<const float, kAttentionBlockEntries> scores,
                std::span<float> weights) {
  CAIRN_CHECK_LE(weights.size(), scores.size());
  HWY_DYNAMIC_DISPATCH(AddRowWeights)(state.data(), scores.data(), weights);
}

void AttendBlock(std::span<const std::byte* const> entries, KvFormat format, std::int64_t head_dim,
                 float scale, const QueryRows& queries,
                 std::span<const std::int32_t> visible_counts, std::span<float> states) {
  KvBlock block;
  LoadBlock(entries, {}, format, head_dim, block);
  AttendBlock(block, scale, queries, visible_counts, states);
}

void FinishAttention(std::span<const float> states, std::int64_t head_dim, float* out,
                     std::int64_t out_stride) {
  const std::int64_t floats = AttentionStateFloats(head_dim);
  const std::int64_t row_count = static_cast<std::int64_t>(states.size()) / floats;
  for (std::int64_t row = 0; row < row_count; ++row) {
    const float* state = states.data() + row * floats;
    // A sum that is not a number stays one: the caller must not take it for nothing attended.
    const float inverse = state[1] == 0.0F ? 0.0F : 1.0F / state[1];
    for (std::int64_t i = 0; i < head_dim; ++i) {
      out[row * out_stride + i] = state[2 + i] * inverse;
    }
  }
}

}  // namespace cairn::compute
#endif
