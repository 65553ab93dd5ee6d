// What the tests of weight types share: the types, and rows of random bytes, which reach every
// number that a block can hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "compute-node/kernels/dequantize.h"
#include "tests/tools/tensor_encoding.h"
#include "tests/unit/kernels/kernel_testing.h"

namespace cairn::compute {

struct TypePair {
  WeightType type;
  test::TensorType encoded;
  const char* name;
  // Where a block has f16 numbers; -1: nowhere.
  int half_at = -1;
  int other_half_at = -1;
};

inline constexpr TypePair kTypes[] = {
    {WeightType::kF32, test::TensorType::kF32, "F32"},
    {WeightType::kF16, test::TensorType::kF16, "F16"},
    {WeightType::kBF16, test::TensorType::kBf16, "BF16"},
    {WeightType::kQ80, test::TensorType::kQ80, "Q8_0", 0},
    {WeightType::kQ40, test::TensorType::kQ40, "Q4_0", 0},
    {WeightType::kQ41, test::TensorType::kQ41, "Q4_1", 0, 2},
    {WeightType::kQ50, test::TensorType::kQ50, "Q5_0", 0},
    {WeightType::kQ51, test::TensorType::kQ51, "Q5_1", 0, 2},
    {WeightType::kIq4Nl, test::TensorType::kIq4Nl, "IQ4_NL", 0},
    {WeightType::kIq4Xs, test::TensorType::kIq4Xs, "IQ4_XS", 0},
    {WeightType::kQ2K, test::TensorType::kQ2K, "Q2_K", 80, 82},
    {WeightType::kQ3K, test::TensorType::kQ3K, "Q3_K", 108},
    {WeightType::kQ4K, test::TensorType::kQ4K, "Q4_K", 0, 2},
    {WeightType::kQ5K, test::TensorType::kQ5K, "Q5_K", 0, 2},
    {WeightType::kQ6K, test::TensorType::kQ6K, "Q6_K", 208},
};

inline void PutHalfAt(std::byte* block, int at, std::uint16_t bits) {
  if (at >= 0) std::memcpy(block + at, &bits, sizeof(bits));
}

// Rows as a file stores them. Quantised ones are random bytes with scales and minimums of a
// thousandth or so; others random values.
inline std::vector<std::byte> RandomRows(test::Rng& rng, const TypePair& type,
                                         std::int64_t row_count, std::int64_t column_count) {
  const auto value_count = static_cast<std::size_t>(row_count * column_count);
  std::vector<std::uint8_t> bytes;
  test::EncodeValues(RandomRow(rng, value_count), type.encoded, bytes);
  if (IsQuantised(type.type)) {
    for (std::uint8_t& byte : bytes) {
      byte = static_cast<std::uint8_t>(rng.Below(256));
    }
  }
  std::vector<std::byte> rows(bytes.size());
  std::memcpy(rows.data(), bytes.data(), bytes.size());
  if (!IsQuantised(type.type)) return rows;
  const auto block_bytes = static_cast<std::size_t>(test::InfoOf(type.encoded).block_bytes);
  for (std::size_t at = 0; at < rows.size(); at += block_bytes) {
    PutHalfAt(rows.data() + at, type.half_at, test::HalfFromFloat(rng.Normal() * 1e-3F));
    PutHalfAt(rows.data() + at, type.other_half_at, test::HalfFromFloat(rng.Normal() * 1e-3F));
  }
  return rows;
}

}  // namespace cairn::compute
