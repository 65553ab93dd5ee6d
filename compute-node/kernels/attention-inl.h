// The attention kernels, compiled once for each instruction set by attention.cc.
#if defined(CAIRN_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_ATTENTION_INL_H_
#undef CAIRN_ATTENTION_INL_H_
#else
#define CAIRN_ATTENTION_INL_H_
#endif

#include <cstring>

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "compute-node/kernels/attention.h"
#include "compute-node/kernels/convert.h"

// Not per target: the arguments that cross the dispatch.
#ifndef CAIRN_ATTENTION_ARGUMENTS_
#define CAIRN_ATTENTION_ARGUMENTS_
namespace cairn::compute {
struct AttendArguments {
  std::span<const std::byte* const> entries;
  KvFormat format;
  std::int64_t head_dim;
  float scale;
  QueryRows queries;
  std::span<const std::int32_t> visible_counts;
  float* states;
};
}  // namespace cairn::compute
#endif

HWY_BEFORE_NAMESPACE();
namespace cairn::compute::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Vectors divide a head: 8 lanes at most where head_dim is an odd multiple of 8.
template <std::size_t kLanesMax>
struct AttentionKernel {
  using Floats = hn::CappedTag<float, kLanesMax>;
  using Vec = hn::Vec<Floats>;

  static HWY_INLINE void ConvertRow(const std::byte* HWY_RESTRICT from, KvFormat format,
                                    std::int64_t count, float* HWY_RESTRICT to) {
    const Floats df;
    if (format == KvFormat::kF32) {
      std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
      return;
    }
    if (HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SCALAR) {
      LoadKvRow(from, format, {to, static_cast<std::size_t>(count)});
      return;
    }
    const hn::Rebind<hwy::float16_t, Floats> dh;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
    HWY_ALIGN hwy::float16_t halves[kLanesMax];
    for (std::int64_t i = 0; i < count; i += lanes) {
      hwy::CopyBytes<sizeof(hwy::float16_t) * hn::MaxLanes(df)>(from + i * 2, halves);
      hn::Store(hn::PromoteTo(df, hn::Load(dh, halves)), df, to + i);
    }
  }

  // The sums of the lanes of four vectors, in the four lanes of the result: a tree of shuffles,
  // shorter than four separate sums.
  static HWY_INLINE hn::Vec<hn::CappedTag<float, 4>> SumFour(Vec a, Vec b, Vec c, Vec d) {
    const Floats df;
    const hn::Repartition<double, Floats> dd;
    const auto ab = hn::Add(hn::InterleaveLower(df, a, b), hn::InterleaveUpper(df, a, b));
    const auto cd = hn::Add(hn::InterleaveLower(df, c, d), hn::InterleaveUpper(df, c, d));
    const auto low =
        hn::BitCast(df, hn::InterleaveLower(dd, hn::BitCast(dd, ab), hn::BitCast(dd, cd)));
    const auto high =
        hn::BitCast(df, hn::InterleaveUpper(dd, hn::BitCast(dd, ab), hn::BitCast(dd, cd)));
    return FoldBlocks(df, hn::Add(low, high));
  }

  template <class D>
  static HWY_INLINE auto FoldBlocks(D /*d*/, hn::Vec<D> v) {
    if constexpr (hn::MaxLanes(D()) > 4) {
      const hn::Half<D> half;
      return FoldBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
    } else {
      return v;
    }
  }

  // scores[e] = keys[e] . query, for a number of entries that is a multiple of 4.
  static HWY_INLINE void Scores(const float* HWY_RESTRICT keys, const float* HWY_RESTRICT query,
                                std::int64_t head_dim, std::int64_t entry_count,
                                float* HWY_RESTRICT scores) {
    const Floats df;
    const hn::CappedTag<float, 4> d4;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
    for (std::int64_t e = 0; e < entry_count; e += 4) {
      const float* HWY_RESTRICT k = keys + e * head_dim;
      auto a = hn::Zero(df);
      auto b = hn::Zero(df);
      auto c = hn::Zero(df);
      auto d = hn::Zero(df);
      for (std::int64_t i = 0; i < head_dim; i += lanes) {
        const auto q = hn::LoadU(df, query + i);
        a = hn::MulAdd(q, hn::LoadU(df, k + i), a);
        b = hn::MulAdd(q, hn::LoadU(df, k + head_dim + i), b);
        c = hn::MulAdd(q, hn::LoadU(df, k + 2 * head_dim + i), c);
        d = hn::MulAdd(q, hn::LoadU(df, k + 3 * head_dim + i), d);
      }
      hn::StoreU(SumFour(a, b, c, d), d4, scores + e);
    }
  }

  // Turns the first `visible` scores into weights exp(scale * score - max) and the rest into 0;
  // updates max and sum and answers what the accumulator so far must be multiplied by.
  static HWY_INLINE float UpdateSoftmax(float scale, std::int64_t visible,
                                        float* HWY_RESTRICT scores, float& max, float& sum) {
    const Floats df;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
    float largest = max;
    for (std::int64_t e = 0; e < visible; ++e) {
      scores[e] *= scale;
      largest = scores[e] > largest ? scores[e] : largest;
    }
    for (std::int64_t e = visible; e < kAttentionBlockEntries; ++e) {
      scores[e] = -1e30F;
    }
    auto weights_sum = hn::Zero(df);
    for (std::int64_t e = 0; e < kAttentionBlockEntries; e += lanes) {
      const auto weights = hn::Exp(df, hn::Sub(hn::LoadU(df, scores + e), hn::Set(df, largest)));
      weights_sum = hn::Add(weights_sum, weights);
      hn::StoreU(weights, df, scores + e);
    }
    // Of the first block max is -inf and the factor 0.
    const float factor = ScalarExp(max - largest);
    sum = sum * factor + hn::GetLane(hn::SumOfLanes(df, weights_sum));
    max = largest;
    return factor;
  }

