// The weight of a token in a draw: its probability against the most likely one's, as a fixed-point
// number, so that draws are the same on every platform.
//
// Threading:  pure functions.
#pragma once

#include <cstdint>

namespace cairn::compute {

// A weight of 1 is 2^-40; 2^22 weights, which is more than a vocabulary has, fit in 64 bits.
inline constexpr int kSamplerWeightBits = 40;
// Below this the weight is 0: exp(-27.75) is less than 2^-40.
inline constexpr double kSamplerExponentMin = -27.75;

// floor(exp(x) * 2^40) for x <= 0, where exp(x) is what SamplerExp(x) gives: the same bits on every
// platform that computes doubles as IEEE 754 defines.
std::uint64_t SamplerWeight(double x);

// exp(x) for x <= 0 by basic operations only, which IEEE 754 defines to the last bit; the
// libraries' exp() differ there. Slow: SamplerWeight needs it for few numbers.
double SamplerExp(double x);

}  // namespace cairn::compute
