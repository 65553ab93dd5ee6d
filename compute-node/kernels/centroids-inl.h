// The kernels over centroids, compiled once for each instruction set by centroids.cc.
#if defined(CAIRN_CENTROIDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_CENTROIDS_INL_H_
#undef CAIRN_CENTROIDS_INL_H_
#else
#define CAIRN_CENTROIDS_INL_H_
#endif

#include <algorithm>
#include <limits>
#include <span>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "compute-node/kernels/centroids.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::compute::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using CentroidFloats = hn::CappedTag<float, 16>;
using CentroidVec = hn::Vec<CentroidFloats>;
// One number for each of four rows.
using FourFloats = hn::CappedTag<float, 4>;
using FourVec = hn::Vec<FourFloats>;

// Accumulators take at most two thirds of the registers; the rest are operands.
inline constexpr bool kWideRegisterFile = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL ||
                                          (HWY_ARCH_ARM_A64 && HWY_TARGET != HWY_SCALAR);
inline constexpr std::int64_t kCodeRows = 4;  // of a tile
inline constexpr int kKeysMax = 8;            // that share one reading of the codes
inline constexpr int kTileKeys = kWideRegisterFile ? 4 : 2;
inline constexpr std::int64_t kTilePoints = kWideRegisterFile ? 8 : 4;

// How far before its use a tile asks for memory: the processor's own prefetching stops at every
// page, and without this codes are read at two thirds of the memory's rate.
inline constexpr std::int64_t kCodePrefetchBytes = 4096;

template <class D>
HWY_INLINE hn::Vec<D> LoadCodes(D d, const std::int8_t* codes) {
  const hn::Rebind<std::int32_t, D> d32;
  const hn::Rebind<std::int8_t, D> d8;
  return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes)));
}

// The numbers in the low and in the high halves of as many bytes.
template <class D>
HWY_INLINE void LoadSketch(D d, const std::uint8_t* sketch, hn::Vec<D>& low, hn::Vec<D>& high) {
  const hn::Rebind<std::int32_t, D> d32;
  const hn::Rebind<std::uint8_t, D> d8;
  const auto bytes = hn::PromoteTo(d32, hn::LoadU(d8, sketch));
  const auto zero = hn::Set(d32, kSketchZero);
  low = hn::ConvertTo(d, hn::Sub(hn::And(bytes, hn::Set(d32, 15)), zero));
  high = hn::ConvertTo(d, hn::Sub(hn::ShiftRight<4>(bytes), zero));
}

template <class V>
HWY_INLINE FourVec FoldToFour(V v) {
  if constexpr (hn::MaxLanes(hn::DFromV<V>()) <= 4) {
    return v;
  } else {
    const hn::Half<hn::DFromV<V>> half;
    return FoldToFour(hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// The sums of four vectors' lanes, each in the same order.
HWY_INLINE FourVec SumsOfFour(const CentroidVec* v) {
  const CentroidFloats d;
  const hn::Repartition<double, CentroidFloats> pairs;
  const auto low = hn::BitCast(
      pairs, hn::Add(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1])));
  const auto high = hn::BitCast(
      pairs, hn::Add(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3])));
  return FoldToFour(hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, low, high)),
                            hn::BitCast(d, hn::InterleaveUpper(pairs, low, high))));
}

// The rows of one tile, of codes or of sketches: the last ones again where there are less than
// four.
template <typename Byte>
struct CodeTile {
  CodeTile(const Byte* all, std::int64_t row_bytes, std::int64_t first, std::int64_t count) {
    for (std::int64_t r = 0; r < kCodeRows; ++r) {
      rows[r] = all + std::min(first + r, count - 1) * row_bytes;
    }
    // May lie behind the last row.
    for (std::int64_t at = 0; at < kCodeRows * row_bytes; at += 64) {
      hwy::Prefetch(rows[0] + kCodePrefetchBytes + at);
    }
  }
  const Byte* rows[kCodeRows];
};

