// Product kernels for one panel of 16 weight rows, compiled once for each instruction set by
// matmul.cc. No include guard against repetition beyond Highway's: the file is included once per
// target.
#if defined(CAIRN_MATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_MATMUL_INL_H_
#undef CAIRN_MATMUL_INL_H_
#else
#define CAIRN_MATMUL_INL_H_
#endif

#include <algorithm>

#include <hwy/highway.h>

#include "compute-node/kernels/matmul.h"
#include "compute-node/kernels/quant_panel-inl.h"

// As in quant_panel-inl.h.
#if HWY_TARGET == HWY_AVX3_DL
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace cairn::compute::HWY_NAMESPACE {

// How far before its use a product asks for memory. A product of one token has a few runs in flight
// at most, too little to cover the memory's latency, and the processor's own prefetching stops at
// every page. Nearer than 2 KiB is too late; from 6 KiB on it is slower again.
inline constexpr std::int64_t kPrefetchBytes = 3072;

// Asks for `kBytes`, that far behind `use`. They may lie behind the last weights. They come into
// the second cache: the first has few places for lines on their way, which the loads need.
template <std::int64_t kBytes>
HWY_INLINE void PrefetchAhead(const std::byte* use) {
  constexpr int kSecondCache = 2;  // GCC's "moderate locality"
  for (std::int64_t at = 0; at < kBytes; at += 64) {
    __builtin_prefetch(use + kPrefetchBytes + at, 0, kSecondCache);
  }
}

inline constexpr std::int64_t kLanes = hn::MaxLanes(Floats());

// `lane` is the first row of this pass in the panel.
struct PanelPass {
  const std::byte* panel;
  std::int64_t block_count;  // of activations: runs of 32 columns
  std::int64_t lane;

  // Whether the tile that begins with this token is the first to read the panel.
  bool IsFirstRead(std::int64_t first_token) const { return lane == 0 && first_token == 0; }
};

// Adds the products of 16 columns with a token's digits.
template <WeightType kType>
HWY_INLINE void DotHalf(const HalfBlock& w, const ActivationBlock& x, std::ptrdiff_t half,
                        IntVec& high, IntVec& low) {
  high = DotDigits<kType>(high, w, x.high + half * 16);
  low = DotDigits<kType>(low, w, x.low + half * 16);
}

// The number that digits make, before scaling.
HWY_INLINE FloatVec JoinDigits(IntVec high, IntVec low) {
  const Floats df;
  return hn::MulAdd(hn::ConvertTo(df, high), hn::Set(df, 254.0F), hn::ConvertTo(df, low));
}

// What takes the weights' offset back. One sum for both digits where all numbers stay exact in f32:
// below 2^24 for offsets to 32.
template <WeightType kType>
HWY_INLINE void StartBlock(const ActivationBlock& x, IntVec& high, IntVec& low) {
  const Ints di;
  constexpr int kOffset = kWeightOffset<kType>;
  constexpr bool kApart = kOffset > 32;
  high = kApart ? hn::Set(di, -kOffset * x.high_sum) : hn::Zero(di);
  low = kOffset == 0 ? hn::Zero(di)
                     : hn::Set(di, -kOffset * (kApart ? x.low_sum : x.sums[0] + x.sums[1]));
}

template <WeightType kType>
HWY_INLINE FloatVec DotOneHalf(const HalfBlock& w, const ActivationBlock& x, std::ptrdiff_t half) {
  static_assert(kWeightOffset<kType> <= 32);
  IntVec high = hn::Zero(Ints());
  IntVec low = hn::Set(Ints(), -kWeightOffset<kType> * x.sums[half]);
  DotHalf<kType>(w, x, half, high, low);
  return JoinDigits(high, low);
}

// Stores the sums of `kTokens` tokens, adding the bias.
template <int kTokens>
HWY_INLINE void StoreSums(const FloatVec* sums, const MatMulJob& job, std::int64_t first_token,
                          std::int64_t row) {
  const Floats df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  const std::int64_t valid = std::clamp<std::int64_t>(job.weights.row_count - row, 0, lanes);
  for (int t = 0; t < kTokens; ++t) {
    float* out = job.out + (first_token + t) * job.out_stride + row;
    if (valid == lanes) {
      const FloatVec sum =
          job.bias == nullptr ? sums[t] : hn::Add(sums[t], hn::LoadU(df, job.bias + row));
      hn::StoreU(sum, df, out);
      continue;
    }
    HWY_ALIGN float buffer[kPanelRows];
    hn::Store(sums[t], df, buffer);
    for (std::int64_t i = 0; i < valid; ++i) {
      out[i] = job.bias == nullptr ? buffer[i] : buffer[i] + job.bias[row + i];
    }
  }
}

// The products of one run of 32 columns with one token, added to `sum`.
template <WeightType kType>
HWY_INLINE FloatVec AddRun(const HalfBlock& first, const HalfBlock& second, const RunScales& scales,
                           const ActivationBlock& x, FloatVec sum) {
  const Floats df;
  const Ints di;
  const FloatVec token_scale = hn::Set(df, x.scale);
  FloatVec dot;
  if constexpr (kHalfScales<kType>) {
    dot = hn::MulAdd(DotOneHalf<kType>(second, x, 1), scales.half_1,
                     hn::Mul(DotOneHalf<kType>(first, x, 0), scales.half_0));
  } else {
    IntVec high;
    IntVec low;
    StartBlock<kType>(x, high, low);
    DotHalf<kType>(first, x, 0, high, low);
    DotHalf<kType>(second, x, 1, high, low);
    dot = JoinDigits(high, low);
  }
  if constexpr (kHalfMins<kType>) {
    const FloatVec mins =
        hn::MulAdd(hn::ConvertTo(df, hn::Set(di, x.sums[1])), scales.min_1,
                   hn::Mul(hn::ConvertTo(df, hn::Set(di, x.sums[0])), scales.min_0));
    return hn::MulAdd(hn::MulAdd(dot, scales.scale, mins), token_scale, sum);
  } else if constexpr (kMins<kType>) {
    const FloatVec mins =
        hn::Mul(hn::ConvertTo(df, hn::Set(di, x.sums[0] + x.sums[1])), scales.min_0);
    return hn::MulAdd(hn::MulAdd(dot, scales.scale, mins), token_scale, sum);
  } else {
    return hn::MulAdd(dot, hn::Mul(scales.scale, token_scale), sum);
  }
}

// Products of `kTokens` tokens with the rows of `kSteps` vectors, one behind the other.
template <WeightType kType, int kTokens, int kSteps>
void QuantisedTile(const PanelPass& pass, const ActivationRows& x, const MatMulJob& job,
                   std::int64_t first_token, std::int64_t row) {
  FloatVec sums[kSteps][kTokens];
  for (int step = 0; step < kSteps; ++step) {
    for (int t = 0; t < kTokens; ++t) {
      sums[step][t] = hn::Zero(Floats());
    }
  }
  const ActivationBlock* HWY_RESTRICT blocks = x.blocks + first_token * pass.block_count;
  constexpr StretchLayout kStretch = StretchLayoutOf(kType);
  constexpr std::int64_t kShareBytes = kStretch.bytes / kStretch.runs;
  const bool is_first_read = pass.IsFirstRead(first_token);
  const std::byte* HWY_RESTRICT stretch = pass.panel;
  for (std::int64_t b = 0; b < pass.block_count; b += kStretch.runs, stretch += kStretch.bytes) {
    const std::int64_t run_count = std::min<std::int64_t>(kStretch.runs, pass.block_count - b);
    for (std::int64_t run = 0; run < run_count; ++run) {
      if (is_first_read) PrefetchAhead<kShareBytes>(stretch + run * kShareBytes);
      for (int step = 0; step < kSteps; ++step) {
        const std::int64_t lane = pass.lane + step * kLanes;
        HalfBlock first;
        HalfBlock second;
        LoadWeights<kType>(stretch + kStretch.runs_at + run * kStretch.run_bytes + lane * 4, first,
                           second);
        const RunScales scales = LoadRunScales<kType>(stretch, run, lane);
        for (int t = 0; t < kTokens; ++t) {
          const ActivationBlock& block = blocks[t * pass.block_count + b + run];
          sums[step][t] = AddRun<kType>(first, second, scales, block, sums[step][t]);
        }
      }
    }
  }
  for (int step = 0; step < kSteps; ++step) {
    StoreSums<kTokens>(sums[step], job, first_token, row + step * kLanes);
  }
}

// One token by itself takes all rows at once: it waits for memory, which a second pass would not
// use. More tokens need the registers, and read the panel from the cache.
template <WeightType kType>
void QuantisedPanel(PanelPass pass, const ActivationRows& x, const MatMulJob& job,
                    std::int64_t row) {
  const std::int64_t last_token = x.token_count - x.token_count % 2;
  for (; last_token > 0 && pass.lane < kPanelRows; pass.lane += kLanes) {
    std::int64_t token = 0;
    for (; token + 8 <= last_token; token += 8) {
      QuantisedTile<kType, 8, 1>(pass, x, job, token, row + pass.lane);
    }
    for (; token + 4 <= last_token; token += 4) {
      QuantisedTile<kType, 4, 1>(pass, x, job, token, row + pass.lane);
    }
    for (; token < last_token; token += 2) {
      QuantisedTile<kType, 2, 1>(pass, x, job, token, row + pass.lane);
    }
  }
  if (last_token < x.token_count) {
    pass.lane = 0;
    QuantisedTile<kType, 1, kPanelRows / kLanes>(pass, x, job, last_token, row);
  }
}

struct F32Loader {
  static constexpr int kBytes = 4;
  static HWY_INLINE FloatVec Load(const std::byte* panel, std::int64_t index) {
    return hn::LoadU(Floats(), reinterpret_cast<const float*>(panel) + index);
  }
};

struct F16Loader {
  static constexpr int kBytes = 2;
  static HWY_INLINE FloatVec Load(const std::byte* panel, std::int64_t index) {
    return LoadHalves(panel + index * 2);
  }
};

struct BF16Loader {
  static constexpr int kBytes = 2;
  static HWY_INLINE FloatVec Load(const std::byte* panel, std::int64_t index) {
    const hn::Rebind<std::uint16_t, Floats> d16;
    const hn::RebindToUnsigned<Floats> du;
    const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(panel) + index);
    return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
  }
};

