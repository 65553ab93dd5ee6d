// What the product kernels take from a panel of quantised weights: integers for 8-bit dot products,
// and the scales that belong to them. Compiled once for each instruction set, for matmul-inl.h.
#if defined(CAIRN_QUANT_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_QUANT_PANEL_INL_H_
#undef CAIRN_QUANT_PANEL_INL_H_
#else
#define CAIRN_QUANT_PANEL_INL_H_
#endif

#include <hwy/highway.h>

#include "compute-node/kernels/activations.h"
#include "compute-node/kernels/packed_matrix.h"
#include "compute-node/kernels/quant_block.h"

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
using Words = hn::Repartition<std::uint16_t, Ints>;
using Bytes = hn::Repartition<std::int8_t, Ints>;
using FloatVec = hn::Vec<Floats>;
using IntVec = hn::Vec<Ints>;
using ByteVec = hn::Vec<Bytes>;

// A byte for each row.
using RowBytes = hn::Rebind<std::uint8_t, Floats>;
using RowByteVec = hn::Vec<RowBytes>;

// 8-bit dot products of VNNI take one unsigned factor: signed weights then carry an offset of 128
// that the digit sums undo. Numbers below 128 need none.
#if HWY_TARGET == HWY_AVX3_DL
inline constexpr bool kUnsignedWeights = true;
#else
inline constexpr bool kUnsignedWeights = false;
#endif

template <WeightType kType>
inline constexpr bool kSignedNumbers = kType == WeightType::kQ80 || QuantLayoutOf(kType).table;

template <WeightType kType>
inline constexpr int kWeightOffset = !kSignedNumbers<kType> ? QuantLayoutOf(kType).offset
                                     : kUnsignedWeights     ? 128
                                                            : 0;

HWY_INLINE ByteVec LoadBytes(const std::byte* HWY_RESTRICT from) {
  return hn::LoadU(Bytes(), reinterpret_cast<const std::int8_t*>(from));
}

// Four consecutive digits in every lane.
HWY_INLINE ByteVec BroadcastDigits(const std::int8_t* HWY_RESTRICT digits) {
  std::int32_t four;
  hwy::CopyBytes<4>(digits, &four);
  return hn::BitCast(Bytes(), hn::Set(Ints(), four));
}

