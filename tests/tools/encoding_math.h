// What the encoders of all block types share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "tests/tools/tensor_encoding.h"

namespace cairn::test {

inline uint8_t Low8(int value) { return static_cast<uint8_t>(value & 0xff); }

// Stores `value` as a half and returns what it became.
inline float PutHalf(float value, uint8_t* out) {
  const uint16_t half = HalfFromFloat(value);
  out[0] = Low8(half);
  out[1] = Low8(half >> 8);
  return FloatFromHalf(half);
}

inline float AbsoluteMax(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) {
    largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

// The value of the largest magnitude, with its sign.
inline float SignedExtreme(std::span<const float> values) {
  float extreme = 0;
  for (const float value : values) {
    if (std::fabs(value) > std::fabs(extreme)) {
      extreme = value;
    }
  }
  return extreme;
}

// Half away from zero, as a plain conversion so that it vectorises.
inline int RoundToInt(float value) { return static_cast<int>(value + (value < 0 ? -0.5F : 0.5F)); }

inline float InverseOf(float value) { return value != 0 ? 1.0F / value : 0.0F; }

}  // namespace cairn::test
