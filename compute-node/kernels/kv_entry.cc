#include "compute-node/kernels/kv_entry.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "common/base/check.h"
#include "compute-node/kernels/convert.h"
#include "compute-node/kernels/dequantize.h"

namespace cairn::compute {
namespace {

constexpr std::uint16_t kNanHalf = 0x7e00;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kQ8Max = 127.0F;
constexpr float kQ4Max = 15.0F;

void PutHalf(std::uint16_t bits, std::byte* to) { std::memcpy(to, &bits, sizeof(bits)); }

// The least f16 number that is not below x: a scale that was rounded down could not reach the
// largest numbers of its row. REQUIRES: x >= 0. Infinity where there is none.
std::uint16_t HalfNotBelow(float x) {
  const std::uint16_t bits = F32ToF16Bits(x);
  return F16BitsToF32(bits) < x ? static_cast<std::uint16_t>(bits + 1) : bits;
}

// The greatest f16 number that is not above x.
std::uint16_t HalfNotAbove(float x) {
  const std::uint16_t bits = F32ToF16Bits(x);
  if (F16BitsToF32(bits) <= x) return bits;
  const bool negative = (bits & 0x8000) != 0;
  if (bits == 0) return 0x8001;
  return static_cast<std::uint16_t>(negative ? bits + 1 : bits - 1);
}

// To the nearest integer, ties to even, for |x| < 2^22: the sum has no room for a fraction. Unlike
// a call of rint it can be vectorised.
float RoundToInteger(float x) {
  constexpr float kShift = 0x1.8p23F;
  return (x + kShift) - kShift;
}

// Whether all numbers are nearer to 0 than `limit`. As whole numbers they compare alike, and NaN is
// beyond infinity.
bool IsBelow(std::span<const float> row, float limit) {
  constexpr std::uint32_t kNoSign = 0x7fffffff;
  std::uint32_t largest = 0;
  for (const float x : row) largest = std::max(largest, std::bit_cast<std::uint32_t>(x) & kNoSign);
  return largest < std::bit_cast<std::uint32_t>(limit);
}

// The first number that f16 rounds to infinity.
constexpr float kHalfLimit = 65520.0F;

KvMisfit Misfit(bool key_fits, bool value_fits) {
  if (!key_fits) return KvMisfit::kKey;
  return value_fits ? KvMisfit::kNone : KvMisfit::kValue;
}

// Scale and minimum of each group, then the numbers, two a byte, the first in the low half. Answers
// whether all groups have one.
bool StoreQ4Row(std::span<const float> row, std::byte* to) {
  constexpr auto kGroup = static_cast<std::size_t>(kKvGroupNumbers);
  const std::size_t group_count = (row.size() + kGroup - 1) / kGroup;
  std::byte* numbers = to + 4 * group_count;
  std::memset(numbers, 0, (row.size() + 1) / 2);
  bool all_fit = true;
  for (std::size_t g = 0; g < group_count; ++g) {
    const auto group = row.subspan(g * kGroup, std::min(kGroup, row.size() - g * kGroup));
    float least = group[0];
    float largest = group[0];
    bool is_finite = true;
    for (const float x : group) {
      least = std::min(least, x);
      largest = std::max(largest, x);
      is_finite = is_finite && std::isfinite(x);
    }
    std::uint16_t minimum_bits = is_finite ? HalfNotAbove(least) : kNanHalf;
    const float minimum = F16BitsToF32(minimum_bits);
    std::uint16_t scale_bits = is_finite ? HalfNotBelow((largest - minimum) / kQ4Max) : kNanHalf;
    const float scale = F16BitsToF32(scale_bits);
    const bool fits = std::isfinite(minimum) && std::isfinite(scale);
    all_fit = all_fit && fits;
    PutHalf(fits ? scale_bits : kNanHalf, to + 4 * g);
    PutHalf(fits ? minimum_bits : kNanHalf, to + 4 * g + 2);
    const float inverse = fits && scale > 0.0F ? 1.0F / scale : 0.0F;
    for (std::size_t i = 0; fits && i < group.size(); ++i) {
      const float q = std::clamp(RoundToInteger((group[i] - minimum) * inverse), 0.0F, kQ4Max);
      const std::size_t at = g * kGroup + i;
      numbers[at / 2] |= static_cast<std::byte>(static_cast<int>(q) << (at % 2 * 4));
    }
  }
  return all_fit;
}

void LoadQ4Row(const std::byte* from, std::span<float> row) {
  constexpr auto kGroup = static_cast<std::size_t>(kKvGroupNumbers);
  const std::byte* numbers = from + 4 * ((row.size() + kGroup - 1) / kGroup);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::byte* header = from + i / kGroup * 4;
    const int q = static_cast<int>(numbers[i / 2]) >> (i % 2 * 4) & 15;
    row[i] = LoadF16(header) * static_cast<float>(q) + LoadF16(header + 2);
  }
}

}  // namespace

