// Reference versions of the kernels, with which the tests compare them: plain loops in double
// precision, without SIMD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/kv/kv_format.h"
#include "compute-node/kernels/dequantize.h"

namespace cairn::compute::reference {

// out[token][row] = x[token] . W[row]; `rows` as GGUF stores them.
std::vector<double> MatMul(WeightType type, const std::byte* rows, std::int64_t row_count,
                           std::int64_t column_count, std::span<const float> x);

// softmax(scale * q K^T) V of one query row over `entries`.
std::vector<double> Attention(std::span<const std::byte* const> entries, KvFormat format,
                              std::int64_t head_dim, double scale, std::span<const float> query);

std::vector<double> RmsNorm(std::span<const float> x, std::span<const float> weight,
                            double epsilon);

// scales[i] * (query . codes_i); row i of `codes` begins at i * query.size().
std::vector<double> ScoreCodes(std::span<const float> query, const std::int8_t* codes,
                               std::span<const float> scales);

// half_squares[i] - row . centroid_i: what the nearest centroid has least of.
std::vector<double> HalfDistances(std::span<const float> row, std::span<const float> centroids,
                                  std::span<const float> half_squares);

// f32 to f16 bits, rounding to nearest even.
std::uint16_t F32ToF16Bits(float value);

}  // namespace cairn::compute::reference
