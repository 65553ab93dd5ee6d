#include "compute-node/kernels/ops.h"

#include <cmath>
#include <limits>

#include "tests/unit/kernels/kernel_testing.h"
#include "tests/unit/kernels/reference.h"

namespace cairn::compute {
namespace {

TEST(RmsNormTest, MatchesTheReference) {
  test::Rng rng(TestSeed());
  for (const std::size_t count : {1U, 7U, 64U, 100U, 896U, 2048U}) {
    const std::vector<float> x = RandomRow(rng, count);
    const std::vector<float> weight = RandomRow(rng, count);
    const auto expected = reference::RmsNorm(x, weight, 1e-5);
    ForEachSimdTarget([&] {
      std::vector<float> out(count);
      RmsNorm(x, weight, 1e-5F, out);
      EXPECT_LT(Distance(out, expected), 1e-6) << count;
      std::vector<float> in_place = x;
      RmsNorm(in_place, weight, 1e-5F, in_place);
      EXPECT_EQ(in_place, out);
    });
  }
}

// Their squares are beyond the range of floats.
TEST(RmsNormTest, LargeNumbersAreNotLost) {
  test::Rng rng(TestSeed());
  for (const std::size_t count : {1U, 64U, 100U}) {
    std::vector<float> x = RandomRow(rng, count, 1e25F);
    const std::vector<float> weight = RandomRow(rng, count);
    const auto expected = reference::RmsNorm(x, weight, 1e-5);
    ForEachSimdTarget([&] {
      std::vector<float> out(count);
      RmsNorm(x, weight, 1e-5F, out);
      EXPECT_LT(Distance(out, expected), 1e-6) << count;
    });
    x[count / 2] = std::numeric_limits<float>::infinity();
    ForEachSimdTarget([&] {
      std::vector<float> out(count);
      RmsNorm(x, weight, 1e-5F, out);
      EXPECT_FALSE(std::isfinite(out[count / 2])) << count;
    });
  }
}

TEST(SiluMulTest, MatchesItsFormula) {
  test::Rng rng(TestSeed());
  std::vector<float> gate = RandomRow(rng, 205, 5.0F);
  gate[0] = 200.0F;
  gate[1] = -200.0F;
  const std::vector<float> up = RandomRow(rng, gate.size());
  std::vector<double> expected;
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double g = static_cast<double>(gate[i]);
    expected.push_back(g / (1.0 + std::exp(-g)) * static_cast<double>(up[i]));
  }
  ForEachSimdTarget([&] {
    std::vector<float> out = gate;
    SiluMul(up, out);
    EXPECT_LT(Distance(out, expected), 1e-6);
    // A tail element is computed like any other.
    std::vector<float> prefix(gate.begin(), gate.begin() + 17);
    SiluMul(std::span(up).first(17), prefix);
    EXPECT_EQ(prefix, std::vector<float>(out.begin(), out.begin() + 17));
  });
}

TEST(RopeTest, BothPairingsRotateByTheAngle) {
  const std::vector<double> frequencies = {1.0, 0.1, 0.01, 0.001};
  std::vector<float> cosines(4);
  std::vector<float> sines(4);
  constexpr std::int64_t kPosition = 1'000'003;
  ComputeRopeAngles(kPosition, frequencies, 1.0, cosines, sines);
  const std::vector<float> head = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<float> adjacent = head;
  std::vector<float> halves = head;
  RopeAdjacent({cosines, sines}, adjacent);
  RopeHalves({cosines, sines}, halves);
  for (std::size_t i = 0; i < 4; ++i) {
    const double angle = static_cast<double>(kPosition) * frequencies[i];
    const auto check = [&](const std::vector<float>& rotated, std::size_t first,
                           std::size_t second) {
      const double a = static_cast<double>(head[first]);
      const double b = static_cast<double>(head[second]);
      EXPECT_NEAR(static_cast<double>(rotated[first]), a * std::cos(angle) - b * std::sin(angle),
                  1e-5);
      EXPECT_NEAR(static_cast<double>(rotated[second]), a * std::sin(angle) + b * std::cos(angle),
                  1e-5);
    };
    check(adjacent, 2 * i, 2 * i + 1);
    check(halves, i, i + 4);
  }
}

TEST(RopeTest, TheMagnitudeIsThatOfSinesAndCosines) {
  const std::vector<double> frequencies = {0.5, 0.25};
  std::vector<float> cosines(2);
  std::vector<float> sines(2);
  ComputeRopeAngles(7, frequencies, 1.25, cosines, sines);
  for (std::size_t i = 0; i < 2; ++i) {
    const double angle = 7 * frequencies[i];
    EXPECT_NEAR(static_cast<double>(cosines[i]), 1.25 * std::cos(angle), 1e-6);
    EXPECT_NEAR(static_cast<double>(sines[i]), 1.25 * std::sin(angle), 1e-6);
  }
}

TEST(AddToTest, AddsEveryElement) {
  test::Rng rng(TestSeed());
  const std::vector<float> y = RandomRow(rng, 45);
  const std::vector<float> x = RandomRow(rng, 45);
  ForEachSimdTarget([&] {
    std::vector<float> sum = x;
    AddTo(y, sum);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      EXPECT_EQ(sum[i], x[i] + y[i]);
    }
  });
}

}  // namespace
}  // namespace cairn::compute