// Four partial sums over interleaved columns: shorter chains of dependent additions, smaller
// rounding error.
template <class Loader, int kTokens>
void FloatTile(const PanelPass& pass, const ActivationRows& x, const MatMulJob& job,
               std::int64_t first_token, std::int64_t row) {
  const Floats df;
  constexpr std::int64_t kChains = 4;
  FloatVec sums[kTokens][kChains];
  for (int t = 0; t < kTokens; ++t) {
    for (int c = 0; c < kChains; ++c) {
      sums[t][c] = hn::Zero(df);
    }
  }
  const float* HWY_RESTRICT values = x.values + first_token * x.column_count;
  std::int64_t k = 0;
  constexpr int kStepBytes = kChains * kPanelRows * Loader::kBytes;
  const bool is_first_read = pass.IsFirstRead(first_token);
  for (; k + kChains <= x.column_count; k += kChains) {
    if (is_first_read) PrefetchAhead<kStepBytes>(pass.panel + k / kChains * kStepBytes);
    for (int c = 0; c < kChains; ++c) {
      const FloatVec w = Loader::Load(pass.panel, (k + c) * kPanelRows + pass.lane);
      for (int t = 0; t < kTokens; ++t) {
        sums[t][c] = hn::MulAdd(w, hn::Set(df, values[t * x.column_count + k + c]), sums[t][c]);
      }
    }
  }
  for (; k < x.column_count; ++k) {
    const FloatVec w = Loader::Load(pass.panel, k * kPanelRows + pass.lane);
    for (int t = 0; t < kTokens; ++t) {
      sums[t][0] = hn::MulAdd(w, hn::Set(df, values[t * x.column_count + k]), sums[t][0]);
    }
  }
  FloatVec totals[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    totals[t] = hn::Add(hn::Add(sums[t][0], sums[t][1]), hn::Add(sums[t][2], sums[t][3]));
  }
  StoreSums<kTokens>(totals, job, first_token, row);
}

