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

// Highway's AVX3_DL is only chosen where AVX512_VNNI is there, but it does not let the compiler use
// it.
#if HWY_TARGET == HWY_AVX3_DL
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace cairn::compute::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Vectors of at most a panel's 16 rows; shorter ones take a panel in several passes.
using Floats = hn::CappedTag<float, kPanelRows>;
using Ints = hn::RebindToSigned<Floats>;
using Bytes = hn::Repartition<std::int8_t, Ints>;
using FloatVec = hn::Vec<Floats>;
using IntVec = hn::Vec<Ints>;
using ByteVec = hn::Vec<Bytes>;

// 8-bit dot products of VNNI take one unsigned factor: weights then carry an offset that the digit
// sums undo.
#if HWY_TARGET == HWY_AVX3_DL
inline constexpr bool kUnsignedWeights = true;
#else
inline constexpr bool kUnsignedWeights = false;
#endif

// sum + the products of each lane's four bytes, exactly.
HWY_INLINE IntVec DotAccumulate(IntVec sum, ByteVec weights, ByteVec digits) {
#if HWY_TARGET == HWY_AVX3_DL
  return IntVec{_mm512_dpbusd_epi32(sum.raw, weights.raw, digits.raw)};
#elif HWY_TARGET == HWY_AVX2
  // |weight| <= 128 and |digit| <= 127, so that negating a digit is exact and a pair of products
  // fits 16 bits.
  const __m256i pairs =
      _mm256_maddubs_epi16(_mm256_abs_epi8(weights.raw), _mm256_sign_epi8(digits.raw, weights.raw));
  return hn::Add(sum, IntVec{_mm256_madd_epi16(pairs, _mm256_set1_epi16(1))});
#else
  const Ints di;
  const hn::Repartition<std::int16_t, Ints> d16;
  const auto w = hn::BitCast(d16, weights);
  const auto x = hn::BitCast(d16, digits);
  const auto even =
      hn::Mul(hn::ShiftRight<8>(hn::ShiftLeft<8>(w)), hn::ShiftRight<8>(hn::ShiftLeft<8>(x)));
  const auto odd = hn::Mul(hn::ShiftRight<8>(w), hn::ShiftRight<8>(x));
  const auto pairs = hn::BitCast(di, hn::Add(even, odd));
  return hn::Add(sum,
                 hn::Add(hn::ShiftRight<16>(hn::ShiftLeft<16>(pairs)), hn::ShiftRight<16>(pairs)));
#endif
}

HWY_INLINE ByteVec LoadBytes(const std::byte* HWY_RESTRICT from) {
  return hn::LoadU(Bytes(), reinterpret_cast<const std::int8_t*>(from));
}

// Four consecutive digits in every lane.
HWY_INLINE ByteVec BroadcastDigits(const std::int8_t* HWY_RESTRICT digits) {
  std::int32_t four;
  hwy::CopyBytes<4>(digits, &four);
  return hn::BitCast(Bytes(), hn::Set(Ints(), four));
}