// dots[k] = keys[k] . row for the four rows of a tile.
template <int kKeys>
HWY_INLINE void DotCodes(const float* const* HWY_RESTRICT keys, const CodeTile<std::int8_t>& tile,
                         std::int64_t dim, FourVec* HWY_RESTRICT dots) {
  const CentroidFloats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  CentroidVec sums[kKeys][kCodeRows];
  for (int k = 0; k < kKeys; ++k) {
    for (int r = 0; r < kCodeRows; ++r) {
      sums[k][r] = hn::Zero(d);
    }
  }
  std::int64_t i = 0;
  for (; i + lanes <= dim; i += lanes) {
    CentroidVec row[kCodeRows];
    HWY_UNROLL(4)
    for (int r = 0; r < kCodeRows; ++r) {
      row[r] = LoadCodes(d, tile.rows[r] + i);
    }
    HWY_UNROLL(4)
    for (int k = 0; k < kKeys; ++k) {
      const auto key = hn::LoadU(d, keys[k] + i);
      HWY_UNROLL(4)
      for (int r = 0; r < kCodeRows; ++r) {
        sums[k][r] = hn::MulAdd(key, row[r], sums[k][r]);
      }
    }
  }
  if constexpr (hn::MaxLanes(CentroidFloats()) == 16) {
    if (i < dim) {  // an odd multiple of 8
      const hn::Half<CentroidFloats> half;
      for (int r = 0; r < kCodeRows; ++r) {
        const auto row = LoadCodes(half, tile.rows[r] + i);
        for (int k = 0; k < kKeys; ++k) {
          const auto product = hn::Mul(hn::LoadU(half, keys[k] + i), row);
          sums[k][r] = hn::Add(sums[k][r], hn::ZeroExtendVector(d, product));
        }
      }
    }
  }
  HWY_UNROLL(4)
  for (int k = 0; k < kKeys; ++k) {
    dots[k] = SumsOfFour(sums[k]);
  }
}

// Four numbers of `from`, filled up with `filler`.
HWY_INLINE FourVec LoadUpToFour(const float* from, std::int64_t count, float filler) {
  const FourFloats d4;
  if (count >= kCodeRows) return hn::LoadU(d4, from);
  HWY_ALIGN float padded[kCodeRows] = {filler, filler, filler, filler};
  std::copy_n(from, count, padded);
  return hn::Load(d4, padded);
}

float HalfSquareRow(const float* HWY_RESTRICT row, std::int64_t count) {
  const FourFloats d4;
  auto low = hn::Zero(d4);
  auto high = hn::Zero(d4);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const auto a = hn::LoadU(d4, row + i);
    const auto b = hn::LoadU(d4, row + i + 4);
    low = hn::MulAdd(a, a, low);
    high = hn::MulAdd(b, b, high);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d4, hn::Add(low, high)));
  for (; i < count; ++i) {
    sum += row[i] * row[i];
  }
  return sum / 2;
}

float QuantizeRow(std::span<const float> centroid, std::int8_t* HWY_RESTRICT codes) {
  const FourFloats d4;
  const hn::Rebind<std::int8_t, FourFloats> d8;
  constexpr float kLargestCode = 127.0F;
  auto largest = hn::Zero(d4);
  for (std::size_t i = 0; i < centroid.size(); i += 4) {
    largest = hn::Max(largest, hn::Abs(hn::LoadU(d4, centroid.data() + i)));
  }
  const float scale = hn::GetLane(hn::MaxOfLanes(d4, largest)) / kLargestCode;
  if (scale < std::numeric_limits<float>::min()) {
    std::fill_n(codes, centroid.size(), std::int8_t{0});
    return 0.0F;
  }
  for (std::size_t i = 0; i < centroid.size(); i += 4) {
    const auto quotient = hn::Div(hn::LoadU(d4, centroid.data() + i), hn::Set(d4, scale));
    hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(quotient)), d8, codes + i);
  }
  return scale;
}