bool StoreQ8Row(std::span<const float> row, std::byte* to) {
  float largest = 0.0F;
  bool is_finite = true;
  for (const float x : row) {
    largest = std::max(largest, std::abs(x));
    is_finite = is_finite && std::isfinite(x);
  }
  const std::uint16_t bits = is_finite ? HalfNotBelow(largest / kQ8Max) : kNanHalf;
  const float scale = F16BitsToF32(bits);
  if (!std::isfinite(scale)) {
    PutHalf(kNanHalf, to);
    std::memset(to + 2, 0, row.size());
    return false;
  }
  PutHalf(bits, to);
  const float inverse = scale > 0.0F ? 1.0F / scale : 0.0F;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const float q = std::clamp(RoundToInteger(row[i] * inverse), -kQ8Max, kQ8Max);
    to[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(q));
  }
  return true;
}

void LoadQ8Row(const std::byte* from, std::span<float> row) {
  const float scale = LoadF16(from);
  for (std::size_t i = 0; i < row.size(); ++i) {
    row[i] = scale * static_cast<float>(static_cast<std::int8_t>(from[2 + i]));
  }
}

KvMisfit StoreKvEntry(std::span<const float> k, std::span<const float> v, KvFormat format,
                      std::byte* entry) {
  CAIRN_CHECK_EQ(k.size(), v.size());
  std::byte* values = entry + KvKeyBytes(format, std::ssize(k));
  switch (format) {
    case KvFormat::kF32:
      std::memcpy(entry, k.data(), k.size_bytes());
      std::memcpy(values, v.data(), v.size_bytes());
      return Misfit(IsBelow(k, kInfinity), IsBelow(v, kInfinity));
    case KvFormat::kF16:
      StoreF16Row(k, entry);
      StoreF16Row(v, values);
      return Misfit(IsBelow(k, kHalfLimit), IsBelow(v, kHalfLimit));
    case KvFormat::kQ8:
    case KvFormat::kQ4:
      break;
  }
  const bool key_fits = StoreQ8Row(k, entry);
  return Misfit(key_fits, format == KvFormat::kQ8 ? StoreQ8Row(v, values) : StoreQ4Row(v, values));
}

void LoadKvEntry(const std::byte* entry, KvFormat format, std::span<float> k, std::span<float> v) {
  CAIRN_CHECK_EQ(k.size(), v.size());
  const std::byte* values = entry + KvKeyBytes(format, std::ssize(k));
  switch (format) {
    case KvFormat::kF32:
      std::memcpy(k.data(), entry, k.size_bytes());
      std::memcpy(v.data(), values, v.size_bytes());
      break;
    case KvFormat::kF16:
      LoadF16Row(entry, k);
      LoadF16Row(values, v);
      break;
    case KvFormat::kQ8:
      LoadQ8Row(entry, k);
      LoadQ8Row(values, v);
      break;
    case KvFormat::kQ4:
      LoadQ8Row(entry, k);
      LoadQ4Row(values, v);
      break;
  }
}

}  // namespace cairn::compute