  static HWY_INLINE float ScalarExp(float x) {
    const hn::CappedTag<float, 4> d4;
    return x < -100.0F ? 0.0F : hn::GetLane(hn::Exp(d4, hn::Set(d4, x)));
  }

  // acc = acc * factor + sum of weights[e] * values[e], over even and odd entries apart for shorter
  // dependency chains.
  template <int kVectors>
  static HWY_INLINE void AddValues(const float* HWY_RESTRICT values,
                                   const float* HWY_RESTRICT weights, float factor,
                                   std::int64_t head_dim, std::int64_t entry_count,
                                   float* HWY_RESTRICT acc) {
    const Floats df;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
    Vec even[kVectors];
    Vec odd[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      even[i] = hn::Mul(hn::LoadU(df, acc + i * lanes), hn::Set(df, factor));
      odd[i] = hn::Zero(df);
    }
    std::int64_t e = 0;
    for (; e + 2 <= entry_count; e += 2) {
      const auto w0 = hn::Set(df, weights[e]);
      const auto w1 = hn::Set(df, weights[e + 1]);
      const float* HWY_RESTRICT v = values + e * head_dim;
      for (int i = 0; i < kVectors; ++i) {
        even[i] = hn::MulAdd(w0, hn::LoadU(df, v + i * lanes), even[i]);
        odd[i] = hn::MulAdd(w1, hn::LoadU(df, v + head_dim + i * lanes), odd[i]);
      }
    }
    if (e < entry_count) {
      const auto w0 = hn::Set(df, weights[e]);
      for (int i = 0; i < kVectors; ++i) {
        even[i] = hn::MulAdd(w0, hn::LoadU(df, values + e * head_dim + i * lanes), even[i]);
      }
    }
    for (int i = 0; i < kVectors; ++i) {
      hn::StoreU(hn::Add(even[i], odd[i]), df, acc + i * lanes);
    }
  }

  static void Attend(const AttendArguments& arguments) {
    const std::int64_t head_dim = arguments.head_dim;
    const auto entry_count = static_cast<std::int64_t>(arguments.entries.size());
    // Converted once, used by every query row. Rows up to the next multiple of 4 are zero.
    HWY_ALIGN float keys[kAttentionBlockEntries * kHeadDimMax];
    HWY_ALIGN float values[kAttentionBlockEntries * kHeadDimMax];
    const std::int64_t padded_count = (entry_count + 3) / 4 * 4;
    for (std::int64_t e = 0; e < entry_count; ++e) {
      const std::byte* entry = arguments.entries[static_cast<std::size_t>(e)];
      ConvertRow(entry, arguments.format, head_dim, keys + e * head_dim);
      ConvertRow(entry + head_dim * KvElementBytes(arguments.format), arguments.format, head_dim,
                 values + e * head_dim);
    }
    for (std::int64_t i = entry_count * head_dim; i < padded_count * head_dim; ++i) {
      keys[i] = 0.0F;
    }
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
    HWY_ALIGN float scores[kAttentionBlockEntries];
    for (std::int64_t row = 0; row < arguments.queries.row_count; ++row) {
      const std::int64_t visible =
          arguments.visible_counts.empty()
              ? entry_count
              : std::clamp<std::int64_t>(arguments.visible_counts[static_cast<std::size_t>(row)], 0,
                                         entry_count);
      if (visible == 0) {
        continue;
      }
      float* state = arguments.states + row * AttentionStateFloats(head_dim);
      const float* query = arguments.queries.data + row * arguments.queries.stride;
      Scores(keys, query, head_dim, (visible + 3) / 4 * 4, scores);
      const float factor = UpdateSoftmax(arguments.scale, visible, scores, state[0], state[1]);
      std::int64_t i = 0;
      for (; i + 4 * lanes <= head_dim; i += 4 * lanes) {
        AddValues<4>(values + i, scores, factor, head_dim, visible, state + 2 + i);
      }
      for (; i < head_dim; i += lanes) {
        AddValues<1>(values + i, scores, factor, head_dim, visible, state + 2 + i);
      }
    }
  }
};

void AttendBlockRows(const AttendArguments& arguments) {
  if (arguments.head_dim % 16 == 0) {
    AttentionKernel<16>::Attend(arguments);
  } else {
    AttentionKernel<8>::Attend(arguments);
  }
}

void MergeRow(const float* HWY_RESTRICT from, std::int64_t head_dim, float* HWY_RESTRICT into) {
  using Kernel = AttentionKernel<8>;
  const Kernel::Floats df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  const float largest = from[0] > into[0] ? from[0] : into[0];
  const float from_factor = Kernel::ScalarExp(from[0] - largest);
  const float into_factor = Kernel::ScalarExp(into[0] - largest);
  into[0] = largest;
  into[1] = into[1] * into_factor + from[1] * from_factor;
  for (std::int64_t i = 2; i < 2 + head_dim; i += lanes) {
    const auto kept = hn::Mul(hn::LoadU(df, into + i), hn::Set(df, into_factor));
    hn::StoreU(hn::MulAdd(hn::LoadU(df, from + i), hn::Set(df, from_factor), kept), df, into + i);
  }
}

}  // namespace cairn::compute::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
