// What the kernel tests share: a seed, random rows, and running a body with every instruction set
// that this machine has.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "tests/tools/rng.h"

namespace cairn::compute {

// CAIRN_TEST_SEED repeats a run.
inline std::uint64_t TestSeed() {
  const char* text =
      std::getenv("CAIRN_TEST_SEED");  // NOLINT(concurrency-mt-unsafe): no test changes it
  const std::uint64_t seed =
      text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
  std::cout << "seed " << seed << " (CAIRN_TEST_SEED repeats it)\n";
  return seed;
}

inline std::vector<float> RandomRow(test::Rng& rng, std::size_t count, float scale = 1.0F) {
  std::vector<float> row(count);
  for (float& value : row) {
    value = rng.Normal() * scale;
  }
  return row;
}

// The instruction sets, one a bit, that this machine has and the kernels are compiled for: these
// tests have the kernels' compile options. For any other one Highway would take the static one
// again.
inline std::int64_t SimdTargets() {
  return (hwy::SupportedTargets() & HWY_TARGETS) | HWY_STATIC_TARGET;
}

// Calls body() once for each instruction set; a failure names it.
template <typename Body>
void ForEachSimdTarget(const Body& body) {
  const std::int64_t targets = SimdTargets();
  for (std::int64_t target = 1; target != 0 && target <= targets && target > 0; target <<= 1) {
    if ((targets & target) == 0) {
      continue;
    }
    SCOPED_TRACE(std::string("SIMD target ") + hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    body();
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Equal bit for bit: -0 and 0 differ.
inline bool SameBits(const float* a, const float* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) {
      return false;
    }
  }
  return true;
}

// |a|.
template <typename A>
double Norm(const std::vector<A>& a) {
  double squares = 0.0;
  for (const A number : a) squares += static_cast<double>(number) * static_cast<double>(number);
  return std::sqrt(squares);
}

// |a - b|.
template <typename A, typename B>
double Difference(const std::vector<A>& a, const std::vector<B>& b) {
  EXPECT_EQ(a.size(), b.size());
  std::vector<double> difference;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference.push_back(static_cast<double>(a[i]) - static_cast<double>(b[i]));
  }
  return Norm(difference);
}

// |a - b| / |b|, for what is about as large as its terms. A sum whose terms cancel is as wrong as
// they are, however small it is: compare its Difference with their size.
template <typename A, typename B>
double Distance(const std::vector<A>& a, const std::vector<B>& b) {
  const double norm = Norm(b);
  return Difference(a, b) / (norm == 0.0 ? 1.0 : norm);
}

}  // namespace cairn::compute
