// The attention kernels, compiled once for each instruction set by attention.cc.
#if defined(CAIRN_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_ATTENTION_INL_H_
#undef CAIRN_ATTENTION_INL_H_
#else
#define CAIRN_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <limits>

#include <hwy/cache_control.h>
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "compute-node/kernels/attention.h"
#include "compute-node/kernels/kv_block-inl.h"

// Not per target: the arguments that cross the dispatch.
#ifndef CAIRN_ATTENTION_ARGUMENTS_
#define CAIRN_ATTENTION_ARGUMENTS_
namespace cairn::compute {
struct AttendArguments {
  const KvBlock& block;
  float scale;
  QueryRows queries;
  std::span<const std::int32_t> visible_counts;
  float* states;
  // Added to the scaled scores, aligned, kAttentionBlockEntries of them; null: nothing.
  const float* biases = nullptr;
};

// Query rows that are computed together: what a row needs, found once.
struct RowTile {
  static constexpr int kRowsMax = 8;
  const float* queries[kRowsMax];
  float* states[kRowsMax];
  std::int64_t visible[kRowsMax];
  int row_count = 0;
  const float* biases = nullptr;  // of AttendArguments
};
}  // namespace cairn::compute
#endif

HWY_BEFORE_NAMESPACE();
namespace cairn::compute::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Accumulators take two thirds of the registers; the rest are operands.
inline constexpr bool kManyRegisters = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL ||
                                       (HWY_ARCH_ARM_A64 && HWY_TARGET != HWY_SCALAR);
inline constexpr int kTileRows = kManyRegisters ? 8 : 4;
inline constexpr int kValueRows = 4;
inline constexpr int kValueVectors = kManyRegisters ? 4 : 2;
// From one row's scores, or weights, to the next one's.
inline constexpr std::int64_t kScoreStride = kAttentionBlockEntries;

// scores[r][e] = keys[e] . query[r] for two vectors of entries: for each pair one chain of sums
// over the elements in their order, so that it matters neither how many rows are computed together
// nor how long a vector is.
template <int kRows>
HWY_INLINE void ScoreTile(const KvBlock& block, const RowTile& tile, int first_row,
                          std::int64_t first_entry, float* HWY_RESTRICT scores) {
  const AttentionFloats df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  AttentionVec low[kRows];
  AttentionVec high[kRows];
  const float* queries[kRows];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    low[r] = hn::Zero(df);
    high[r] = hn::Zero(df);
    queries[r] = tile.queries[first_row + r];
  }
  const float* HWY_RESTRICT keys = block.keys + first_entry;
  for (std::int64_t i = 0; i < block.head_dim; ++i) {
    const auto key_low = hn::Load(df, keys);
    const auto key_high = hn::Load(df, keys + lanes);
    keys += kAttentionBlockEntries;
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const auto q = hn::Set(df, queries[r][i]);
      low[r] = hn::MulAdd(q, key_low, low[r]);
      high[r] = hn::MulAdd(q, key_high, high[r]);
    }
  }
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    float* HWY_RESTRICT to = scores + (first_row + r) * kScoreStride + first_entry;
    hn::Store(low[r], df, to);
    hn::Store(high[r], df, to + lanes);
  }
}

HWY_INLINE float ScalarExp(float x) {
  const hn::CappedTag<float, 4> d4;
  return x < -100.0F ? 0.0F : hn::GetLane(hn::Exp(d4, hn::Set(d4, x)));
}

// Turns the first `visible` scores into weights exp(scale * score + bias - max) and the rest into
// 0; updates max and sum and answers what the accumulator so far must be multiplied by.
HWY_NOINLINE float UpdateSoftmax(float scale, std::int64_t visible, const float* biases,
                                 float* HWY_RESTRICT scores, float& max, float& sum) {
  const AttentionFloats df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  const auto limit = hn::Set(df, static_cast<float>(visible));
  const auto hidden = hn::Set(df, -1e30F);
  auto largest_lanes = hidden;
  for (std::int64_t e = 0; e < kAttentionBlockEntries; e += lanes) {
    const auto seen = hn::Lt(hn::Iota(df, static_cast<float>(e)), limit);
    auto scaled = hn::Mul(hn::Load(df, scores + e), hn::Set(df, scale));
    if (biases != nullptr) scaled = hn::Add(scaled, hn::Load(df, biases + e));
    const auto score = hn::IfThenElse(seen, scaled, hidden);
    largest_lanes = hn::Max(largest_lanes, score);
    hn::Store(score, df, scores + e);
  }
  const float block_max = hn::GetLane(hn::MaxOfLanes(df, largest_lanes));
  const float largest = block_max > max ? block_max : max;
  auto weights_sum = hn::Zero(df);
  for (std::int64_t e = 0; e < kAttentionBlockEntries; e += lanes) {
    const auto below = hn::Sub(hn::Load(df, scores + e), hn::Set(df, largest));
    // Exp makes 0 of what is no number, and a damaged entry would only seem not to be attended.
    const auto weights = hn::MulAdd(below, hn::Zero(df), hn::Exp(df, below));
    weights_sum = hn::Add(weights_sum, weights);
    hn::Store(weights, df, scores + e);
  }
  // Of the first block max is -inf and the factor 0. Far into a context the maximum seldom rises.
  const float factor = largest > max ? ScalarExp(max - largest) : 1.0F;
  sum = sum * factor + hn::GetLane(hn::SumOfLanes(df, weights_sum));
  max = largest;
  return factor;
}

