// Weight types that Cairn computes with, as GGUF stores their rows: their decoding to f32, and
// finding those that are no numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace cairn::compute {

enum class WeightType {
  kF32,
  kF16,
  kBF16,
  kQ80,
  kQ40,
  kQ41,
  kQ50,
  kQ51,
  kIq4Nl,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  kIq4Xs
};

inline constexpr std::string_view kWeightTypeNames =
    "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K";

// Quantised types store blocks of 32 values, IQ4_XS and those with a K in their names of 256; a row
// is a whole number of blocks.
std::int64_t WeightBlockValues(WeightType type);
std::int64_t WeightRowBytes(WeightType type, std::int64_t column_count);

// Quantised types, whose products are computed with integers.
constexpr bool IsQuantised(WeightType type) {
  return type != WeightType::kF32 && type != WeightType::kF16 && type != WeightType::kBF16;
}

// Decodes one row of out.size() columns at `row`, which need not be aligned.
void DequantizeRow(WeightType type, const std::byte* row, std::span<float> out);

// The column of the first NaN or infinity in the row at `row`, which need not be aligned; -1: there
// is none. Where the scale or minimum of a block is one, all values of the block are. Reads the
// bytes once, at the speed of memory: of a quantised row only the scales.
std::int64_t FirstNotFinite(WeightType type, const std::byte* row, std::int64_t column_count);

// f16 bits to f32, exactly, and back, rounding to nearest even: for processors without such
// instructions.
float F16BitsToF32(std::uint16_t bits);
std::uint16_t F32ToF16Bits(float value);
// The f16 number at `from`, which need not be aligned.
float LoadF16(const std::byte* from);

}  // namespace cairn::compute
