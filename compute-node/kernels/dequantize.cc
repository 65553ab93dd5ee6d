#include "compute-node/kernels/dequantize.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "compute-node/kernels/kv_entry.h"
#include "compute-node/kernels/quant_block.h"

namespace cairn::compute {
namespace {

template <WeightType kType>
void DequantizeBlocks(const std::byte* row, std::span<float> out) {
  constexpr QuantLayout kLayout = QuantLayoutOf(kType);
  constexpr auto kValues = static_cast<std::size_t>(kLayout.values);
  for (std::size_t i = 0; i < out.size(); i += kValues, row += kLayout.bytes) {
    GroupScale group;
    for (std::size_t j = 0; j < kValues; j += 4) {
      if (j % kGroupValues == 0) group = GroupScaleOf(kType, row, static_cast<int>(j));
      const std::uint32_t numbers = FourNumbers<kType>(row, static_cast<int>(j));
      for (std::size_t k = 0; k < 4; ++k) {
        const std::uint32_t number = numbers >> (k * 8) & 255;
        const int value =
            kLayout.table ? kIq4NlTable[number] : static_cast<int>(number) - kLayout.offset;
        out[i + j + k] = group.scale * static_cast<float>(value) + group.min;
      }
    }
  }
}

constexpr std::uint16_t kF16Exponent = 0x7c00;
constexpr std::uint16_t kBf16Exponent = 0x7f80;
constexpr std::uint32_t kF32Exponent = 0x7f800000;

template <typename Bits>
Bits LoadBits(const std::byte* at) {
  Bits bits;
  std::memcpy(&bits, at, sizeof(bits));
  return bits;
}

// NaN and infinity have all bits of the exponent set.
template <typename Bits>
std::int64_t FirstFloat(const std::byte* row, std::int64_t column_count, Bits exponent) {
  // Without a way out of the inner loop the compiler makes vectors of it.
  constexpr std::int64_t kAtOnce = 512;
  for (std::int64_t first = 0; first < column_count; first += kAtOnce) {
    const std::int64_t end = std::min(first + kAtOnce, column_count);
    Bits found = 0;
    for (std::int64_t i = first; i < end; ++i) {
      const auto bits = LoadBits<Bits>(row + i * static_cast<std::int64_t>(sizeof(Bits)));
      found = static_cast<Bits>(found | ((bits & exponent) == exponent ? 1 : 0));
    }
    if (found == 0) continue;
    for (std::int64_t i = first; i < end; ++i) {
      const auto bits = LoadBits<Bits>(row + i * static_cast<std::int64_t>(sizeof(Bits)));
      if ((bits & exponent) == exponent) return i;
    }
  }
  return -1;
}

template <WeightType kType>
std::int64_t FirstBlock(const std::byte* row, std::int64_t column_count) {
  constexpr QuantLayout kLayout = QuantLayoutOf(kType);
  const auto is_finite = [](const std::byte* half) {
    return (LoadBits<std::uint16_t>(half) & kF16Exponent) != kF16Exponent;
  };
  for (std::int64_t i = 0; i < column_count; i += kLayout.values, row += kLayout.bytes) {
    if (!is_finite(row + kLayout.scale_at)) return i;
    if constexpr (kLayout.min_at >= 0) {
      if (!is_finite(row + kLayout.min_at)) return i;
    }
  }
  return -1;
}

}  // namespace

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

float LoadF16(const std::byte* from) { return F16BitsToF32(LoadBits<std::uint16_t>(from)); }

std::int64_t WeightBlockValues(WeightType type) {
  return IsQuantised(type) ? QuantLayoutOf(type).values : 1;
}

std::int64_t WeightRowBytes(WeightType type, std::int64_t column_count) {
  if (type == WeightType::kF32) return column_count * 4;
  if (!IsQuantised(type)) return column_count * 2;
  const QuantLayout layout = QuantLayoutOf(type);
  return column_count / layout.values * layout.bytes;
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
        const std::uint32_t bits = LoadBits<std::uint16_t>(row + i * 2);
        out[i] = std::bit_cast<float>(bits << 16);
      }
      return;
    default:
      ForQuantType(type, [&]<WeightType kType>() {
        if constexpr (kType == WeightType::kQ80) {
          for (std::size_t i = 0; i < out.size(); i += 32, row += 34) {
            LoadQ8Row(row, out.subspan(i, 32));
          }
        } else {
          DequantizeBlocks<kType>(row, out);
        }
      });
  }
}

std::int64_t FirstNotFinite(WeightType type, const std::byte* row, std::int64_t column_count) {
  switch (type) {
    case WeightType::kF32:
      return FirstFloat(row, column_count, kF32Exponent);
    case WeightType::kF16:
      return FirstFloat(row, column_count, kF16Exponent);
    case WeightType::kBF16:
      return FirstFloat(row, column_count, kBf16Exponent);
    default:
      break;
  }
  std::int64_t column = -1;
  ForQuantType(type, [&]<WeightType kType>() { column = FirstBlock<kType>(row, column_count); });
  return column;
}

}  // namespace cairn::compute