// acc[r] = acc[r] * factors[r] + sum of weights[r][e] * values[e] over entries [begin, end) and
// kVectors vectors of elements from `first` on: for each element one chain of sums, in the order of
// the entries.
template <class D, int kRows, int kVectors>
HWY_INLINE void AddValues(D d, const KvBlock& block, const RowTile& tile, int first_row,
                          std::int64_t begin, std::int64_t end, std::int64_t first,
                          const float* HWY_RESTRICT factors, const float* HWY_RESTRICT weights) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<D> sums[kRows][kVectors];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    const float* acc = tile.states[first_row + r] + 2 + first;
    const auto factor = hn::Set(d, factors[first_row + r]);
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = hn::Mul(hn::LoadU(d, acc + v * lanes), factor);
    }
  }
  const float* HWY_RESTRICT row_weights = weights + first_row * kScoreStride;
  const float* HWY_RESTRICT values = block.values + begin * block.head_dim + first;
  for (std::int64_t e = begin; e < end; ++e) {
    hn::Vec<D> value[kVectors];
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      value[v] = hn::LoadU(d, values + v * lanes);
    }
    values += block.head_dim;
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const auto weight = hn::Set(d, row_weights[r * kScoreStride + e]);
      HWY_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = hn::MulAdd(weight, value[v], sums[r][v]);
      }
    }
  }
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    float* acc = tile.states[first_row + r] + 2 + first;
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(sums[r][v], d, acc + v * lanes);
    }
  }
}

template <int kRows>
HWY_NOINLINE void AddAllValues(const KvBlock& block, const RowTile& tile, int first_row,
                               std::int64_t begin, std::int64_t end,
                               const float* HWY_RESTRICT factors,
                               const float* HWY_RESTRICT weights) {
  const AttentionFloats df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  std::int64_t i = 0;
  for (; i + kValueVectors * lanes <= block.head_dim; i += kValueVectors * lanes) {
    AddValues<AttentionFloats, kRows, kValueVectors>(df, block, tile, first_row, begin, end, i,
                                                     factors, weights);
  }
  for (; i + lanes <= block.head_dim; i += lanes) {
    AddValues<AttentionFloats, kRows, 1>(df, block, tile, first_row, begin, end, i, factors,
                                         weights);
  }
  if (i < block.head_dim) {
    // An odd multiple of 8, and vectors of 16.
    using Eight = hn::CappedTag<float, 8>;
    AddValues<Eight, kRows, 1>(Eight(), block, tile, first_row, begin, end, i, factors, weights);
  }
}

template <int kRows>
HWY_NOINLINE void AttendRows(const KvBlock& block, float scale, const RowTile& tile, int first_row,
                             float* HWY_RESTRICT weights) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(AttentionFloats()));
  const std::int64_t* visible = tile.visible + first_row;
  const std::int64_t most = *std::max_element(visible, visible + kRows);
  const std::int64_t common = *std::min_element(visible, visible + kRows);
  for (std::int64_t e = 0; e < most; e += 2 * lanes) {
    ScoreTile<kRows>(block, tile, first_row, e, weights);
  }
  float factors[RowTile::kRowsMax];
  for (int r = first_row; r < first_row + kRows; ++r) {
    factors[r] = UpdateSoftmax(scale, tile.visible[r], tile.biases, weights + r * kScoreStride,
                               tile.states[r][0], tile.states[r][1]);
  }
  if constexpr (kRows > kValueRows) {
    AddAllValues<kValueRows>(block, tile, first_row, 0, common, factors, weights);
    AddAllValues<kRows - kValueRows>(block, tile, first_row + kValueRows, 0, common, factors,
                                     weights);
  } else {
    AddAllValues<kRows>(block, tile, first_row, 0, common, factors, weights);
  }
  if (most == common) return;
  // Entries that only some rows see: a hidden one must not even be multiplied by zero, as it may
  // hold an infinity.
  for (int r = first_row; r < first_row + kRows; ++r) {
    factors[r] = 1.0F;
    if (tile.visible[r] > common) {
      AddAllValues<1>(block, tile, r, common, tile.visible[r], factors, weights);
    }
  }
}

// Rows [first_row, tile.row_count), kRows at a time as far as they go, then all that are left.
template <int kRows>
HWY_INLINE void AttendTile(const KvBlock& block, float scale, const RowTile& tile, int first_row,
                           float* HWY_RESTRICT weights) {
  for (; first_row + kRows <= tile.row_count; first_row += kRows) {
    AttendRows<kRows>(block, scale, tile, first_row, weights);
  }
  if constexpr (kRows > 1) {
    AttendTile<kRows - 1>(block, scale, tile, first_row, weights);
  }
}

