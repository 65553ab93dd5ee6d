#include "tests/unit/kernels/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "compute-node/kernels/kv_entry.h"

namespace cairn::compute::reference {
std::vector<double> MatMul(WeightType type, const std::byte* rows, std::int64_t row_count,
                           std::int64_t column_count, std::span<const float> x) {
  const auto columns = static_cast<std::size_t>(column_count);
  const std::size_t token_count = x.size() / columns;
  const auto row_total = static_cast<std::size_t>(row_count);
  std::vector<double> out(token_count * row_total);
  std::vector<float> weights(columns);
  for (std::size_t row = 0; row < row_total; ++row) {
    DequantizeRow(type, rows + static_cast<std::int64_t>(row) * WeightRowBytes(type, column_count),
                  weights);
    for (std::size_t token = 0; token < token_count; ++token) {
      double sum = 0.0;
      for (std::size_t k = 0; k < columns; ++k) {
        sum += static_cast<double>(weights[k]) * static_cast<double>(x[token * columns + k]);
      }
      out[token * row_total + row] = sum;
    }
  }
  return out;
}

std::vector<double> Attention(std::span<const std::byte* const> entries, KvFormat format,
                              std::int64_t head_dim, double scale, std::span<const float> query) {
  std::vector<float> key(static_cast<std::size_t>(head_dim));
  std::vector<float> value(key.size());
  std::vector<double> scores;
  double largest = -std::numeric_limits<double>::infinity();
  for (const std::byte* entry : entries) {
    LoadKvEntry(entry, format, key, value);
    double score = 0.0;
    for (std::size_t i = 0; i < key.size(); ++i) {
      score += static_cast<double>(key[i]) * static_cast<double>(query[i]);
    }
    scores.push_back(score * scale);
    largest = std::max(largest, scores.back());
  }
  std::vector<double> out(static_cast<std::size_t>(head_dim));
  double sum = 0.0;
  for (std::size_t e = 0; e < entries.size(); ++e) {
    const double weight = std::exp(scores[e] - largest);
    LoadKvEntry(entries[e], format, key, value);
    sum += weight;
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] += weight * static_cast<double>(value[i]);
    }
  }
  for (double& element : out) {
    element /= sum;
  }
  return out;
}

std::vector<double> RmsNorm(std::span<const float> x, std::span<const float> weight,
                            double epsilon) {
  double sum = 0.0;
  for (const float v : x) {
    sum += static_cast<double>(v) * static_cast<double>(v);
  }
  const double scale = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + epsilon);
  std::vector<double> out;
  for (std::size_t i = 0; i < x.size(); ++i) {
    out.push_back(static_cast<double>(x[i]) * scale * static_cast<double>(weight[i]));
  }
  return out;
}

std::vector<double> ScoreCodes(std::span<const float> query, const std::int8_t* codes,
                               std::span<const float> scales) {
  std::vector<double> scores;
  for (std::size_t i = 0; i < scales.size(); ++i) {
    double sum = 0.0;
    for (std::size_t j = 0; j < query.size(); ++j) {
      sum += static_cast<double>(query[j]) * static_cast<double>(codes[i * query.size() + j]);
    }
    scores.push_back(sum * static_cast<double>(scales[i]));
  }
  return scores;
}

std::vector<double> HalfDistances(std::span<const float> row, std::span<const float> centroids,
                                  std::span<const float> half_squares) {
  std::vector<double> distances;
  for (std::size_t i = 0; i < half_squares.size(); ++i) {
    double sum = 0.0;
    for (std::size_t j = 0; j < row.size(); ++j) {
      sum += static_cast<double>(row[j]) * static_cast<double>(centroids[i * row.size() + j]);
    }
    distances.push_back(static_cast<double>(half_squares[i]) - sum);
  }
  return distances;
}

std::uint16_t F32ToF16Bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(sign | 0x7e00);
  }
  // Half of the step below infinity rounds up to it.
  constexpr double kRoundsToInfinity = 65520.0;
  const double magnitude = std::abs(static_cast<double>(value));
  if (magnitude >= kRoundsToInfinity) {
    return static_cast<std::uint16_t>(sign | 0x7c00);
  }
  // The spacing of f16 numbers around this one; rint rounds to nearest even.
  const int exponent = std::max(magnitude > 0.0 ? std::ilogb(magnitude) : -14, -14);
  const auto steps = static_cast<int>(std::rint(std::ldexp(magnitude, 10 - exponent)));
  return static_cast<std::uint16_t>(sign | (((exponent + 14) << 10) + steps));
}

}  // namespace cairn::compute::reference
