#include "tests/tools/k_quant_encoding.h"

#include <array>

#include "tests/tools/encoding_math.h"

namespace cairn::test {
namespace {

// The numbers of a block, and the multipliers of d (and of dmin) of its groups; as many as the type
// has groups are used.
struct Numbers {
  std::array<int, 256> q;
  std::array<int, 16> scale;
  std::array<int, 16> min;
};

// Groups of 256 / kGroups values: value = d * scale * q - dmin * min, with q from 0 to q_max and
// multipliers from 0 to scale_max. Writes d and dmin.
template <size_t kGroups>
Numbers QuantiseWithMin(std::span<const float> x, int q_max, int scale_max, uint8_t* d_out,
                        uint8_t* min_out) {
  constexpr size_t kSize = 256 / kGroups;
  std::array<float, kGroups> steps;
  std::array<float, kGroups> depths;
  for (size_t g = 0; g < kGroups; ++g) {
    const std::span<const float> group = x.subspan(g * kSize, kSize);
    const float low = std::min(*std::min_element(group.begin(), group.end()), 0.0F);
    const float high = *std::max_element(group.begin(), group.end());
    steps[g] = (high - low) / static_cast<float>(q_max);
    depths[g] = -low;
  }
  const float d = PutHalf(AbsoluteMax(steps) / static_cast<float>(scale_max), d_out);
  const float d_min = PutHalf(AbsoluteMax(depths) / static_cast<float>(scale_max), min_out);
  Numbers out{};
  for (size_t g = 0; g < kGroups; ++g) {
    out.scale[g] = std::clamp(RoundToInt(steps[g] * InverseOf(d)), 0, scale_max);
    out.min[g] = std::clamp(RoundToInt(depths[g] * InverseOf(d_min)), 0, scale_max);
    const float inverse = InverseOf(d * static_cast<float>(out.scale[g]));
    const float depth = d_min * static_cast<float>(out.min[g]);
    for (size_t i = g * kSize; i < (g + 1) * kSize; ++i) {
      out.q[i] = std::clamp(RoundToInt((x[i] + depth) * inverse), 0, q_max);
    }
  }
  return out;
}

// 16 groups of 16: value = d * scale * (q - offset), q from 0 to 2 offset - 1, scales from
// -scale_max to scale_max. Writes d.
Numbers QuantiseAroundZero(std::span<const float> x, int offset, int scale_max, uint8_t* d_out) {
  std::array<float, 16> steps;
  for (size_t g = 0; g < 16; ++g) {
    steps[g] = SignedExtreme(x.subspan(g * 16, 16)) / static_cast<float>(-offset);
  }
  const float d = PutHalf(AbsoluteMax(steps) / static_cast<float>(scale_max), d_out);
  Numbers out{};
  for (size_t g = 0; g < 16; ++g) {
    out.scale[g] = std::clamp(RoundToInt(steps[g] * InverseOf(d)), -scale_max, scale_max);
    const float inverse = InverseOf(d * static_cast<float>(out.scale[g]));
    for (size_t i = g * 16; i < g * 16 + 16; ++i) {
      out.q[i] = std::clamp(RoundToInt(x[i] * inverse), -offset, offset - 1) + offset;
    }
  }
  return out;
}

// Of each half of 128 values, the low two bits of quarter k at 2k of 32 bytes.
void PutPairs(const Numbers& numbers, uint8_t* out) {
  for (size_t i = 0; i < 64; ++i) {
    const int* q = numbers.q.data() + i / 32 * 128 + i % 32;
    out[i] = Low8((q[0] & 3) | (q[32] & 3) << 2 | (q[64] & 3) << 4 | (q[96] & 3) << 6);
  }
}

// Bit `shift` of the values of row k of 8, at bit k of 32 bytes.
void PutBits(const Numbers& numbers, int shift, uint8_t* out) {
  for (size_t i = 0; i < 32; ++i) {
    int byte = 0;
    for (size_t row = 0; row < 8; ++row) {
      byte |= (numbers.q[row * 32 + i] >> shift & 1) << row;
    }
    out[i] = Low8(byte);
  }
}

void PutNibbles(const Numbers& numbers, uint8_t* out) {
  for (size_t i = 0; i < 128; ++i) {
    const int* q = numbers.q.data() + i / 32 * 64 + i % 32;
    out[i] = Low8((q[0] & 15) | (q[32] & 15) << 4);
  }
}

void PutSixBitPairs(const Numbers& numbers, uint8_t* out) {
  for (size_t g = 0; g < 4; ++g) {
    out[g] = Low8(numbers.scale[g] | (numbers.scale[g + 4] >> 4) << 6);
    out[g + 4] = Low8(numbers.min[g] | (numbers.min[g + 4] >> 4) << 6);
    out[g + 8] = Low8((numbers.scale[g + 4] & 15) | (numbers.min[g + 4] & 15) << 4);
  }
}

}  // namespace

void EncodeQ2KBlock(std::span<const float> x, uint8_t* out) {
  const Numbers numbers = QuantiseWithMin<16>(x, 3, 15, out + 80, out + 82);
  for (size_t g = 0; g < 16; ++g) {
    out[g] = Low8(numbers.scale[g] | numbers.min[g] << 4);
  }
  PutPairs(numbers, out + 16);
}

void EncodeQ3KBlock(std::span<const float> x, uint8_t* out) {
  const Numbers numbers = QuantiseAroundZero(x, 4, 31, out + 108);
  PutBits(numbers, 2, out);
  PutPairs(numbers, out + 32);
  std::fill(out + 96, out + 108, uint8_t{0});
  for (size_t g = 0; g < 16; ++g) {
    const int scale = numbers.scale[g] + 32;
    out[96 + g % 8] |= Low8((scale & 15) << (g / 8 * 4));
    out[104 + g % 4] |= Low8((scale >> 4) << (g / 4 * 2));
  }
}

void EncodeQ4KBlock(std::span<const float> x, uint8_t* out) {
  const Numbers numbers = QuantiseWithMin<8>(x, 15, 63, out, out + 2);
  PutSixBitPairs(numbers, out + 4);
  PutNibbles(numbers, out + 16);
}

void EncodeQ5KBlock(std::span<const float> x, uint8_t* out) {
  const Numbers numbers = QuantiseWithMin<8>(x, 31, 63, out, out + 2);
  PutSixBitPairs(numbers, out + 4);
  PutBits(numbers, 4, out + 16);
  PutNibbles(numbers, out + 48);
}

// Within each half of 128 values, value l of quarter k (32 each) has its low nibble in byte l of
// nibble row k % 2 (rows 0 and 1 hold quarters 0 and 1 low, 2 and 3 high) and its high bits at 2k.
void EncodeQ6KBlock(std::span<const float> x, uint8_t* out) {
  const Numbers numbers = QuantiseAroundZero(x, 32, 127, out + 208);
  for (size_t g = 0; g < 16; ++g) {
    out[192 + g] = Low8(numbers.scale[g]);
  }
  for (size_t half = 0; half < 2; ++half) {
    const int* v = numbers.q.data() + half * 128;
    for (size_t l = 0; l < 32; ++l) {
      out[half * 64 + l] = Low8((v[l] & 15) | (v[l + 64] & 15) << 4);
      out[half * 64 + 32 + l] = Low8((v[l + 32] & 15) | (v[l + 96] & 15) << 4);
      out[128 + half * 32 + l] =
          Low8(v[l] >> 4 | (v[l + 32] >> 4) << 2 | (v[l + 64] >> 4) << 4 | (v[l + 96] >> 4) << 6);
    }
  }
}

}  // namespace cairn::test
