#include "tests/tools/tensor_encoding.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "tests/tools/encoding_math.h"
#include "tests/tools/k_quant_encoding.h"

namespace cairn::test {
namespace {

struct NamedType {
  std::string_view name;
  TensorType type;
  TensorTypeInfo info;
};

constexpr NamedType kNamedTypes[] = {
    {"f32", TensorType::kF32, {1, 4}},          {"f16", TensorType::kF16, {1, 2}},
    {"bf16", TensorType::kBf16, {1, 2}},        {"q8_0", TensorType::kQ80, {32, 34}},
    {"q4_0", TensorType::kQ40, {32, 18}},       {"q4_1", TensorType::kQ41, {32, 20}},
    {"q5_0", TensorType::kQ50, {32, 22}},       {"q5_1", TensorType::kQ51, {32, 24}},
    {"iq4_nl", TensorType::kIq4Nl, {32, 18}},   {"q2_k", TensorType::kQ2K, {256, 84}},
    {"q3_k", TensorType::kQ3K, {256, 110}},     {"q4_k", TensorType::kQ4K, {256, 144}},
    {"q5_k", TensorType::kQ5K, {256, 176}},     {"q6_k", TensorType::kQ6K, {256, 210}},
    {"iq4_xs", TensorType::kIq4Xs, {256, 136}},
};

// 32 values: f16 scale, then 32 int8; value = scale * q.
void EncodeQ8Block(std::span<const float> x, uint8_t* out) {
  const float scale = AbsoluteMax(x) / 127.0F;
  const float inverse = InverseOf(scale);
  PutHalf(scale, out);
  for (size_t i = 0; i < 32; ++i) {
    out[2 + i] = Low8(RoundToInt(x[i] * inverse));
  }
}

// The numbers of 32 values, as 16 bytes of nibbles: byte j holds values j (low) and j + 16.
template <class Number>
void PutNibblesOf32(const Number& number, uint8_t* out) {
  for (size_t j = 0; j < 16; ++j) {
    out[j] = Low8((number(j) & 15) | (number(j + 16) & 15) << 4);
  }
}

// The same of numbers of five bits: before the nibbles, bit i of four bytes is value i's fifth.
template <class Number>
void PutFiveBitsOf32(const Number& number, uint8_t* out) {
  std::fill(out, out + 4, uint8_t{0});
  for (size_t i = 0; i < 32; ++i) {
    out[i / 8] |= Low8((number(i) >> 4) << (i % 8));
  }
  PutNibblesOf32(number, out + 4);
}

// 32 values: f16 scale, then numbers of 4 or 5 bits; value = scale * (q - offset).
void EncodeAroundZero(std::span<const float> x, bool five, uint8_t* out) {
  const int offset = five ? 16 : 8;
  const float scale = SignedExtreme(x) / static_cast<float>(-offset);
  const float inverse = InverseOf(scale);
  PutHalf(scale, out);
  const float shift = static_cast<float>(offset) + 0.5F;
  const auto number = [&](size_t i) {
    return std::clamp(static_cast<int>(x[i] * inverse + shift), 0, 2 * offset - 1);
  };
  if (five) {
    PutFiveBitsOf32(number, out + 2);
  } else {
    PutNibblesOf32(number, out + 2);
  }
}

// 32 values: f16 scale, f16 minimum, then numbers of 4 or 5 bits; value = scale * q + minimum.
void EncodeFromMin(std::span<const float> x, bool five, uint8_t* out) {
  const int largest = five ? 31 : 15;
  const float low = *std::min_element(x.begin(), x.end());
  const float high = *std::max_element(x.begin(), x.end());
  const float scale = PutHalf((high - low) / static_cast<float>(largest), out);
  const float min = PutHalf(low, out + 2);
  const float inverse = InverseOf(scale);
  const auto number = [&](size_t i) {
    return std::clamp(RoundToInt((x[i] - min) * inverse), 0, largest);
  };
  if (five) {
    PutFiveBitsOf32(number, out + 4);
  } else {
    PutNibblesOf32(number, out + 4);
  }
}

constexpr float kTableValues[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};

// The nibbles of 32 values: which of kTableValues is nearest.
void PutTableNumbersOf32(std::span<const float> x, float scale, uint8_t* out) {
  const float inverse = InverseOf(scale);
  PutNibblesOf32(
      [&](size_t i) {
        const auto nearer = [value = x[i] * inverse](float a, float b) {
          return std::fabs(a - value) < std::fabs(b - value);
        };
        return static_cast<int>(
            std::min_element(std::begin(kTableValues), std::end(kTableValues), nearer) -
            kTableValues);
      },
      out);
}

// 32 values: f16 scale, then nibbles; value = scale * kTableValues[q].
void EncodeIq4NlBlock(std::span<const float> x, uint8_t* out) {
  PutTableNumbersOf32(x, PutHalf(SignedExtreme(x) / kTableValues[0], out), out + 2);
}

// 256 values: f16 scale, six bits less 32 for each 32 values (the high two of all, then the low
// four), then nibbles; value = scale * six bits * kTableValues[q].
void EncodeIq4XsBlock(std::span<const float> x, uint8_t* out) {
  std::array<float, 8> wanted = {};
  for (size_t g = 0; g < 8; ++g) {
    wanted[g] = SignedExtreme(x.subspan(g * 32, 32)) / kTableValues[0];
  }
  const float scale = PutHalf(AbsoluteMax(wanted) / 31.0F, out);
  const float inverse = InverseOf(scale);
  std::fill(out + 2, out + 8, uint8_t{0});
  for (size_t g = 0; g < 8; ++g) {
    const int number = std::clamp(RoundToInt(wanted[g] * inverse), -32, 31);
    out[2 + g / 4] |= Low8((number + 32) >> 4 << (g % 4 * 2));
    out[4 + g / 2] |= Low8(((number + 32) & 15) << (g % 2 * 4));
    PutTableNumbersOf32(x.subspan(g * 32, 32), scale * static_cast<float>(number),
                        out + 8 + g * 16);
  }
}

uint16_t Bf16FromFloat(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace

TensorTypeInfo InfoOf(TensorType type) {
  for (const NamedType& named : kNamedTypes) {
    if (named.type == type) return named.info;
  }
  CAIRN_CHECK(false);
  return {};
}

absl::StatusOr<TensorType> TensorTypeFromName(std::string_view name) {
  std::string known;
  for (const NamedType& named : kNamedTypes) {
    if (named.name == name) return named.type;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", named.name);
  }
  return InvalidArgument("unknown weight type '{}': use one of {}", name, known);
}

uint16_t HalfFromFloat(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x7f800000) {
    return static_cast<uint16_t>(sign | (magnitude > 0x7f800000 ? 0x7e00 : 0x7c00));
  }
  if (magnitude >= 0x477ff000) {  // rounds above the largest half, 65504
    return static_cast<uint16_t>(sign | 0x7c00);
  }
  if (magnitude < 0x38800000) {  // below 2^-14: adding 0.5 aligns the half's subnormal grid with
                                 // the float's last bit
    const float aligned = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

float FloatFromHalf(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 0x3ff;
  const float sign = (half & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) {
    return mantissa != 0 ? std::nanf("") : sign * INFINITY;
  }
  if (exponent == 0) {
    return sign * std::ldexp(static_cast<float>(mantissa), -24);
  }
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

void EncodeValues(std::span<const float> values, TensorType type, std::vector<uint8_t>& out) {
  const TensorTypeInfo info = InfoOf(type);
  const auto block_values = static_cast<size_t>(info.block_values);
  const auto block_bytes = static_cast<size_t>(info.block_bytes);
  CAIRN_CHECK_EQ(values.size() % block_values, size_t{0});
  const size_t begin = out.size();
  const size_t block_count = values.size() / block_values;
  out.resize(begin + block_count * block_bytes);
  uint8_t* target = out.data() + begin;
  if (type == TensorType::kF32) {
    std::memcpy(target, values.data(), values.size_bytes());
    return;
  }
  for (size_t i = 0; i < block_count; ++i, target += block_bytes) {
    const std::span<const float> block = values.subspan(i * block_values, block_values);
    switch (type) {
      case TensorType::kF16:
        PutHalf(block[0], target);
        break;
      case TensorType::kBf16: {
        const uint16_t bits = Bf16FromFloat(block[0]);
        std::memcpy(target, &bits, sizeof(bits));
        break;
      }
      case TensorType::kQ80:
        EncodeQ8Block(block, target);
        break;
      case TensorType::kQ40:
      case TensorType::kQ50:
        EncodeAroundZero(block, type == TensorType::kQ50, target);
        break;
      case TensorType::kQ41:
      case TensorType::kQ51:
        EncodeFromMin(block, type == TensorType::kQ51, target);
        break;
      case TensorType::kIq4Nl:
        EncodeIq4NlBlock(block, target);
        break;
      case TensorType::kIq4Xs:
        EncodeIq4XsBlock(block, target);
        break;
      case TensorType::kQ2K:
        EncodeQ2KBlock(block, target);
        break;
      case TensorType::kQ3K:
        EncodeQ3KBlock(block, target);
        break;
      case TensorType::kQ4K:
        EncodeQ4KBlock(block, target);
        break;
      case TensorType::kQ5K:
        EncodeQ5KBlock(block, target);
        break;
      case TensorType::kQ6K:
        EncodeQ6KBlock(block, target);
        break;
      case TensorType::kF32:
        break;
    }
  }
}

}  // namespace cairn::test