template <class Loader>
void FloatPanel(PanelPass pass, const ActivationRows& x, const MatMulJob& job, std::int64_t row) {
  for (; pass.lane < kPanelRows; pass.lane += kLanes) {
    std::int64_t token = 0;
    for (; token + 4 <= x.token_count; token += 4) {
      FloatTile<Loader, 4>(pass, x, job, token, row + pass.lane);
    }
    for (; token < x.token_count; ++token) {
      FloatTile<Loader, 1>(pass, x, job, token, row + pass.lane);
    }
  }
}

void ComputePanel(const ActivationRows& x, const MatMulJob& job, std::int64_t panel) {
  const PackedMatrix& weights = job.weights;
  const std::byte* data = weights.data + panel * PanelBytes(weights.type, weights.column_count);
  const PanelPass pass{data, weights.column_count / kActivationBlock, 0};
  const std::int64_t row = panel * kPanelRows;
  switch (weights.type) {
    case WeightType::kF32:
      return FloatPanel<F32Loader>(pass, x, job, row);
    case WeightType::kF16:
      return FloatPanel<F16Loader>(pass, x, job, row);
    case WeightType::kBF16:
      return FloatPanel<BF16Loader>(pass, x, job, row);
    default:
      ForQuantType(weights.type,
                   [&]<WeightType kType>() { QuantisedPanel<kType>(pass, x, job, row); });
  }
}

}  // namespace cairn::compute::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
