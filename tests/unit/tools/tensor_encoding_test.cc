#include "tests/tools/tensor_encoding.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/rng.h"
#include "tests/tools/tensor_decoding.h"

namespace cairn::test {
namespace {

TEST(TensorEncodingTest, EveryHalfRoundTrips) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const auto bits = static_cast<uint16_t>(half);
    const float value = FloatFromHalf(bits);
    if (!std::isnan(value)) {
      ASSERT_EQ(HalfFromFloat(value), bits) << half;
    }
  }
}

TEST(TensorEncodingTest, FloatsRoundToTheNearestHalfAndTiesToEven) {
  EXPECT_EQ(HalfFromFloat(1.0F + 1.0F / 2048), 0x3c00);  // tie, down to even
  EXPECT_EQ(HalfFromFloat(1.0F + 3.0F / 2048), 0x3c02);  // tie, up to even
  EXPECT_EQ(HalfFromFloat(1.0F + 1.1F / 2048), 0x3c01);
  EXPECT_EQ(HalfFromFloat(65519.0F), 0x7bff);
  EXPECT_EQ(HalfFromFloat(65520.0F), 0x7c00);               // infinity
  EXPECT_EQ(HalfFromFloat(std::ldexp(1.0F, -25)), 0x0000);  // half of the smallest, tie to 0
  EXPECT_EQ(HalfFromFloat(std::ldexp(1.1F, -25)), 0x0001);
  EXPECT_EQ(HalfFromFloat(-2.0F), 0xc000);
}

// Layouts by hand: one block of each type with known values.
TEST(TensorEncodingTest, BlocksHaveTheFormatsLayout) {
  std::vector<float> values(32, 0.0F);
  values[0] = 127.0F;
  values[1] = -3.0F;
  values[31] = 1.0F;
  std::vector<uint8_t> out;
  EncodeValues(values, TensorType::kQ80, out);
  ASSERT_EQ(out.size(), 34U);
  EXPECT_EQ(out[0] | out[1] << 8, 0x3c00);  // scale 1
  EXPECT_EQ(out[2], 127);
  EXPECT_EQ(out[3], 0xfd);
  EXPECT_EQ(out[33], 1);

  values.assign(32, 0.0F);
  values[0] = -8.0F;  // the extreme: scale 1, stored as 0
  values[16] = 7.0F;
  values[1] = 2.0F;
  out.clear();
  EncodeValues(values, TensorType::kQ40, out);
  ASSERT_EQ(out.size(), 18U);
  EXPECT_EQ(out[0] | out[1] << 8, 0x3c00);
  EXPECT_EQ(out[2], 0xf0);  // value 0 low, value 16 high
  EXPECT_EQ(out[3], 0x8a);

  out.clear();
  EncodeValues(std::vector<float>{1.0F, -2.0F}, TensorType::kBf16, out);
  EXPECT_EQ(out, (std::vector<uint8_t>{0x80, 0x3f, 0x00, 0xc0}));
}

// How far rounding moves normal values, relative to their size; the types' bits decide. Numbers
// in another order would be above 1.
TEST(TensorEncodingTest, ValuesSurviveAsFarAsTheTypesBitsGo) {
  const std::pair<std::string_view, double> tolerances[] = {
      {"f32", 0},     {"f16", 3e-4},   {"bf16", 3e-3},  {"q8_0", 6e-3},  {"q4_0", 0.1},
      {"q4_1", 0.09}, {"q5_0", 0.05},  {"q5_1", 0.045}, {"iq4_nl", 0.1}, {"q2_k", 0.34},
      {"q3_k", 0.19}, {"q4_k", 0.085}, {"q5_k", 0.045}, {"q6_k", 0.022}, {"iq4_xs", 0.1},
  };
  Rng rng(5);
  std::vector<float> values(2048);
  for (float& value : values) {
    value = rng.Normal();
  }
  for (const auto& [name, tolerance] : tolerances) {
    const TensorType type = *TensorTypeFromName(name);
    std::vector<uint8_t> out;
    EncodeValues(values, type, out);
    const TensorTypeInfo info = InfoOf(type);
    ASSERT_EQ(static_cast<int64_t>(out.size()), 2048 / info.block_values * info.block_bytes);
    const std::string_view bytes(reinterpret_cast<const char*>(out.data()), out.size());
    double error = 0;
    double size = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<double>(values[i]);
      const double delta = DecodedValue(type, bytes, i) - value;
      error += delta * delta;
      size += value * value;
    }
    EXPECT_LE(std::sqrt(error / size), tolerance) << name;
  }
}

TEST(TensorEncodingTest, ConstantsAndZerosAreHeldExactly) {
  for (const float value : {0.0F, -2.0F}) {
    const std::vector<float> values(256, value);
    for (const std::string_view name : {"q8_0", "q4_1", "q5_1", "q2_k", "q3_k", "q4_k", "q6_k"}) {
      const TensorType type = *TensorTypeFromName(name);
      std::vector<uint8_t> out;
      EncodeValues(values, type, out);
      const std::string_view bytes(reinterpret_cast<const char*>(out.data()), out.size());
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(DecodedValue(type, bytes, i), static_cast<double>(value), 1e-3) << name;
      }
    }
  }
}

TEST(TensorEncodingTest, TypeNames) {
  EXPECT_EQ(*TensorTypeFromName("q8_0"), TensorType::kQ80);
  EXPECT_EQ(*TensorTypeFromName("iq4_nl"), TensorType::kIq4Nl);
  EXPECT_EQ(*TensorTypeFromName("iq4_xs"), TensorType::kIq4Xs);
  EXPECT_EQ(TensorTypeFromName("q9").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RngTest, NormalHasMeanZeroAndVarianceOne) {
  Rng rng(1);
  double sum = 0;
  double squares = 0;
  constexpr int kCount = 1000000;
  for (int i = 0; i < kCount; ++i) {
    const auto x = static_cast<double>(rng.Normal());
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.005);
  EXPECT_NEAR(squares / kCount, 1.0, 0.005);
}

}  // namespace
}  // namespace cairn::test