HWY_INLINE FloatVec LoadScales(const std::byte* HWY_RESTRICT from) {
  const hn::Rebind<hwy::float16_t, Floats> d16;
  return hn::PromoteTo(Floats(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
}

// The weights of 16 columns: four groups of four.
struct HalfBlock {
  ByteVec g0, g1, g2, g3;
};

// The dot product of 16 columns with a token's digits, exactly, before scaling.
template <int kOffset>
HWY_INLINE FloatVec DotHalf(const HalfBlock& w, const ActivationBlock& x, std::ptrdiff_t half,
                            IntVec& high, IntVec& low) {
  const Ints di;
  if (kUnsignedWeights) {
    high = hn::Add(high, hn::Set(di, -kOffset * x.high_sums[half]));
    low = hn::Add(low, hn::Set(di, -kOffset * x.low_sums[half]));
  }
  const std::int8_t* h = x.high + half * 16;
  const std::int8_t* l = x.low + half * 16;
  high = DotAccumulate(high, w.g0, BroadcastDigits(h));
  low = DotAccumulate(low, w.g0, BroadcastDigits(l));
  high = DotAccumulate(high, w.g1, BroadcastDigits(h + 4));
  low = DotAccumulate(low, w.g1, BroadcastDigits(l + 4));
  high = DotAccumulate(high, w.g2, BroadcastDigits(h + 8));
  low = DotAccumulate(low, w.g2, BroadcastDigits(l + 8));
  high = DotAccumulate(high, w.g3, BroadcastDigits(h + 12));
  low = DotAccumulate(low, w.g3, BroadcastDigits(l + 12));
  const Floats df;
  return hn::MulAdd(hn::ConvertTo(df, high), hn::Set(df, 254.0F), hn::ConvertTo(df, low));
}

// Where this pass's lanes begin: `lane` is the first row of the pass in the panel.
struct PanelPass {
  const std::byte* panel;
  PanelLayout layout;
  std::int64_t block_count;
  std::int64_t lane;
};

struct Q8Loader {
  static constexpr int kOffset = 128;
  static constexpr bool kSubScales = false;
  static HWY_INLINE void Load(const PanelPass& pass, std::int64_t block, HalfBlock& first,
                              HalfBlock& second) {
    const std::byte* from = pass.panel + block * 512 + pass.lane * 4;
    first = {Signed(from), Signed(from + 64), Signed(from + 128), Signed(from + 192)};
    second = {Signed(from + 256), Signed(from + 320), Signed(from + 384), Signed(from + 448)};
  }
  static HWY_INLINE ByteVec Signed(const std::byte* HWY_RESTRICT from) {
    const ByteVec v = LoadBytes(from);
    return kUnsignedWeights ? hn::Xor(v, hn::Set(Bytes(), static_cast<std::int8_t>(-128))) : v;
  }
  static HWY_INLINE FloatVec Scale(const PanelPass& pass, std::int64_t block) {
    return LoadScales(pass.panel + pass.layout.scales + block * 32 + pass.lane * 2);
  }
};

// Nibbles of both halves of a block.
HWY_INLINE ByteVec LowNibbles(ByteVec v) { return hn::And(v, hn::Set(Bytes(), std::int8_t{15})); }
HWY_INLINE ByteVec HighNibbles(ByteVec v) {
  const hn::Repartition<std::uint16_t, Ints> d16;
  return LowNibbles(hn::BitCast(Bytes(), hn::ShiftRight<4>(hn::BitCast(d16, v))));
}

struct Q4Loader {
  static constexpr int kOffset = 8;
  static constexpr bool kSubScales = false;
  static HWY_INLINE void Load(const PanelPass& pass, std::int64_t block, HalfBlock& first,
                              HalfBlock& second) {
    const std::byte* from = pass.panel + block * 256 + pass.lane * 4;
    const ByteVec v0 = LoadBytes(from);
    const ByteVec v1 = LoadBytes(from + 64);
    const ByteVec v2 = LoadBytes(from + 128);
    const ByteVec v3 = LoadBytes(from + 192);
    first = {Shifted(LowNibbles(v0)), Shifted(LowNibbles(v1)), Shifted(LowNibbles(v2)),
             Shifted(LowNibbles(v3))};
    second = {Shifted(HighNibbles(v0)), Shifted(HighNibbles(v1)), Shifted(HighNibbles(v2)),
              Shifted(HighNibbles(v3))};
  }
  static HWY_INLINE ByteVec Shifted(ByteVec v) {
    return kUnsignedWeights ? v : hn::Sub(v, hn::Set(Bytes(), std::int8_t{kOffset}));
  }
  static HWY_INLINE FloatVec Scale(const PanelPass& pass, std::int64_t block) {
    return LoadScales(pass.panel + pass.layout.scales + block * 32 + pass.lane * 2);
  }
};

struct Q6Loader {
  static constexpr int kOffset = 32;
  static constexpr bool kSubScales = true;
  static HWY_INLINE void Load(const PanelPass& pass, std::int64_t block, HalfBlock& first,
                              HalfBlock& second) {
    const std::byte* low = pass.panel + block * 256 + pass.lane * 4;
    const std::byte* high = pass.panel + pass.layout.high_bits + block * 128 + pass.lane * 4;
    const ByteVec v0 = LoadBytes(low);
    const ByteVec v1 = LoadBytes(low + 64);
    const ByteVec v2 = LoadBytes(low + 128);
    const ByteVec v3 = LoadBytes(low + 192);
    const ByteVec even = LoadBytes(high);
    const ByteVec odd = LoadBytes(high + 64);
    first = {Join<0>(LowNibbles(v0), even), Join<0>(LowNibbles(v1), odd),
             Join<2>(LowNibbles(v2), even), Join<2>(LowNibbles(v3), odd)};
    second = {Join<4>(HighNibbles(v0), even), Join<4>(HighNibbles(v1), odd),
              Join<6>(HighNibbles(v2), even), Join<6>(HighNibbles(v3), odd)};
  }
  template <int kShift>
  static HWY_INLINE ByteVec Join(ByteVec nibbles, ByteVec high) {
    const hn::Repartition<std::uint16_t, Ints> d16;
    const auto shifted = hn::ShiftRight<kShift>(hn::BitCast(d16, high));
    const auto bits = hn::ShiftLeft<4>(hn::And(shifted, hn::Set(d16, std::uint16_t{0x0303})));
    const ByteVec v = hn::Or(nibbles, hn::BitCast(Bytes(), bits));
    return kUnsignedWeights ? v : hn::Sub(v, hn::Set(Bytes(), std::int8_t{kOffset}));
  }
  static HWY_INLINE FloatVec Scale(const PanelPass& pass, std::int64_t block) {
    return LoadScales(pass.panel + pass.layout.scales + block / 8 * 32 + pass.lane * 2);
  }
  static HWY_INLINE FloatVec SubScale(const PanelPass& pass, std::int64_t block, int half) {
    const hn::Rebind<std::int8_t, Floats> d8;
    const std::byte* from =
        pass.panel + pass.layout.sub_scales + block * 32 + half * kPanelRows + pass.lane;
    const auto bytes = hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(from));
    return hn::ConvertTo(Floats(), hn::PromoteTo(Ints(), bytes));
  }
};

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

template <class Loader, int kTokens>
void QuantisedTile(const PanelPass& pass, const ActivationRows& x, const MatMulJob& job,
                   std::int64_t first_token, std::int64_t row) {
  const Floats df;
  const Ints di;
  FloatVec sums[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    sums[t] = hn::Zero(df);
  }
  const ActivationBlock* HWY_RESTRICT blocks = x.blocks + first_token * pass.block_count;
  for (std::int64_t b = 0; b < pass.block_count; ++b) {
    HalfBlock first;
    HalfBlock second;
    Loader::Load(pass, b, first, second);
    const FloatVec scale = Loader::Scale(pass, b);
    for (int t = 0; t < kTokens; ++t) {
      const ActivationBlock& block = blocks[t * pass.block_count + b];
      const FloatVec token_scale = hn::Mul(scale, hn::Set(df, block.scale));
      IntVec high = hn::Zero(di);
      IntVec low = hn::Zero(di);
      [[maybe_unused]] const FloatVec first_dot =
          DotHalf<Loader::kOffset>(first, block, 0, high, low);
      if constexpr (Loader::kSubScales) {
        high = hn::Zero(di);
        low = hn::Zero(di);
        const FloatVec second_dot = DotHalf<Loader::kOffset>(second, block, 1, high, low);
        const FloatVec dot = hn::MulAdd(second_dot, Loader::SubScale(pass, b, 1),
                                        hn::Mul(first_dot, Loader::SubScale(pass, b, 0)));
        sums[t] = hn::MulAdd(dot, token_scale, sums[t]);
      } else {
        const FloatVec dot = DotHalf<Loader::kOffset>(second, block, 1, high, low);
        sums[t] = hn::MulAdd(dot, token_scale, sums[t]);
      }
    }
  }
  StoreSums<kTokens>(sums, job, first_token, row);
}

template <class Loader>
void QuantisedPanel(const PanelPass& pass, const ActivationRows& x, const MatMulJob& job,
                    std::int64_t row) {
  std::int64_t token = 0;
  for (; token + 8 <= x.token_count; token += 8) {
    QuantisedTile<Loader, 8>(pass, x, job, token, row);
  }
  for (; token + 2 <= x.token_count; token += 2) {
    QuantisedTile<Loader, 2>(pass, x, job, token, row);
  }
  for (; token < x.token_count; ++token) {
    QuantisedTile<Loader, 1>(pass, x, job, token, row);
  }
}

struct F32Loader {
  static HWY_INLINE FloatVec Load(const std::byte* panel, std::int64_t index) {
    return hn::LoadU(Floats(), reinterpret_cast<const float*>(panel) + index);
  }
};

struct F16Loader {
  static HWY_INLINE FloatVec Load(const std::byte* panel, std::int64_t index) {
    return LoadScales(panel + index * 2);
  }
};

struct BF16Loader {
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
  for (; k + kChains <= x.column_count; k += kChains) {
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
void FloatPanel(const PanelPass& pass, const ActivationRows& x, const MatMulJob& job,
                std::int64_t row) {
  std::int64_t token = 0;
  for (; token + 4 <= x.token_count; token += 4) {
    FloatTile<Loader, 4>(pass, x, job, token, row);
  }
  for (; token < x.token_count; ++token) {
    FloatTile<Loader, 1>(pass, x, job, token, row);
  }
}

void ComputePanel(const ActivationRows& x, const MatMulJob& job, std::int64_t panel) {
  const PackedMatrix& weights = job.weights;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
  PanelPass pass{};
  pass.layout = LayoutOfPanel(weights.type, weights.column_count);
  pass.panel = weights.data + panel * pass.layout.panel_bytes;
  pass.block_count = weights.column_count / kActivationBlock;
  for (pass.lane = 0; pass.lane < kPanelRows; pass.lane += lanes) {
    const std::int64_t row = panel * kPanelRows + pass.lane;
    switch (weights.type) {
      case WeightType::kF32:
        FloatPanel<F32Loader>(pass, x, job, row);
        break;
      case WeightType::kF16:
        FloatPanel<F16Loader>(pass, x, job, row);
        break;
      case WeightType::kBF16:
        FloatPanel<BF16Loader>(pass, x, job, row);
        break;
      case WeightType::kQ80:
        QuantisedPanel<Q8Loader>(pass, x, job, row);
        break;
      case WeightType::kQ40:
        QuantisedPanel<Q4Loader>(pass, x, job, row);
        break;
      case WeightType::kQ6K:
        QuantisedPanel<Q6Loader>(pass, x, job, row);
        break;
    }
  }
}

}  // namespace cairn::compute::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
