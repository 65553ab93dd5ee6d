#include "tests/tools/tensor_decoding.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/base/check.h"

namespace cairn::test {
namespace {

int ByteAt(std::string_view data, size_t offset) { return static_cast<uint8_t>(data[offset]); }
int SignedAt(std::string_view data, size_t offset) { return static_cast<int8_t>(data[offset]); }

double HalfAt(std::string_view data, size_t offset) {
  const int half = ByteAt(data, offset) | ByteAt(data, offset + 1) << 8;
  const int exponent = half >> 10 & 31;
  const double mantissa = half & 1023;
  const double sign = (half & 0x8000) != 0 ? -1 : 1;
  CAIRN_CHECK_LT(exponent, 31);
  return sign *
         (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25));
}

double BrainAt(std::string_view data, size_t offset) {
  const char padded[4] = {0, 0, data[offset], data[offset + 1]};
  float value = 0;
  std::memcpy(&value, padded, 4);
  return static_cast<double>(value);
}

double FloatAt(std::string_view data, size_t offset) {
  float value = 0;
  std::memcpy(&value, data.data() + offset, 4);
  return static_cast<double>(value);
}

// Value i of a block of 32 in 16 bytes: value j low and value j + 16 high in byte j.
int NibbleAt(std::string_view nibbles, size_t i) {
  const int byte = ByteAt(nibbles, i % 16);
  return i < 16 ? byte & 15 : byte >> 4;
}

// With a fifth bit: bit i of the four bytes before the nibbles.
int FiveBitsAt(std::string_view block, size_t i) {
  const int bit = ByteAt(block, i / 8) >> (i % 8) & 1;
  return NibbleAt(block.substr(4), i) + 16 * bit;
}

// f16 scale, 32 int8.
double Q8At(std::string_view block, size_t i) { return HalfAt(block, 0) * SignedAt(block, 2 + i); }

// f16 scale, nibbles less 8.
double Q40At(std::string_view block, size_t i) {
  return HalfAt(block, 0) * (NibbleAt(block.substr(2), i) - 8);
}

// f16 scale, f16 minimum, nibbles.
double Q41At(std::string_view block, size_t i) {
  return HalfAt(block, 0) * NibbleAt(block.substr(4), i) + HalfAt(block, 2);
}

// f16 scale, five bits less 16.
double Q50At(std::string_view block, size_t i) {
  return HalfAt(block, 0) * (FiveBitsAt(block.substr(2), i) - 16);
}

// f16 scale, f16 minimum, five bits.
double Q51At(std::string_view block, size_t i) {
  return HalfAt(block, 0) * FiveBitsAt(block.substr(4), i) + HalfAt(block, 2);
}

constexpr int kNamedValues[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};

// f16 scale, nibbles that name one of 16 values.
double Iq4NlAt(std::string_view block, size_t i) {
  return HalfAt(block, 0) * kNamedValues[NibbleAt(block.substr(2), i)];
}

// f16 scale, 8 pairs of bits, 8 nibbles: together a multiplier less 32 for each 32 values, which
// follow as in IQ4_NL.
double Iq4XsAt(std::string_view block, size_t i) {
  const size_t g = i / 32;
  const int high = ByteAt(block, 2 + g / 4) >> (g % 4 * 2) & 3;
  const int low = ByteAt(block, 4 + g / 2) >> (g % 2 * 4) & 15;
  return HalfAt(block, 0) * (low + 16 * high - 32) *
         kNamedValues[NibbleAt(block.substr(8 + g * 16), i % 32)];
}

// 16 bytes with a scale (low) and a minimum (high) for each 16 values, 64 bytes of two bits, f16 d,
// f16 dmin. The two bits of quarter k of half h are at 2k of the bytes 32h...
double Q2KAt(std::string_view block, size_t i) {
  const int group = ByteAt(block, i / 16);
  const int q = ByteAt(block, 16 + i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
  return HalfAt(block, 80) * (group & 15) * q - HalfAt(block, 82) * (group >> 4);
}

// 32 bytes of third bits, 64 bytes of two bits as in Q2_K, 12 bytes of 16 six-bit scales, f16 d.
// Scale g has its low half in nibble g / 8 of byte g % 8, the rest at 2 (g / 4) of byte 8 + g % 4.
double Q3KAt(std::string_view block, size_t i) {
  const size_t g = i / 16;
  const int low = ByteAt(block, 96 + g % 8) >> (g / 8 * 4) & 15;
  const int high = ByteAt(block, 104 + g % 4) >> (g / 4 * 2) & 3;
  const int q = ByteAt(block, 32 + i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
  const int third = ByteAt(block, i % 32) >> (i / 32) & 1;
  return HalfAt(block, 108) * (low + 16 * high - 32) * (q + 4 * third - 4);
}

// Scale (`second` 0) or minimum (4) of group g of 32 values among the 12 bytes of Q4_K and Q5_K:
// six bits each, those of the later four groups split in four and two.
int SixBitsAt(std::string_view packed, size_t g, size_t second) {
  if (g < 4) return ByteAt(packed, g + second) & 63;
  const int low = ByteAt(packed, 4 + g) >> second & 15;
  return low + (ByteAt(packed, g - 4 + second) >> 6) * 16;
}

// f16 d, f16 dmin, 12 bytes of scales, then (Q5_K) 32 bytes of fifth bits, 128 bytes of nibbles: of
// 64 values the first 32 low, the others high.
double Q45KAt(std::string_view block, size_t i, bool five) {
  const std::string_view scales = block.substr(4, 12);
  const size_t nibbles = five ? 48 : 16;
  int q = ByteAt(block, nibbles + i / 64 * 32 + i % 32) >> (i / 32 % 2 * 4) & 15;
  if (five) q += (ByteAt(block, 16 + i % 32) >> (i / 32) & 1) * 16;
  return HalfAt(block, 0) * SixBitsAt(scales, i / 32, 0) * q -
         HalfAt(block, 2) * SixBitsAt(scales, i / 32, 4);
}

// 128 bytes of low nibbles, 64 of high bit pairs, 16 int8 scales, f16 d.
double Q6KAt(std::string_view block, size_t i) {
  const size_t half = i / 128;
  const size_t quarter = i % 128 / 32;
  const size_t lane = i % 32;
  const int low_byte = ByteAt(block, half * 64 + quarter % 2 * 32 + lane);
  const int low = quarter < 2 ? low_byte & 15 : low_byte >> 4;
  const int high = ByteAt(block, 128 + half * 32 + lane) >> (2 * quarter) & 3;
  return HalfAt(block, 208) * SignedAt(block, 192 + i / 16) * ((low | high << 4) - 32);
}

}  // namespace

double DecodedValue(TensorType type, std::string_view data, size_t index) {
  const TensorTypeInfo info = InfoOf(type);
  const auto block_values = static_cast<size_t>(info.block_values);
  const auto block_bytes = static_cast<size_t>(info.block_bytes);
  const std::string_view block = data.substr(index / block_values * block_bytes, block_bytes);
  const size_t i = index % block_values;
  switch (type) {
    case TensorType::kF32:
      return FloatAt(block, 0);
    case TensorType::kF16:
      return HalfAt(block, 0);
    case TensorType::kBf16:
      return BrainAt(block, 0);
    case TensorType::kQ80:
      return Q8At(block, i);
    case TensorType::kQ40:
      return Q40At(block, i);
    case TensorType::kQ41:
      return Q41At(block, i);
    case TensorType::kQ50:
      return Q50At(block, i);
    case TensorType::kQ51:
      return Q51At(block, i);
    case TensorType::kIq4Nl:
      return Iq4NlAt(block, i);
    case TensorType::kIq4Xs:
      return Iq4XsAt(block, i);
    case TensorType::kQ2K:
      return Q2KAt(block, i);
    case TensorType::kQ3K:
      return Q3KAt(block, i);
    case TensorType::kQ4K:
      return Q45KAt(block, i, false);
    case TensorType::kQ5K:
      return Q45KAt(block, i, true);
    case TensorType::kQ6K:
      return Q6KAt(block, i);
  }
  CAIRN_CHECK(false);
  return 0;
}

}  // namespace cairn::test