// The products of the query with the four rows of a tile of sketches.
HWY_INLINE FourVec DotSketches(const float* HWY_RESTRICT query, const std::uint8_t* const* rows,
                               std::int64_t half) {
  const CentroidFloats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  CentroidVec sums[kCodeRows];
  for (int r = 0; r < kCodeRows; ++r) {
    sums[r] = hn::Zero(d);
  }
  std::int64_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    const auto low_query = hn::LoadU(d, query + i);
    const auto high_query = hn::LoadU(d, query + half + i);
    HWY_UNROLL(4)
    for (int r = 0; r < kCodeRows; ++r) {
      CentroidVec low;
      CentroidVec high;
      LoadSketch(d, rows[r] + i, low, high);
      sums[r] = hn::MulAdd(high_query, high, hn::MulAdd(low_query, low, sums[r]));
    }
  }
  FourVec dots = SumsOfFour(sums);
  if (i == half) return dots;
  // Less than a vector: in steps of four, which half a row is a multiple of.
  const FourFloats d4;
  HWY_ALIGN float rest[kCodeRows];
  for (int r = 0; r < kCodeRows; ++r) {
    auto sum = hn::Zero(d4);
    for (std::int64_t at = i; at < half; at += kCodeRows) {
      FourVec low;
      FourVec high;
      LoadSketch(d4, rows[r] + at, low, high);
      sum = hn::MulAdd(hn::LoadU(d4, query + at), low, sum);
      sum = hn::MulAdd(hn::LoadU(d4, query + half + at), high, sum);
    }
    rest[r] = hn::GetLane(hn::SumOfLanes(d4, sum));
  }
  return hn::Add(dots, hn::Load(d4, rest));
}

void ScoreSketchRows(std::span<const float> query, const std::uint8_t* HWY_RESTRICT sketches,
                     std::span<const float> scales, float* HWY_RESTRICT scores) {
  const FourFloats d4;
  constexpr float kScaleOfSketch = 127.0F / static_cast<float>(kSketchCodeMax);
  const std::int64_t half = std::ssize(query) / 2;
  const std::int64_t count = std::ssize(scales);
  for (std::int64_t first = 0; first < count; first += kCodeRows) {
    const CodeTile<std::uint8_t> tile(sketches, half, first, count);
    const auto scale = hn::Mul(LoadUpToFour(scales.data() + first, count - first, 0.0F),
                               hn::Set(d4, kScaleOfSketch));
    const auto score = hn::Mul(scale, DotSketches(query.data(), tile.rows, half));
    if (first + kCodeRows <= count) {
      hn::StoreU(score, d4, scores + first);
    } else {
      HWY_ALIGN float last[kCodeRows];
      hn::Store(score, d4, last);
      std::copy_n(last, count - first, scores + first);
    }
  }
}

// The nearest rows so far of up to kKeysMax keys, apart for each place in a tile.
struct NearestRows {
  HWY_ALIGN float distances[kKeysMax * kCodeRows];
  HWY_ALIGN std::int32_t rows[kKeysMax * kCodeRows];

  NearestRows() {
    std::fill(std::begin(distances), std::end(distances), std::numeric_limits<float>::infinity());
    std::fill(std::begin(rows), std::end(rows), -1);
  }

  // Of one key over all places: the lowest row of those that are equally near.
  std::int32_t Best(int key) const {
    std::int64_t best = key * kCodeRows;
    for (std::int64_t i = best + 1; i < (key + 1) * kCodeRows; ++i) {
      const bool is_nearer = distances[i] < distances[best];
      const bool is_lower = distances[i] == distances[best] && rows[i] < rows[best];
      if (is_nearer || is_lower) best = i;
    }
    return rows[best];
  }
};

// The four rows of a tile, and what nearness to them needs.
struct NearTile {
  CodeTile<std::int8_t> codes;
  FourVec scales;
  FourVec half_squares;
  std::int32_t first;
};

