#include "compute-node/kernels/dequantize.h"

#include <bit>
#include <cstring>

#include "common/base/check.h"

namespace cairn::compute {
namespace {

std::uint16_t LoadU16(const std::byte* data) {
  std::uint16_t value;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

int LoadU8(const std::byte* data) { return std::to_integer<int>(*data); }

float LoadF16(const std::byte* data) { return F16BitsToF32(LoadU16(data)); }

// Block: f16 scale, 32 int8.
void DequantizeQ8(const std::byte* row, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); i += 32, row += 34) {
    const float scale = LoadF16(row);
    for (std::size_t j = 0; j < 32; ++j) {
      out[i + j] = scale * static_cast<float>(static_cast<std::int8_t>(row[2 + j]));
    }
  }
}

// Block: f16 scale, 16 bytes; byte j holds value j in its low and value j + 16 in its high half,
// offset by 8.
void DequantizeQ4(const std::byte* row, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); i += 32, row += 18) {
    const float scale = LoadF16(row);
    for (std::size_t j = 0; j < 16; ++j) {
      const int pair = LoadU8(row + 2 + j);
      out[i + j] = scale * static_cast<float>((pair & 15) - 8);
      out[i + j + 16] = scale * static_cast<float>((pair >> 4) - 8);
    }
  }
}

// Block of 256: 128 bytes of low halves, 64 bytes of high bit pairs, 16 int8 scales, f16 scale of
// those.
void DequantizeQ6(const std::byte* row, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); i += 256, row += 210) {
    const float scale = LoadF16(row + 208);
    for (std::size_t j = 0; j < 256; ++j) {
      const auto sub_scale = static_cast<float>(static_cast<std::int8_t>(row[192 + j / 16]));
      out[i + j] = scale * sub_scale * static_cast<float>(Q6Value(row, static_cast<int>(j)) - 32);
    }
  }
}

}  // namespace

int Q6Value(const std::byte* block, int index) {
  const std::ptrdiff_t half = index / 128;
  const std::ptrdiff_t quarter = index % 128 / 32;
  const std::ptrdiff_t column = index % 32;
  const int low = LoadU8(block + half * 64 + quarter % 2 * 32 + column) >> (quarter / 2 * 4) & 15;
  const int high = LoadU8(block + 128 + half * 32 + column) >> (quarter * 2) & 3;
  return low | high << 4;
}

float F16BitsToF32(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t exponent = bits >> 10 & 31;
  const std::uint32_t mantissa = bits & 0x3ff;
  if (exponent == 31) {
    return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  }
  if (exponent != 0) {
    return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  }
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return sign == 0 ? magnitude : -magnitude;
}

std::uint16_t F32ToF16Bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  constexpr std::uint32_t kInfinity = 0x7f800000;
  constexpr std::uint32_t kRoundsToInfinity = 0x477ff000;  // 65520
  constexpr std::uint32_t kSmallestNormal = 0x38800000;    // 2^-14
  std::uint32_t half = 0;
  if (magnitude > kInfinity) {
    half = 0x7e00;
  } else if (magnitude >= kRoundsToInfinity) {
    half = 0x7c00;
  } else if (magnitude >= kSmallestNormal) {
    // Rebias the exponent and round the 13 bits that go to nearest even; a carry into the exponent
    // is right.
    half = (magnitude - (112U << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  } else {
    // Adding 0.5 leaves the number in units of 2^-24, rounded to nearest even by the addition.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) -
           std::bit_cast<std::uint32_t>(0.5F);
  }
  return static_cast<std::uint16_t>(sign | half);
}

std::int64_t WeightBlockValues(WeightType type) {
  if (type == WeightType::kQ6K) {
    return 256;
  }
  return IsQuantised(type) ? 32 : 1;
}

std::int64_t WeightRowBytes(WeightType type, std::int64_t column_count) {
  switch (type) {
    case WeightType::kF32:
      return column_count * 4;
    case WeightType::kF16:
    case WeightType::kBF16:
      return column_count * 2;
    case WeightType::kQ80:
      return column_count / 32 * 34;
    case WeightType::kQ40:
      return column_count / 32 * 18;
    case WeightType::kQ6K:
      return column_count / 256 * 210;
  }
  CAIRN_CHECK(false);
  return 0;
}

void DequantizeRow(WeightType type, const std::byte* row, std::span<float> out) {
  switch (type) {
    case WeightType::kF32:
      std::memcpy(out.data(), row, out.size_bytes());
      return;
    case WeightType::kF16:
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = LoadF16(row + i * 2);
      }
      return;
    case WeightType::kBF16:
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(LoadU16(row + i * 2)) << 16);
      }
      return;
    case WeightType::kQ80:
      DequantizeQ8(row, out);
      return;
    case WeightType::kQ40:
      DequantizeQ4(row, out);
      return;
    case WeightType::kQ6K:
      DequantizeQ6(row, out);
      return;
  }
}

}  // namespace cairn::compute
