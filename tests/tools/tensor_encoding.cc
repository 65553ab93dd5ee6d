#include "tests/tools/tensor_encoding.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "common/base/check.h"
#include "common/base/status.h"

namespace cairn::test {
namespace {

uint8_t Low8(int value) { return static_cast<uint8_t>(value & 0xff); }

void PutHalf(uint16_t half, uint8_t* out) {
  out[0] = Low8(half);
  out[1] = Low8(half >> 8);
}

float AbsoluteMax(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) {
    largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

// The value of the largest magnitude, with its sign.
float SignedExtreme(std::span<const float> values) {
  float extreme = 0;
  for (const float value : values) {
    if (std::fabs(value) > std::fabs(extreme)) {
      extreme = value;
    }
  }
  return extreme;
}

// Half away from zero, as a plain conversion so that it vectorises.
int RoundToInt(float value) { return static_cast<int>(value + (value < 0 ? -0.5F : 0.5F)); }

// 32 values: f16 scale, then 32 int8; value = scale * q.
void EncodeQ8Block(std::span<const float> x, uint8_t* out) {
  const float scale = AbsoluteMax(x) / 127.0F;
  const float inverse = scale > 0 ? 1.0F / scale : 0.0F;
  PutHalf(HalfFromFloat(scale), out);
  for (size_t i = 0; i < 32; ++i) {
    out[2 + i] = Low8(RoundToInt(x[i] * inverse));
  }
}

// 32 values: f16 scale, then 16 bytes; byte j holds values j (low nibble) and j + 16; value = scale
// * (q - 8).
void EncodeQ4Block(std::span<const float> x, uint8_t* out) {
  const float scale = SignedExtreme(x) / -8.0F;
  const float inverse = scale != 0 ? 1.0F / scale : 0.0F;
  PutHalf(HalfFromFloat(scale), out);
  const auto quantise = [&](size_t i) {
    return std::clamp(static_cast<int>(x[i] * inverse + 8.5F), 0, 15);
  };
  for (size_t j = 0; j < 16; ++j) {
    out[2 + j] = Low8(quantise(j) | quantise(j + 16) << 4);
  }
}

// 256 values in 16 groups of 16; value = d * group_scale * (q - 32) with q of 6 bits. 128 bytes of
// low nibbles, 64 bytes of high bit pairs, 16 int8 group scales, f16 d. Within each half of 128
// values, value l of quarter k (32 each) has its low nibble in byte l of nibble row k % 2 (rows 0
// and 1 hold quarters 0 and 1 low, 2 and 3 high) and its high bits at 2k.
void EncodeQ6Block(std::span<const float> x, uint8_t* out) {
  float group_scale[16];
  for (size_t g = 0; g < 16; ++g) {
    group_scale[g] = SignedExtreme(x.subspan(g * 16, 16)) / -32.0F;
  }
  const uint16_t d_half = HalfFromFloat(AbsoluteMax(group_scale) / 127.0F);
  const float d = FloatFromHalf(d_half);
  const float inverse_d = d > 0 ? 1.0F / d : 0.0F;
  int q[256];
  for (size_t g = 0; g < 16; ++g) {
    const int scale = std::clamp(RoundToInt(group_scale[g] * inverse_d), -127, 127);
    out[192 + g] = Low8(scale);
    const float step = d * static_cast<float>(scale);
    const float inverse = step != 0 ? 1.0F / step : 0.0F;
    for (size_t i = g * 16; i < g * 16 + 16; ++i) {
      q[i] = std::clamp(RoundToInt(x[i] * inverse), -32, 31) + 32;
    }
  }
  for (size_t half = 0; half < 2; ++half) {
    const int* v = q + half * 128;
    for (size_t l = 0; l < 32; ++l) {
      out[half * 64 + l] = Low8((v[l] & 15) | (v[l + 64] & 15) << 4);
      out[half * 64 + 32 + l] = Low8((v[l + 32] & 15) | (v[l + 96] & 15) << 4);
      out[128 + half * 32 + l] =
          Low8(v[l] >> 4 | (v[l + 32] >> 4) << 2 | (v[l + 64] >> 4) << 4 | (v[l + 96] >> 4) << 6);
    }
  }
  PutHalf(d_half, out + 208);
}

uint16_t Bf16FromFloat(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace

TensorTypeInfo InfoOf(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return {1, 4};
    case TensorType::kF16:
    case TensorType::kBf16:
      return {1, 2};
    case TensorType::kQ40:
      return {32, 18};
    case TensorType::kQ80:
      return {32, 34};
    case TensorType::kQ6K:
      return {256, 210};
  }
  CAIRN_CHECK(false);
  return {};
}

absl::StatusOr<TensorType> TensorTypeFromName(std::string_view name) {
  constexpr std::pair<std::string_view, TensorType> kNames[] = {
      {"f32", TensorType::kF32},  {"f16", TensorType::kF16},  {"bf16", TensorType::kBf16},
      {"q8_0", TensorType::kQ80}, {"q4_0", TensorType::kQ40}, {"q6_k", TensorType::kQ6K}};
  for (const auto& [known, type] : kNames) {
    if (known == name) {
      return type;
    }
  }
  return InvalidArgument("unknown weight type '{}': use f32, f16, bf16, q8_0, q4_0 or q6_k", name);
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
        PutHalf(HalfFromFloat(block[0]), target);
        break;
      case TensorType::kBf16:
        PutHalf(Bf16FromFloat(block[0]), target);
        break;
      case TensorType::kQ80:
        EncodeQ8Block(block, target);
        break;
      case TensorType::kQ40:
        EncodeQ4Block(block, target);
        break;
      case TensorType::kQ6K:
        EncodeQ6Block(block, target);
        break;
      case TensorType::kF32:
        break;
    }
  }
}

}  // namespace cairn::test