HWY_INLINE FloatVec LoadHalves(const std::byte* HWY_RESTRICT from) {
  const hn::Rebind<hwy::float16_t, Floats> d16;
  return hn::PromoteTo(Floats(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
}

// The weights of 16 columns: four groups of four. The constructors are written out because GCC
// compiles implicit ones for the plain processor, into which vectors of arm64 cannot be inlined.
struct HalfBlock {
  HWY_INLINE HalfBlock() {}
  HWY_INLINE HalfBlock(ByteVec v0, ByteVec v1, ByteVec v2, ByteVec v3)
      : g0(v0), g1(v1), g2(v2), g3(v3) {}
  ByteVec g0, g1, g2, g3;
};

// Exact dot products of bytes. VNNI adds four of a lane at once. Elsewhere pairs of products are
// added in 16 bits first: |weight| <= 128 and |digit| <= 127, so that negating a digit is exact and
// a pair fits; of smaller numbers several pairs do.
#if HWY_TARGET == HWY_AVX3_DL

HWY_INLINE IntVec DotAccumulate(IntVec sum, ByteVec weights, ByteVec digits) {
  return IntVec{_mm512_dpbusd_epi32(sum.raw, weights.raw, digits.raw)};
}

template <WeightType kType>
HWY_INLINE IntVec DotDigits(IntVec sum, const HalfBlock& w,
                            const std::int8_t* HWY_RESTRICT digits) {
  sum = DotAccumulate(sum, w.g0, BroadcastDigits(digits));
  sum = DotAccumulate(sum, w.g1, BroadcastDigits(digits + 4));
  sum = DotAccumulate(sum, w.g2, BroadcastDigits(digits + 8));
  return DotAccumulate(sum, w.g3, BroadcastDigits(digits + 12));
}

#else

using Pairs = hn::Repartition<std::int16_t, Ints>;
using PairVec = hn::Vec<Pairs>;

template <WeightType kType>
HWY_INLINE PairVec MultiplyPairs(ByteVec weights, ByteVec digits) {
  [[maybe_unused]] constexpr bool kSigned = kSignedNumbers<kType>;
#if HWY_TARGET == HWY_AVX3
  const __m512i negated = kSigned
                              ? _mm512_mask_sub_epi8(digits.raw, _mm512_movepi8_mask(weights.raw),
                                                     _mm512_setzero_si512(), digits.raw)
                              : digits.raw;
  return PairVec{
      _mm512_maddubs_epi16(kSigned ? _mm512_abs_epi8(weights.raw) : weights.raw, negated)};
#elif HWY_TARGET == HWY_AVX2
  return PairVec{kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(weights.raw),
                                                _mm256_sign_epi8(digits.raw, weights.raw))
                         : _mm256_maddubs_epi16(weights.raw, digits.raw)};
#elif HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4
  return PairVec{
      kSigned ? _mm_maddubs_epi16(_mm_abs_epi8(weights.raw), _mm_sign_epi8(digits.raw, weights.raw))
              : _mm_maddubs_epi16(weights.raw, digits.raw)};
#elif HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64
  return PairVec{vpaddq_s16(vmull_s8(vget_low_s8(weights.raw), vget_low_s8(digits.raw)),
                            vmull_high_s8(weights.raw, digits.raw))};
#else
  const auto w = hn::BitCast(Pairs(), weights);
  const auto x = hn::BitCast(Pairs(), digits);
  const auto even =
      hn::Mul(hn::ShiftRight<8>(hn::ShiftLeft<8>(w)), hn::ShiftRight<8>(hn::ShiftLeft<8>(x)));
  return hn::Add(even, hn::Mul(hn::ShiftRight<8>(w), hn::ShiftRight<8>(x)));
#endif
}

// sum + the two numbers of each lane.
HWY_INLINE IntVec AddPairs(IntVec sum, PairVec pairs) {
#if HWY_TARGET == HWY_AVX3
  return hn::Add(sum, IntVec{_mm512_madd_epi16(pairs.raw, _mm512_set1_epi16(1))});
#elif HWY_TARGET == HWY_AVX2
  return hn::Add(sum, IntVec{_mm256_madd_epi16(pairs.raw, _mm256_set1_epi16(1))});
#elif HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4
  return hn::Add(sum, IntVec{_mm_madd_epi16(pairs.raw, _mm_set1_epi16(1))});
#elif HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64
  return IntVec{vpadalq_s16(sum.raw, pairs.raw)};
#else
  const auto both = hn::BitCast(Ints(), pairs);
  return hn::Add(sum,
                 hn::Add(hn::ShiftRight<16>(hn::ShiftLeft<16>(both)), hn::ShiftRight<16>(both)));
#endif
}

// How many pairs of products fit 16 bits together.
template <WeightType kType>
constexpr int PairsThatFit() {
  constexpr QuantLayout kLayout = QuantLayoutOf(kType);
  constexpr int kBits =
      (kLayout.nibbles ? 4 : 0) + (kLayout.pairs ? 2 : 0) + (kLayout.bits ? 1 : 0);
  return 32767 / (2 * 127 * (kSignedNumbers<kType> ? 128 : (1 << kBits) - 1));
}

template <WeightType kType>
HWY_INLINE IntVec DotDigits(IntVec sum, const HalfBlock& w,
                            const std::int8_t* HWY_RESTRICT digits) {
  const PairVec p0 = MultiplyPairs<kType>(w.g0, BroadcastDigits(digits));
  const PairVec p1 = MultiplyPairs<kType>(w.g1, BroadcastDigits(digits + 4));
  const PairVec p2 = MultiplyPairs<kType>(w.g2, BroadcastDigits(digits + 8));
  const PairVec p3 = MultiplyPairs<kType>(w.g3, BroadcastDigits(digits + 12));
  if constexpr (PairsThatFit<kType>() >= 4) {
    return AddPairs(sum, hn::Add(hn::Add(p0, p1), hn::Add(p2, p3)));
  } else if constexpr (PairsThatFit<kType>() >= 2) {
    return AddPairs(AddPairs(sum, hn::Add(p0, p1)), hn::Add(p2, p3));
  } else {
    return AddPairs(AddPairs(AddPairs(AddPairs(sum, p0), p1), p2), p3);
  }
}

#endif

HWY_INLINE ByteVec MaskBytes(ByteVec v, int mask) {
  return hn::And(v, hn::Set(Bytes(), static_cast<std::int8_t>(mask)));
}
HWY_INLINE ByteVec LowNibbles(ByteVec v) { return MaskBytes(v, 15); }
HWY_INLINE ByteVec HighNibbles(ByteVec v) {
  return LowNibbles(hn::BitCast(Bytes(), hn::ShiftRight<4>(hn::BitCast(Words(), v))));
}

// v | the `kMask` bits of `from` at bit kFrom, moved to bit kTo.
template <int kMask, int kFrom, int kTo>
HWY_INLINE ByteVec JoinBits(ByteVec v, ByteVec from) {
  auto words = hn::BitCast(Words(), from);
  if constexpr (kFrom > kTo) {
    words = hn::ShiftRight<kFrom - kTo>(words);
  } else if constexpr (kFrom < kTo) {
    words = hn::ShiftLeft<kTo - kFrom>(words);
  }
  return hn::OrAnd(v, hn::BitCast(Bytes(), words),
                   hn::Set(Bytes(), static_cast<std::int8_t>(kMask << kTo)));
}

HWY_INLINE ByteVec LoadSignedBytes(const std::byte* HWY_RESTRICT from) {
  const ByteVec v = LoadBytes(from);
  return kUnsignedWeights ? hn::Xor(v, hn::Set(Bytes(), static_cast<std::int8_t>(-128))) : v;
}

HWY_INLINE void LoadSigned(const std::byte* HWY_RESTRICT from, HalfBlock& first,
                           HalfBlock& second) {
  first = {LoadSignedBytes(from), LoadSignedBytes(from + 64), LoadSignedBytes(from + 128),
           LoadSignedBytes(from + 192)};
  second = {LoadSignedBytes(from + 256), LoadSignedBytes(from + 320), LoadSignedBytes(from + 384),
            LoadSignedBytes(from + 448)};
}

HWY_INLINE void LoadNibbles(const std::byte* HWY_RESTRICT from, HalfBlock& first,
                            HalfBlock& second) {
  const ByteVec v0 = LoadBytes(from);
  const ByteVec v1 = LoadBytes(from + 64);
  const ByteVec v2 = LoadBytes(from + 128);
  const ByteVec v3 = LoadBytes(from + 192);
  first = {LowNibbles(v0), LowNibbles(v1), LowNibbles(v2), LowNibbles(v3)};
  second = {HighNibbles(v0), HighNibbles(v1), HighNibbles(v2), HighNibbles(v3)};
}

// Joins pairs of bits to the weights, at bit kTo.
template <int kTo>
HWY_INLINE void JoinPairs(const std::byte* HWY_RESTRICT from, HalfBlock& first, HalfBlock& second) {
  const ByteVec even = LoadBytes(from);
  const ByteVec odd = LoadBytes(from + 64);
  first = {JoinBits<3, 0, kTo>(first.g0, even), JoinBits<3, 0, kTo>(first.g1, odd),
           JoinBits<3, 2, kTo>(first.g2, even), JoinBits<3, 2, kTo>(first.g3, odd)};
  second = {JoinBits<3, 4, kTo>(second.g0, even), JoinBits<3, 4, kTo>(second.g1, odd),
            JoinBits<3, 6, kTo>(second.g2, even), JoinBits<3, 6, kTo>(second.g3, odd)};
}

template <int kTo>
HWY_INLINE void JoinSingleBits(const std::byte* HWY_RESTRICT from, HalfBlock& first,
                               HalfBlock& second) {
  const ByteVec v = LoadBytes(from);
  first = {JoinBits<1, 0, kTo>(first.g0, v), JoinBits<1, 1, kTo>(first.g1, v),
           JoinBits<1, 2, kTo>(first.g2, v), JoinBits<1, 3, kTo>(first.g3, v)};
  second = {JoinBits<1, 4, kTo>(second.g0, v), JoinBits<1, 5, kTo>(second.g1, v),
            JoinBits<1, 6, kTo>(second.g2, v), JoinBits<1, 7, kTo>(second.g3, v)};
}

HWY_INLINE HalfBlock LookUp(ByteVec table, const HalfBlock& v) {
  return {hn::TableLookupBytes(table, v.g0), hn::TableLookupBytes(table, v.g1),
          hn::TableLookupBytes(table, v.g2), hn::TableLookupBytes(table, v.g3)};
}

HWY_INLINE void LookUpTable(HalfBlock& first, HalfBlock& second) {
  ByteVec table = hn::LoadDup128(Bytes(), kIq4NlTable.data());
  if (kUnsignedWeights) {
    table = hn::Xor(table, hn::Set(Bytes(), static_cast<std::int8_t>(-128)));
  }
  first = LookUp(table, first);
  second = LookUp(table, second);
}

// The weights of a run of 32 columns, with their offset. `run` is the run's first byte, plus four
// bytes for each row before the first lane.
template <WeightType kType>
HWY_INLINE void LoadWeights(const std::byte* HWY_RESTRICT run, HalfBlock& first,
                            HalfBlock& second) {
  constexpr QuantLayout kLayout = QuantLayoutOf(kType);
  constexpr StretchLayout kStretch = StretchLayoutOf(kType);
  if constexpr (kType == WeightType::kQ80) {
    LoadSigned(run, first, second);
    return;
  }
  if constexpr (kLayout.nibbles) {
    LoadNibbles(run, first, second);
  } else {
    const ByteVec zero = hn::Zero(Bytes());
    first = second = {zero, zero, zero, zero};
  }
  if constexpr (kLayout.pairs) {
    JoinPairs<kLayout.nibbles ? 4 : 0>(run + kStretch.pairs_at, first, second);
  }
  if constexpr (kLayout.bits) {
    JoinSingleBits<kLayout.nibbles ? 4 : 2>(run + kStretch.bits_at, first, second);
  }
  if constexpr (kLayout.table) {
    LookUpTable(first, second);
  }
}

// A run's scales, of which types have different ones: a weight of half h is
// scale * halves[h] * (number - offset) + mins[h].
struct RunScales {
  HWY_INLINE RunScales() {}  // as in HalfBlock
  FloatVec scale;
  FloatVec half_0, half_1;  // where kHalfScales
  FloatVec min_0, min_1;    // where kMins; min_1 only where each half has its own
};

template <WeightType kType>
inline constexpr bool kHalfScales = QuantLayoutOf(kType).sub_scales == SubScales::kSigned ||
                                    QuantLayoutOf(kType).sub_scales == SubScales::kNibbles ||
                                    QuantLayoutOf(kType).sub_scales == SubScales::kSixBitScales;
template <WeightType kType>
inline constexpr bool kMins = QuantLayoutOf(kType).min_at >= 0;
template <WeightType kType>
inline constexpr bool kHalfMins = QuantLayoutOf(kType).sub_scales == SubScales::kNibbles;

HWY_INLINE RowByteVec LoadRowBytes(const std::byte* HWY_RESTRICT from) {
  return hn::LoadU(RowBytes(), reinterpret_cast<const std::uint8_t*>(from));
}
HWY_INLINE FloatVec RowFloats(RowByteVec v) {
  return hn::ConvertTo(Floats(), hn::PromoteTo(Ints(), v));
}
HWY_INLINE FloatVec SignedRowFloats(RowByteVec v) {
  const hn::RebindToSigned<RowBytes> d8;
  return hn::ConvertTo(Floats(), hn::PromoteTo(Ints(), hn::BitCast(d8, v)));
}

HWY_INLINE RowByteVec MaskRowBytes(RowByteVec v, int mask) {
  return hn::And(v, hn::Set(RowBytes(), static_cast<std::uint8_t>(mask)));
}
template <int kBits>
HWY_INLINE RowByteVec ShiftRowBytes(RowByteVec v) {
  const hn::Repartition<std::uint16_t, RowBytes> d16;
  const auto words = hn::BitCast(d16, v);
  if constexpr (kBits > 0) {
    return hn::BitCast(RowBytes(), hn::ShiftLeft<kBits>(words));
  } else {
    return hn::BitCast(RowBytes(), hn::ShiftRight<-kBits>(words));
  }
}

// The two six-bit numbers of run `run` of a stretch.
HWY_INLINE void LoadSixBits(const std::byte* HWY_RESTRICT sub_scales, std::int64_t run,
                            RowByteVec& first, RowByteVec& second) {
  const RowByteVec low = LoadRowBytes(sub_scales + run * kPanelRows);
  const RowByteVec both = LoadRowBytes(sub_scales + (8 + run / 2) * kPanelRows);
  const hn::Repartition<std::uint16_t, RowBytes> d16;
  const RowByteVec high = hn::BitCast(
      RowBytes(), hn::ShiftRightSame(hn::BitCast(d16, both), static_cast<int>(run % 2 * 4)));
  first = hn::Or(MaskRowBytes(low, 15), MaskRowBytes(ShiftRowBytes<4>(high), 48));
  second =
      hn::Or(MaskRowBytes(ShiftRowBytes<-4>(low), 15), MaskRowBytes(ShiftRowBytes<2>(high), 48));
}

// The 2 or 4 bits from bit `at` on of each of a panel's 16 bytes.
HWY_INLINE RowByteVec LoadRowBits(const std::byte* HWY_RESTRICT from, std::int64_t at, int mask) {
  const hn::Repartition<std::uint16_t, RowBytes> d16;
  const auto words = hn::BitCast(d16, LoadRowBytes(from));
  return MaskRowBytes(hn::BitCast(RowBytes(), hn::ShiftRightSame(words, static_cast<int>(at))),
                      mask);
}

// The multiplier of run `run` of a stretch (IQ4_XS).
HWY_INLINE FloatVec LoadRunMultiplier(const std::byte* HWY_RESTRICT sub_scales, std::int64_t run) {
  const RowByteVec high = LoadRowBits(sub_scales + run / 4 * kPanelRows, run % 4 * 2, 3);
  const RowByteVec low = LoadRowBits(sub_scales + (2 + run / 2) * kPanelRows, run % 2 * 4, 15);
  const RowByteVec number = hn::Or(low, ShiftRowBytes<4>(high));
  return SignedRowFloats(hn::Sub(number, hn::Set(RowBytes(), std::uint8_t{32})));
}

// Of run `run` of a stretch, for the rows from `lane` on.
template <WeightType kType>
HWY_INLINE RunScales LoadRunScales(const std::byte* HWY_RESTRICT stretch, std::int64_t run,
                                   std::int64_t lane) {
  constexpr QuantLayout kLayout = QuantLayoutOf(kType);
  constexpr StretchLayout kStretch = StretchLayoutOf(kType);
  const std::byte* halves = stretch + (run / (kLayout.values / 32) * kPanelRows + lane) * 2;
  const std::byte* sub_scales = stretch + kStretch.sub_scales_at + lane;
  RunScales out;
  out.scale = LoadHalves(halves);
  if constexpr (kLayout.min_at >= 0) {
    out.min_0 = LoadHalves(halves + kStretch.mins_at);
  }
  const std::byte* rows = sub_scales + run * 2 * kPanelRows;
  if constexpr (kLayout.sub_scales == SubScales::kSigned) {
    out.half_0 = SignedRowFloats(LoadRowBytes(rows));
    out.half_1 = SignedRowFloats(LoadRowBytes(rows + kPanelRows));
  } else if constexpr (kLayout.sub_scales == SubScales::kNibbles) {
    const RowByteVec v0 = LoadRowBytes(rows);
    const RowByteVec v1 = LoadRowBytes(rows + kPanelRows);
    out.half_0 = RowFloats(MaskRowBytes(v0, 15));
    out.half_1 = RowFloats(MaskRowBytes(v1, 15));
    const FloatVec min = hn::Neg(out.min_0);
    out.min_0 = hn::Mul(min, RowFloats(MaskRowBytes(ShiftRowBytes<-4>(v0), 15)));
    out.min_1 = hn::Mul(min, RowFloats(MaskRowBytes(ShiftRowBytes<-4>(v1), 15)));
  } else if constexpr (kLayout.sub_scales == SubScales::kSixBitScales) {
    RowByteVec first;
    RowByteVec second;
    LoadSixBits(sub_scales, run, first, second);
    const RowByteVec offset = hn::Set(RowBytes(), std::uint8_t{32});
    out.half_0 = SignedRowFloats(hn::Sub(first, offset));
    out.half_1 = SignedRowFloats(hn::Sub(second, offset));
  } else if constexpr (kLayout.sub_scales == SubScales::kSixBitRuns) {
    out.scale = hn::Mul(out.scale, LoadRunMultiplier(sub_scales, run));
  } else if constexpr (kLayout.sub_scales == SubScales::kSixBitPairs) {
    RowByteVec first;
    RowByteVec second;
    LoadSixBits(sub_scales, run, first, second);
    out.scale = hn::Mul(out.scale, RowFloats(first));
    out.min_0 = hn::Neg(hn::Mul(out.min_0, RowFloats(second)));
  }
  return out;
}

}  // namespace cairn::compute::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
