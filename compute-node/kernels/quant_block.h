// The blocks in which GGUF stores rows of quantised weights: what is where, and how to get at the
// numbers. A block of 32 or 256 values has an f16 scale and mostly something finer: an f16 minimum,
// or numbers of 4 to 8 bits for each 16 or 32 of its values, which multiply scale and minimum. A
// weight is scale * (number - offset), or scale * number + minimum; IQ4_NL and IQ4_XS look the
// number up in a table.
//
// Threading:  pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/base/check.h"
#include "compute-node/kernels/dequantize.h"

namespace cairn::compute {

// How a block stores the multipliers of its scale and its minimum.
enum class SubScales {
  kNone,
  kSigned,   // an int8 for each 16 values
  kNibbles,  // a byte for each 16 values: low half for the scale, high half for the minimum
  // 6 bits each in 12 bytes. Pairs: of each 32 values scale and minimum. Scales: of each 16 values
  // the scale, less 32.
  kSixBitPairs,
  kSixBitScales,
  // 6 bits in 6 bytes, less 32, of each 32 values for the scale: first the high two of all, then
  // the low four.
  kSixBitRuns,
};

struct QuantLayout {
  int values = 32;  // of a block
  int bytes = 0;    // of a block
  int scale_at = 0;
  int min_at = -1;  // f16; -1: there is none
  int sub_scales_at = 0;
  SubScales sub_scales = SubScales::kNone;
  // What the numbers are made of, from the lowest bit up: a nibble, a pair of bits, one bit. None:
  // signed bytes.
  bool nibbles = false;
  bool pairs = false;
  bool bits = false;
  int offset = 0;  // of the numbers
  // The numbers stand for those of kIq4NlTable.
  bool table = false;
};

constexpr QuantLayout QuantLayoutOf(WeightType type) {
  switch (type) {
    case WeightType::kQ80:
      return {.bytes = 34};
    case WeightType::kQ40:
      return {.bytes = 18, .nibbles = true, .offset = 8};
    case WeightType::kQ41:
      return {.bytes = 20, .min_at = 2, .nibbles = true};
    case WeightType::kQ50:
      return {.bytes = 22, .nibbles = true, .bits = true, .offset = 16};
    case WeightType::kQ51:
      return {.bytes = 24, .min_at = 2, .nibbles = true, .bits = true};
    case WeightType::kIq4Nl:
      return {.bytes = 18, .nibbles = true, .table = true};
    case WeightType::kIq4Xs:
      return {.values = 256,
              .bytes = 136,
              .sub_scales_at = 2,
              .sub_scales = SubScales::kSixBitRuns,
              .nibbles = true,
              .table = true};
    case WeightType::kQ2K:
      return {.values = 256,
              .bytes = 84,
              .scale_at = 80,
              .min_at = 82,
              .sub_scales = SubScales::kNibbles,
              .pairs = true};
    case WeightType::kQ3K:
      return {.values = 256,
              .bytes = 110,
              .scale_at = 108,
              .sub_scales_at = 96,
              .sub_scales = SubScales::kSixBitScales,
              .pairs = true,
              .bits = true,
              .offset = 4};
    case WeightType::kQ4K:
      return {.values = 256,
              .bytes = 144,
              .min_at = 2,
              .sub_scales_at = 4,
              .sub_scales = SubScales::kSixBitPairs,
              .nibbles = true};
    case WeightType::kQ5K:
      return {.values = 256,
              .bytes = 176,
              .min_at = 2,
              .sub_scales_at = 4,
              .sub_scales = SubScales::kSixBitPairs,
              .nibbles = true,
              .bits = true};
    case WeightType::kQ6K:
      return {.values = 256,
              .bytes = 210,
              .scale_at = 208,
              .sub_scales_at = 192,
              .sub_scales = SubScales::kSigned,
              .nibbles = true,
              .pairs = true,
              .offset = 32};
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      break;
  }
  return {};
}

// What the numbers of IQ4_NL and IQ4_XS stand for.
inline constexpr std::array<std::int8_t, 16> kIq4NlTable = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Four bytes at `at` of a block, each shifted right and masked.
inline std::uint32_t FourFields(const std::byte* block, int at, int shift, std::uint32_t mask) {
  std::uint32_t word;
  std::memcpy(&word, block + at, sizeof(word));
  return word >> shift & mask * 0x01010101U;
}

// The numbers of the values index .. index + 3 of a block, without their offset, one in each byte.
// REQUIRES: index is a multiple of four. `kType`: not Q8_0.
template <WeightType kType>
std::uint32_t FourNumbers(const std::byte* block, int index) {
  constexpr QuantLayout kLayout = QuantLayoutOf(kType);
  const int column = index % 32;
  const int row = index / 32;  // of 8 rows of 32 values
  if constexpr (kLayout.values == 32) {
    const std::uint32_t nibbles =
        FourFields(block, kLayout.bytes - 16 + index % 16, index / 16 * 4, 15);
    if constexpr (!kLayout.bits) {
      return nibbles;
    } else {
      // Before the nibbles, one bit for each value; the product puts four of them in a byte each.
      const int byte = std::to_integer<int>(block[kLayout.bytes - 20 + index / 8]);
      const std::uint32_t bits = static_cast<std::uint32_t>(byte >> index % 8 & 15) * 0x00204081U;
      return nibbles | (bits & 0x01010101U) << 4;
    }
  } else if constexpr (kType == WeightType::kIq4Xs) {
    return FourFields(block, 8 + row * 16 + column % 16, column / 16 * 4, 15);
  } else if constexpr (kType == WeightType::kQ2K) {
    return FourFields(block, 16 + row / 4 * 32 + column, row % 4 * 2, 3);
  } else if constexpr (kType == WeightType::kQ3K) {
    return FourFields(block, 32 + row / 4 * 32 + column, row % 4 * 2, 3) |
           FourFields(block, column, row, 1) << 2;
  } else if constexpr (kType == WeightType::kQ4K) {
    return FourFields(block, 16 + row / 2 * 32 + column, row % 2 * 4, 15);
  } else if constexpr (kType == WeightType::kQ5K) {
    return FourFields(block, 48 + row / 2 * 32 + column, row % 2 * 4, 15) |
           FourFields(block, 16 + column, row, 1) << 4;
  } else {
    static_assert(kType == WeightType::kQ6K);
    return FourFields(block, row / 4 * 64 + row % 2 * 32 + column, row % 4 / 2 * 4, 15) |
           FourFields(block, 128 + row / 4 * 32 + column, row % 4 * 2, 3) << 4;
  }
}

// The two six-bit numbers that belong to a run of 32 values of a block: its scale and its minimum,
// or (Q3_K) the scales of its two halves.
struct SixBits {
  int first = 0;
  int second = 0;
};
SixBits SixBitsOf(WeightType type, const std::byte* block, int run);

// The multiplier of the scale of a run of 32 values (IQ4_XS).
int RunMultiplierOf(WeightType type, const std::byte* block, int run);

// Values that share a scale: in all types 16, or a multiple of it.
inline constexpr int kGroupValues = 16;

// What the number of one value means: weight = scale * (number - offset) + min.
struct GroupScale {
  float scale = 0;
  float min = 0;
};
GroupScale GroupScaleOf(WeightType type, const std::byte* block, int index);

// Calls fn.template operator()<kType>() for a quantised type.
template <class Fn>
void ForQuantType(WeightType type, const Fn& fn) {
  switch (type) {
    case WeightType::kQ80:
      return fn.template operator()<WeightType::kQ80>();
    case WeightType::kQ40:
      return fn.template operator()<WeightType::kQ40>();
    case WeightType::kQ41:
      return fn.template operator()<WeightType::kQ41>();
    case WeightType::kQ50:
      return fn.template operator()<WeightType::kQ50>();
    case WeightType::kQ51:
      return fn.template operator()<WeightType::kQ51>();
    case WeightType::kIq4Nl:
      return fn.template operator()<WeightType::kIq4Nl>();
    case WeightType::kIq4Xs:
      return fn.template operator()<WeightType::kIq4Xs>();
    case WeightType::kQ2K:
      return fn.template operator()<WeightType::kQ2K>();
    case WeightType::kQ3K:
      return fn.template operator()<WeightType::kQ3K>();
    case WeightType::kQ4K:
      return fn.template operator()<WeightType::kQ4K>();
    case WeightType::kQ5K:
      return fn.template operator()<WeightType::kQ5K>();
    case WeightType::kQ6K:
      return fn.template operator()<WeightType::kQ6K>();
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      break;
  }
  CAIRN_CHECK(false);
}

}  // namespace cairn::compute
