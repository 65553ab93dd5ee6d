// Products and nearest rows among centroids: what scoring the clusters of a head, assigning a key
// to one of them and K-means are made of.
//
// Nearness is measured by half_square - dot, half the squared distance less what is the same for
// every centroid; half_square is half the squared length of a centroid. One of +infinity never
// wins: so a row is left out.
//
// Determinism: a result depends only on the numbers of its own query, key or point and of the
//              centroids, never on how many of them a call has or which thread makes it.
//              Instruction sets may differ in the last bits.
// Threading:   functions of their arguments only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cairn::compute {

// Half the squared length.
float HalfSquare(std::span<const float> row);

// The most numbers of a row of codes, which is a multiple of 8.
inline constexpr std::int64_t kCodeDimMax = 512;

// codes[i] = centroid[i] / scale, rounded to the nearest, with scale = max|centroid| / 127, which
// is the answer. A row whose scale would be below the smallest normal float counts as zero: scale
// 0, codes 0.
float QuantizeCentroid(std::span<const float> centroid, std::int8_t* codes);

// Codes in 4 bits, half as many bytes: code * kSketchCodeMax / 127, rounded to the nearest, halves
// away from zero. Byte i of `sketch` has number i, plus 8, in its low half and number i +
// codes.size() / 2, plus 8, in its high half.
inline constexpr std::int32_t kSketchCodeMax = 7;
inline constexpr std::int32_t kSketchZero = 8;
void SketchOf(std::span<const std::int8_t> codes, std::uint8_t* sketch);

// scores[i] = scales[i] * 127 / kSketchCodeMax * (query . numbers of sketch i). Row i of `sketches`
// begins at i * query.size() / 2; scales are those of the codes.
void ScoreSketches(std::span<const float> query, const std::uint8_t* sketches,
                   std::span<const float> scales, std::span<float> scores);

// Quantised centroids, row i at codes + i * dim.
struct CodeRows {
  std::int64_t dim = 0;
  const std::int8_t* codes = nullptr;
  std::span<const float> scales;
  std::span<const float> half_squares;
};

// nearest[k] = the row of the least half_squares[i] - scales[i] * (key_k . codes_i), the lowest
// among equals; -1 if every row is left out. `keys` has nearest.size() rows of rows.dim numbers.
void NearestCode(std::span<const float> keys, const CodeRows& rows,
                 std::span<std::int32_t> nearest);

// Centroids of floats as NearestCentroids reads them: in panels of 32, one dimension after the
// other.
//
// Threading:  different panels may be set by different threads.
class CentroidPanels {
 public:
  static constexpr std::int64_t kPanelCentroids = 32;

  // All of them left out until they are set.
  CentroidPanels(std::int64_t dim, std::int64_t count);

  void Set(std::int64_t index, std::span<const float> centroid, float half_square);

  std::int64_t dim() const { return dim_; }
  std::int64_t count() const { return count_; }
  std::int64_t panel_count() const { return (count_ + kPanelCentroids - 1) / kPanelCentroids; }
  // -half_square of each centroid, then their numbers: (1 + dim) rows of kPanelCentroids.
  const float* panel(std::int64_t index) const {
    return rows_[static_cast<std::size_t>(index * (1 + dim_))].lanes;
  }

 private:
  struct alignas(64) Row {
    float lanes[kPanelCentroids] = {};
  };

  std::int64_t dim_;
  std::int64_t count_;
  std::vector<Row> rows_;
};

// nearest[p] = the centroid of the least half_square - point_p . centroid, the lowest among equals;
// -1 if every centroid is left out. `points` has nearest.size() rows.
void NearestCentroids(std::span<const float> points, const CentroidPanels& centroids,
                      std::span<std::int32_t> nearest);

// The same for rows of `dim` floats, which are packed first.
void NearestCentroids(std::span<const float> points, std::span<const float> centroids,
                      std::span<const float> half_squares, std::span<std::int32_t> nearest);

}  // namespace cairn::compute
