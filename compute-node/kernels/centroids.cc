#include "compute-node/kernels/centroids.h"

#include <algorithm>
#include <limits>

#include "common/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute-node/kernels/centroids.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include "compute-node/kernels/centroids-inl.h"

#if HWY_ONCE
namespace cairn::compute {

HWY_EXPORT(HalfSquareRow);
HWY_EXPORT(QuantizeRow);
HWY_EXPORT(ScoreSketchRows);
HWY_EXPORT(NearestCodeRows);
HWY_EXPORT(NearestOfPanels);

namespace {

void CheckCodeDim(std::int64_t dim) { CAIRN_CHECK(dim > 0 && dim <= kCodeDimMax && dim % 8 == 0); }

// A code's 4 bits: whole numbers, so that they are the same everywhere.
std::int32_t SketchNumber(std::int8_t code) {
  constexpr std::int32_t kCodeMax = 127;
  const std::int32_t half = code < 0 ? -kCodeMax : kCodeMax;
  return (2 * kSketchCodeMax * code + half) / (2 * kCodeMax) + kSketchZero;
}

}  // namespace

float HalfSquare(std::span<const float> row) {
  return HWY_DYNAMIC_DISPATCH(HalfSquareRow)(row.data(), std::ssize(row));
}

float QuantizeCentroid(std::span<const float> centroid, std::int8_t* codes) {
  CheckCodeDim(std::ssize(centroid));
  return HWY_DYNAMIC_DISPATCH(QuantizeRow)(centroid, codes);
}

void SketchOf(std::span<const std::int8_t> codes, std::uint8_t* sketch) {
  CheckCodeDim(std::ssize(codes));
  const std::size_t half = codes.size() / 2;
  for (std::size_t i = 0; i < half; ++i) {
    sketch[i] =
        static_cast<std::uint8_t>(SketchNumber(codes[i]) | SketchNumber(codes[i + half]) << 4);
  }
}

void ScoreSketches(std::span<const float> query, const std::uint8_t* sketches,
                   std::span<const float> scales, std::span<float> scores) {
  CheckCodeDim(std::ssize(query));
  CAIRN_CHECK_EQ(scales.size(), scores.size());
  HWY_DYNAMIC_DISPATCH(ScoreSketchRows)(query, sketches, scales, scores.data());
}

void NearestCode(std::span<const float> keys, const CodeRows& rows,
                 std::span<std::int32_t> nearest) {
  CheckCodeDim(rows.dim);
  CAIRN_CHECK_EQ(std::ssize(keys), std::ssize(nearest) * rows.dim);
  CAIRN_CHECK_EQ(rows.scales.size(), rows.half_squares.size());
  HWY_DYNAMIC_DISPATCH(NearestCodeRows)(keys.data(), rows, nearest);
}

CentroidPanels::CentroidPanels(std::int64_t dim, std::int64_t count)
    : dim_(dim), count_(count), rows_(static_cast<std::size_t>(panel_count() * (1 + dim))) {
  CAIRN_CHECK(dim > 0);
  CAIRN_CHECK(count >= 0 && count <= std::numeric_limits<std::int32_t>::max());
  for (std::int64_t panel = 0; panel < panel_count(); ++panel) {
    Row& half_squares = rows_[static_cast<std::size_t>(panel * (1 + dim_))];
    std::fill_n(half_squares.lanes, kPanelCentroids, -std::numeric_limits<float>::infinity());
  }
}

void CentroidPanels::Set(std::int64_t index, std::span<const float> centroid, float half_square) {
  CAIRN_CHECK(index >= 0 && index < count_);
  CAIRN_CHECK_EQ(std::ssize(centroid), dim_);
  Row* row = &rows_[static_cast<std::size_t>(index / kPanelCentroids * (1 + dim_))];
  const std::int64_t lane = index % kPanelCentroids;
  row->lanes[lane] = -half_square;
  for (const float value : centroid) {
    (++row)->lanes[lane] = value;
  }
}

void NearestCentroids(std::span<const float> points, const CentroidPanels& centroids,
                      std::span<std::int32_t> nearest) {
  CAIRN_CHECK_EQ(std::ssize(points), std::ssize(nearest) * centroids.dim());
  HWY_DYNAMIC_DISPATCH(NearestOfPanels)(points.data(), centroids, nearest);
}

void NearestCentroids(std::span<const float> points, std::span<const float> centroids,
                      std::span<const float> half_squares, std::span<std::int32_t> nearest) {
  if (nearest.empty()) return;
  CAIRN_CHECK_EQ(points.size() % nearest.size(), 0U);
  const std::size_t dim = points.size() / nearest.size();
  CAIRN_CHECK_EQ(centroids.size(), half_squares.size() * dim);
  CentroidPanels panels(static_cast<std::int64_t>(dim), std::ssize(half_squares));
  for (std::size_t i = 0; i < half_squares.size(); ++i) {
    panels.Set(static_cast<std::int64_t>(i), centroids.subspan(i * dim, dim), half_squares[i]);
  }
  NearestCentroids(points, panels, nearest);
}

}  // namespace cairn::compute
#endif
