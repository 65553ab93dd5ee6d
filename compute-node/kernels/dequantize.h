// Weight types that Cairn computes with, as GGUF stores their rows, and their decoding to f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace cairn::compute {

enum class WeightType { kF32, kF16, kBF16, kQ80, kQ40, kQ6K };

inline constexpr std::string_view kWeightTypeNames = "F32, F16, BF16, Q8_0, Q4_0, Q6_K";

// Q8_0 and Q4_0 store blocks of 32 values, Q6_K of 256; a row is a whole number of blocks.
std::int64_t WeightBlockValues(WeightType type);
std::int64_t WeightRowBytes(WeightType type, std::int64_t column_count);

// Quantised types, whose products are computed with integers.
constexpr bool IsQuantised(WeightType type) {
  return type == WeightType::kQ80 || type == WeightType::kQ40 || type == WeightType::kQ6K;
}

// Decodes one row of out.size() columns at `row`, which need not be aligned.
void DequantizeRow(WeightType type, const std::byte* row, std::span<float> out);

// The 6-bit number (0 to 63, standing for value - 32) of one column of a 256-value Q6_K block.
int Q6Value(const std::byte* block, int index);

// f16 bits to f32, exactly, and back, rounding to nearest even: for processors without such
// instructions.
float F16BitsToF32(std::uint16_t bits);
std::uint16_t F32ToF16Bits(float value);

}  // namespace cairn::compute
