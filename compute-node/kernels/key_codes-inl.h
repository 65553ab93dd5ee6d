// The kernels over key codes, compiled once for each instruction set by key_codes.cc.
#if defined(CAIRN_KEY_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_KEY_CODES_INL_H_
#undef CAIRN_KEY_CODES_INL_H_
#else
#define CAIRN_KEY_CODES_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "compute-node/kernels/key_codes.h"
#include "compute-node/kernels/quant_panel-inl.h"

// As in quant_panel-inl.h.
#if HWY_TARGET == HWY_AVX3_DL
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace cairn::compute::HWY_NAMESPACE {

// The type of weights whose numbers have as many bits, and whose products are computed likewise.
template <int kBits>
inline constexpr WeightType kTypeOfBits = kBits <= 2   ? WeightType::kQ2K
                                          : kBits == 3 ? WeightType::kQ3K
                                          : kBits == 4 ? WeightType::kQ41
                                                       : WeightType::kQ80;

// The codes of a run of 32 axes. `run`: as of LoadWeights.
template <int kBits>
HWY_INLINE void LoadKeyCodes(const std::byte* HWY_RESTRICT run, HalfBlock& first,
                             HalfBlock& second) {
  if constexpr (kBits == 8) {
    LoadSigned(run, first, second);
  } else if constexpr (kBits == 4) {
    LoadNibbles(run, first, second);
  } else {
    const ByteVec zero = hn::Zero(Bytes());
    first = second = {zero, zero, zero, zero};
    if constexpr (kBits >= 2) JoinPairs<0>(run, first, second);
    constexpr std::int64_t kPairBytes = kBits >= 2 ? 2 * kCodePanelRows * 4 : 0;
    if constexpr (kBits != 2) JoinSingleBits<kBits - 1>(run + kPairBytes, first, second);
  }
}

// Adds the products of a run's codes with the queries.
template <int kBits, int kQueries>
HWY_INLINE void AddRun(const std::byte* HWY_RESTRICT run, std::int64_t index,
                       const CodedQuery* queries, FloatVec* HWY_RESTRICT sums) {
  constexpr WeightType kType = kTypeOfBits<kBits>;
  const Floats df;
  HalfBlock first;
  HalfBlock second;
  LoadKeyCodes<kBits>(run, first, second);
  HWY_UNROLL(4)
  for (int q = 0; q < kQueries; ++q) {
    const std::int8_t* digits = queries[q].digits() + index * kCodeRunAxes;
    const IntVec dots = DotDigits<kType>(hn::Zero(Ints()), first, digits);
    sums[q] =
        hn::MulAdd(hn::ConvertTo(df, DotDigits<kType>(dots, second, digits + kCodeRunAxes / 2)),
                   hn::Set(df, queries[q].scales()[index]), sums[q]);
  }
}

template <int kQueries>
HWY_INLINE void ScoreTile(const KeyCodeShape& shape, const CodedQuery* queries,
                          const std::byte* HWY_RESTRICT panels, std::int64_t panel_count,
                          float* const* scores) {
  constexpr std::int64_t kLaneCount = hn::MaxLanes(Floats());
  const Floats df;
  const std::int64_t run_count = shape.run_count();
  const std::int64_t panel_bytes = shape.PanelBytes();
  for (std::int64_t panel = 0; panel < panel_count; ++panel) {
    for (std::int64_t lane = 0; lane < kCodePanelRows; lane += kLaneCount) {
      const std::byte* run = panels + panel * panel_bytes + lane * 4;
      FloatVec sums[kQueries];
      HWY_UNROLL(4)
      for (int q = 0; q < kQueries; ++q) {
        sums[q] = hn::Set(df, -queries[q].middle());
      }
      for (std::int64_t r = 0; r < run_count; ++r) {
        const int bits = shape.BitsOf(r * kCodeRunAxes);
        switch (bits) {
          case 1:
            AddRun<1, kQueries>(run, r, queries, sums);
            break;
          case 2:
            AddRun<2, kQueries>(run, r, queries, sums);
            break;
          case 3:
            AddRun<3, kQueries>(run, r, queries, sums);
            break;
          case 4:
            AddRun<4, kQueries>(run, r, queries, sums);
            break;
          default:
            AddRun<8, kQueries>(run, r, queries, sums);
            break;
        }
        run += kCodeRunAxes * kCodePanelRows * bits / 8;
      }
      HWY_UNROLL(4)
      for (int q = 0; q < kQueries; ++q) {
        hn::StoreU(sums[q], df, scores[q] + panel * kCodePanelRows + lane);
      }
    }
  }
}

void ScorePanels(const KeyCodeShape& shape, std::span<const CodedQuery> queries,
                 const std::byte* panels, std::int64_t panel_count, float* const* scores) {
  std::size_t q = 0;
  for (; q + 4 <= queries.size(); q += 4) {
    ScoreTile<4>(shape, &queries[q], panels, panel_count, scores + q);
  }
  for (; q < queries.size(); ++q) {
    ScoreTile<1>(shape, &queries[q], panels, panel_count, scores + q);
  }
}

// Two vectors of axes at a time.
template <int kRows>
HWY_INLINE void ProjectTile(const float* HWY_RESTRICT numbers, std::int64_t dimension_count,
                            const std::int8_t* HWY_RESTRICT axes, std::int64_t axis_count,
                            float* HWY_RESTRICT sums) {
  const Floats df;
  const hn::Rebind<std::int32_t, Floats> di;
  const hn::Rebind<std::int8_t, Floats> d8;
  constexpr std::int64_t kLaneCount = hn::MaxLanes(Floats());
  const auto load = [&](const std::int8_t* at) HWY_ATTR {
    return hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(d8, at)));
  };
  for (std::int64_t axis = 0; axis < axis_count; axis += 2 * kLaneCount) {
    FloatVec first[kRows];
    FloatVec second[kRows];
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      first[r] = hn::LoadU(df, sums + r * axis_count + axis);
      second[r] = hn::LoadU(df, sums + r * axis_count + axis + kLaneCount);
    }
    for (std::int64_t i = 0; i < dimension_count; ++i) {
      const FloatVec low = load(axes + i * axis_count + axis);
      const FloatVec high = load(axes + i * axis_count + axis + kLaneCount);
      HWY_UNROLL(4)
      for (int r = 0; r < kRows; ++r) {
        const FloatVec number = hn::Set(df, numbers[r * dimension_count + i]);
        first[r] = hn::MulAdd(number, low, first[r]);
        second[r] = hn::MulAdd(number, high, second[r]);
      }
    }
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      hn::StoreU(first[r], df, sums + r * axis_count + axis);
      hn::StoreU(second[r], df, sums + r * axis_count + axis + kLaneCount);
    }
  }
}

