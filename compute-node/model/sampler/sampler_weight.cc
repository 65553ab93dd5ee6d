#include "compute-node/model/sampler/sampler_weight.h"

#include <array>
#include <bit>
#include <cmath>

// Compiled with -ffp-contract=off: fused multiply-adds would make the result depend on the
// processor.

namespace cairn::compute {
namespace {

constexpr double kLn2 = 0.693147180559945309417232121458;
constexpr int kStepBits = 6;
constexpr int kStepCount = 1 << kStepBits;  // of the table, for a factor of two
constexpr double kStep = kLn2 / kStepCount;

// exp(-i * kStep) for each i.
constexpr std::array<double, kStepCount> MakeSteps() {
  std::array<double, kStepCount> steps{};
  for (int i = 0; i < kStepCount; ++i) {
    double sum = 1.0;  // Horner's form of the Taylor series
    for (int n = 20; n >= 1; --n) {
      sum = 1.0 - sum * (i * kStep) / n;
    }
    steps[static_cast<std::size_t>(i)] = sum;
  }
  return steps;
}

constexpr std::array<double, kStepCount> kSteps = MakeSteps();

// exp(x) * 2^40 for kSamplerExponentMin <= x <= 0, less than 2^-8 from SamplerExp's: a table and a
// short polynomial take a tenth of its time.
double ScaledExp(double x) {
  const int step = static_cast<int>(0.5 - x * (1.0 / kStep));
  const double rest = x + step * kStep;  // at most kStep / 2 from 0: error below 2^-54
  double sum = 1.0 / 120;
  for (const double coefficient : {1.0 / 24, 1.0 / 6, 1.0 / 2, 1.0, 1.0}) {
    sum = sum * rest + coefficient;
  }
  const int power = kSamplerWeightBits - (step >> kStepBits);  // 0 to 40
  constexpr int kExponentBias = 1023;
  constexpr int kFractionBits = 52;
  const auto scale =
      std::bit_cast<double>(static_cast<std::uint64_t>(power + kExponentBias) << kFractionBits);
  return sum * kSteps[static_cast<std::size_t>(step & (kStepCount - 1))] * scale;
}

}  // namespace

double SamplerExp(double x) {
  if (x < -64.0) {  // below 2^-92: a weight of 0
    return 0.0;
  }
  const double power = std::floor(x / kLn2 + 0.5);
  const double rest = x - power * kLn2;  // in [-ln2/2, ln2/2]
  double sum = 1.0;  // Horner's form of the Taylor series to the 14th power: error below 2^-52
  for (int n = 14; n >= 1; --n) {
    sum = 1.0 + sum * rest / n;
  }
  return std::ldexp(sum, static_cast<int>(power));
}

std::uint64_t SamplerWeight(double x) {
  if (x < kSamplerExponentMin) {
    return 0;
  }
  const double scaled = ScaledExp(x);
  const auto weight = static_cast<std::int64_t>(scaled);  // unsigned takes more instructions
  const double fraction = scaled - static_cast<double>(weight);
  // So near to a whole number the error might change it.
  constexpr double kDoubt = 1.0 / 256;
  if (fraction < kDoubt || fraction > 1.0 - kDoubt) {
    return static_cast<std::uint64_t>(std::ldexp(SamplerExp(x), kSamplerWeightBits));
  }
  return static_cast<std::uint64_t>(weight);
}

}  // namespace cairn::compute
