#include "compute-node/kernels/finite.h"

#include <algorithm>
#include <cstring>

#include "compute-node/kernels/quant_block.h"

namespace cairn::compute {
namespace {

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