void ProjectRows(const float* HWY_RESTRICT numbers, std::int64_t row_count,
                 std::int64_t dimension_count, const std::int8_t* HWY_RESTRICT axes,
                 std::int64_t axis_count, float* HWY_RESTRICT sums) {
  constexpr int kTileRows = 4;
  std::int64_t row = 0;
  for (; row + kTileRows <= row_count; row += kTileRows) {
    ProjectTile<kTileRows>(numbers + row * dimension_count, dimension_count, axes, axis_count,
                           sums + row * axis_count);
  }
  for (; row < row_count; ++row) {
    ProjectTile<1>(numbers + row * dimension_count, dimension_count, axes, axis_count,
                   sums + row * axis_count);
  }
}

// What an unsigned 8-bit product adds of the offset that signed codes carry.
std::int32_t CodeOffset(int bits) { return bits == 8 && kUnsignedWeights ? 128 : 0; }

void AddSoftmaxRow(float* HWY_RESTRICT scores, std::int64_t count, float scale,
                   float* HWY_RESTRICT masses) {
  const Floats df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  float largest = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, scores[i]);
  }
  if (!std::isfinite(largest)) return;
  const auto top = hn::Set(df, largest);
  const auto factor = hn::Set(df, scale);
  auto sums = hn::Zero(df);
  const auto weigh = [&](auto score)
                         HWY_ATTR { return hn::Exp(df, hn::Mul(hn::Sub(score, top), factor)); };
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto weight = weigh(hn::LoadU(df, scores + i));
    sums = hn::Add(sums, weight);
    hn::StoreU(weight, df, scores + i);
  }
  float sum = hn::GetLane(hn::SumOfLanes(df, sums));
  for (; i < count; ++i) {
    scores[i] = hn::GetLane(weigh(hn::Set(df, scores[i])));
    sum += scores[i];
  }
  if (!std::isfinite(sum)) return;
  const float share = 1.0F / sum;
  const auto shares = hn::Set(df, share);
  for (i = 0; i + lanes <= count; i += lanes) {
    const auto mass = hn::MulAdd(hn::LoadU(df, scores + i), shares, hn::LoadU(df, masses + i));
    hn::StoreU(mass, df, masses + i);
  }
  for (; i < count; ++i) {
    masses[i] += scores[i] * share;
  }
}

}  // namespace cairn::compute::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