// Keys [first_key, key_count), kKeys at a time as far as they go, then all that are left.
template <int kKeys>
HWY_INLINE void UpdateNearest(const float* const* HWY_RESTRICT keys, int first_key, int key_count,
                              const NearTile& tile, std::int64_t dim, NearestRows& nearest) {
  const FourFloats d4;
  const hn::Rebind<std::int32_t, FourFloats> d32;
  for (; first_key + kKeys <= key_count; first_key += kKeys) {
    FourVec dots[kKeys];
    DotCodes<kKeys>(keys + first_key, tile.codes, dim, dots);
    HWY_UNROLL(4)
    for (int k = 0; k < kKeys; ++k) {
      float* HWY_RESTRICT best = nearest.distances + (first_key + k) * kCodeRows;
      std::int32_t* HWY_RESTRICT rows = nearest.rows + (first_key + k) * kCodeRows;
      const auto distance = hn::NegMulAdd(tile.scales, dots[k], tile.half_squares);
      const auto old_distance = hn::Load(d4, best);
      const auto is_nearer = hn::Lt(distance, old_distance);
      hn::Store(hn::IfThenElse(is_nearer, distance, old_distance), d4, best);
      hn::Store(hn::IfThenElse(hn::RebindMask(d32, is_nearer), hn::Iota(d32, tile.first),
                               hn::Load(d32, rows)),
                d32, rows);
    }
  }
  if constexpr (kKeys > 1) {
    UpdateNearest<kKeys - 1>(keys, first_key, key_count, tile, dim, nearest);
  }
}

void NearestCodeRows(const float* HWY_RESTRICT keys, const CodeRows& rows,
                     std::span<std::int32_t> nearest) {
  const std::int64_t count = std::ssize(rows.scales);
  for (std::int64_t key = 0; key < std::ssize(nearest); key += kKeysMax) {
    const int key_count =
        static_cast<int>(std::min<std::int64_t>(kKeysMax, std::ssize(nearest) - key));
    const float* key_rows[kKeysMax];
    for (int k = 0; k < key_count; ++k) {
      key_rows[k] = keys + (key + k) * rows.dim;
    }
    NearestRows best;
    for (std::int64_t first = 0; first < count; first += kCodeRows) {
      const NearTile tile = {
          CodeTile<std::int8_t>(rows.codes, rows.dim, first, count),
          LoadUpToFour(rows.scales.data() + first, count - first, 0.0F),
          LoadUpToFour(rows.half_squares.data() + first, count - first,
                       std::numeric_limits<float>::infinity()),
          static_cast<std::int32_t>(first),
      };
      UpdateNearest<kTileKeys>(key_rows, 0, key_count, tile, rows.dim, best);
    }
    for (int k = 0; k < key_count; ++k) {
      nearest[static_cast<std::size_t>(key + k)] = best.Best(k);
    }
  }
}

// Points whose nearest centroids are found together: a panel is read once for all of them, and they
// stay in the nearest cache with it.
struct PointBlock {
  static constexpr std::int64_t kPointsMax = 64;
  // For each point and lane the largest dot - half_square so far, and whose it is.
  HWY_ALIGN float nearness[kPointsMax * 16];
  HWY_ALIGN std::int32_t centroids[kPointsMax * 16];
};