// Rows of a chunk of tokens are more than the nearest cache holds, at distances that the processor
// does not guess.
HWY_INLINE void PrefetchRow(const AttendArguments& arguments, std::int64_t row) {
  if (row >= arguments.queries.row_count) return;
  constexpr std::int64_t kLineFloats = 16;
  const std::int64_t state_floats = AttentionStateFloats(arguments.block.head_dim);
  const float* query = arguments.queries.data + row * arguments.queries.stride;
  const float* state = arguments.states + row * state_floats;
  for (std::int64_t i = 0; i < arguments.block.head_dim; i += kLineFloats) {
    hwy::Prefetch(query + i);
  }
  for (std::int64_t i = 0; i < state_floats; i += kLineFloats) {
    hwy::Prefetch(state + i);
  }
}

void AttendBlockRows(const AttendArguments& arguments) {
  const std::int64_t entry_count = arguments.block.entry_count;
  HWY_ALIGN float weights[RowTile::kRowsMax * kScoreStride];
  RowTile tile;
  tile.biases = arguments.biases;
  for (std::int64_t row = 0; row < arguments.queries.row_count; ++row) {
    const std::int64_t visible =
        arguments.visible_counts.empty()
            ? entry_count
            : std::clamp<std::int64_t>(arguments.visible_counts[static_cast<std::size_t>(row)], 0,
                                       entry_count);
    PrefetchRow(arguments, row + RowTile::kRowsMax);
    if (visible == 0) continue;
    tile.queries[tile.row_count] = arguments.queries.data + row * arguments.queries.stride;
    tile.states[tile.row_count] =
        arguments.states + row * AttentionStateFloats(arguments.block.head_dim);
    tile.visible[tile.row_count] = visible;
    if (++tile.row_count == RowTile::kRowsMax) {
      AttendTile<kTileRows>(arguments.block, arguments.scale, tile, 0, weights);
      tile.row_count = 0;
    }
  }
  AttendTile<kTileRows>(arguments.block, arguments.scale, tile, 0, weights);
}

// The scores of rows [first_row, tile.row_count), as AttendTile has them.
template <int kRows>
HWY_INLINE void ScoreRows(const KvBlock& block, const RowTile& tile, int first_row,
                          float* HWY_RESTRICT scores) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(AttentionFloats()));
  for (; first_row + kRows <= tile.row_count; first_row += kRows) {
    for (std::int64_t e = 0; e < block.entry_count; e += 2 * lanes) {
      ScoreTile<kRows>(block, tile, first_row, e, scores);
    }
  }
  if constexpr (kRows > 1) ScoreRows<kRows - 1>(block, tile, first_row, scores);
}

void ScoreBlockRows(const AttendArguments& arguments, float* HWY_RESTRICT out) {
  const std::int64_t entry_count = arguments.block.entry_count;
  const QueryRows& queries = arguments.queries;
  HWY_ALIGN float scores[RowTile::kRowsMax * kScoreStride];
  for (std::int64_t first = 0; first < queries.row_count; first += RowTile::kRowsMax) {
    RowTile tile;
    tile.row_count =
        static_cast<int>(std::min<std::int64_t>(RowTile::kRowsMax, queries.row_count - first));
    for (int r = 0; r < tile.row_count; ++r) {
      tile.queries[r] = queries.data + (first + r) * queries.stride;
    }
    ScoreRows<kTileRows>(arguments.block, tile, 0, scores);
    for (int r = 0; r < tile.row_count; ++r, out += kScoreStride) {
      const auto row = static_cast<std::size_t>(first + r);
      const std::int64_t visible =
          arguments.visible_counts.empty()
              ? entry_count
              : std::clamp<std::int64_t>(arguments.visible_counts[row], 0, entry_count);
      for (std::int64_t e = 0; e < kScoreStride; ++e) {
        out[e] = e < visible ? arguments.scale * scores[r * kScoreStride + e]
                             : -std::numeric_limits<float>::infinity();
      }
    }
  }
}

void AddRowWeights(const float* HWY_RESTRICT state, const float* HWY_RESTRICT scores,
                   std::span<float> weights) {
  const AttentionFloats df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  HWY_ALIGN float of_block[kScoreStride];
  const auto max = hn::Set(df, state[0]);
  const auto sum = hn::Set(df, state[1]);
  for (std::int64_t e = 0; e < kScoreStride; e += lanes) {
    const auto below = hn::Sub(hn::LoadU(df, scores + e), max);
    hn::Store(hn::Div(hn::Exp(df, below), sum), df, of_block + e);
  }
  for (std::size_t e = 0; e < weights.size(); ++e) weights[e] += of_block[e];
}

}  // namespace cairn::compute::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