// kTilePoints points against two vectors of centroids: for each pair one chain of sums over the
// dimensions in their order, so that it does not matter with what it is computed.
HWY_INLINE void NearestTile(const float* HWY_RESTRICT panel, std::int64_t dim,
                            const float* const* HWY_RESTRICT points, std::int32_t first_centroid,
                            float* HWY_RESTRICT nearness, std::int32_t* HWY_RESTRICT centroids) {
  const CentroidFloats d;
  const hn::RebindToSigned<CentroidFloats> d32;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  CentroidVec low[kTilePoints];
  CentroidVec high[kTilePoints];
  HWY_UNROLL(8)
  for (int p = 0; p < kTilePoints; ++p) {
    low[p] = hn::Load(d, panel);
    high[p] = hn::Load(d, panel + lanes);
  }
  for (std::int64_t i = 0; i < dim; ++i) {
    panel += CentroidPanels::kPanelCentroids;
    const auto panel_low = hn::Load(d, panel);
    const auto panel_high = hn::Load(d, panel + lanes);
    HWY_UNROLL(8)
    for (int p = 0; p < kTilePoints; ++p) {
      const auto x = hn::Set(d, points[p][i]);
      low[p] = hn::MulAdd(x, panel_low, low[p]);
      high[p] = hn::MulAdd(x, panel_high, high[p]);
    }
  }
  const auto low_index = hn::Iota(d32, first_centroid);
  const auto high_index = hn::Iota(d32, first_centroid + static_cast<std::int32_t>(lanes));
  HWY_UNROLL(8)
  for (int p = 0; p < kTilePoints; ++p) {
    const auto old = hn::Load(d, nearness + p * lanes);
    const auto old_index = hn::Load(d32, centroids + p * lanes);
    const auto is_low = hn::Gt(low[p], old);
    const auto best = hn::IfThenElse(is_low, low[p], old);
    const auto index = hn::IfThenElse(hn::RebindMask(d32, is_low), low_index, old_index);
    const auto is_high = hn::Gt(high[p], best);
    hn::Store(hn::IfThenElse(is_high, high[p], best), d, nearness + p * lanes);
    hn::Store(hn::IfThenElse(hn::RebindMask(d32, is_high), high_index, index), d32,
              centroids + p * lanes);
  }
}

// The lanes' winners become one: the lowest of those that are equally near.
HWY_INLINE std::int32_t BestOfLanes(const float* nearness, const std::int32_t* centroids) {
  const CentroidFloats d;
  const hn::RebindToSigned<CentroidFloats> d32;
  const auto lanes = hn::Load(d, nearness);
  const auto is_best = hn::RebindMask(d32, hn::Eq(lanes, hn::MaxOfLanes(d, lanes)));
  const auto none = hn::Set(d32, std::numeric_limits<std::int32_t>::max());
  return hn::GetLane(hn::MinOfLanes(d32, hn::IfThenElse(is_best, hn::Load(d32, centroids), none)));
}

void NearestOfPanels(const float* HWY_RESTRICT points, const CentroidPanels& panels,
                     std::span<std::int32_t> nearest) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(CentroidFloats()));
  const std::int64_t dim = panels.dim();
  // 16 KiB of points: with a panel they fill most of a small nearest cache.
  constexpr std::int64_t kBlockFloats = 4096;
  const std::int64_t block_points = std::clamp(kBlockFloats / dim / kTilePoints * kTilePoints,
                                               kTilePoints, PointBlock::kPointsMax);
  PointBlock block;
  for (std::int64_t first = 0; first < std::ssize(nearest); first += block_points) {
    const std::int64_t count = std::min(block_points, std::ssize(nearest) - first);
    std::fill(std::begin(block.nearness), std::end(block.nearness),
              -std::numeric_limits<float>::infinity());
    std::fill(std::begin(block.centroids), std::end(block.centroids), -1);
    for (std::int64_t panel = 0; panel < panels.panel_count(); ++panel) {
      for (std::int64_t lane = 0; lane < CentroidPanels::kPanelCentroids; lane += 2 * lanes) {
        for (std::int64_t p = 0; p < count; p += kTilePoints) {
          const float* rows[kTilePoints];
          for (std::int64_t r = 0; r < kTilePoints; ++r) {
            rows[r] = points + (first + std::min(p + r, count - 1)) * dim;
          }
          NearestTile(panels.panel(panel) + lane, dim, rows,
                      static_cast<std::int32_t>(panel * CentroidPanels::kPanelCentroids + lane),
                      block.nearness + p * lanes, block.centroids + p * lanes);
        }
      }
    }
    for (std::int64_t p = 0; p < count; ++p) {
      nearest[static_cast<std::size_t>(first + p)] =
          BestOfLanes(block.nearness + p * lanes, block.centroids + p * lanes);
    }
  }
}

}  // namespace cairn::compute::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
