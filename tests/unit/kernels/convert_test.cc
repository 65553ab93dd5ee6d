#include "compute-node/kernels/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "compute-node/kernels/dequantize.h"
#include "tests/unit/kernels/kernel_testing.h"
#include "tests/unit/kernels/reference.h"

namespace cairn::compute {
namespace {

TEST(ConvertTest, EveryF16NumberSurvivesTheRoundTrip) {
  std::vector<std::uint16_t> bits;
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    if ((i & 0x7c00) != 0x7c00) {  // infinities and NaNs apart
      bits.push_back(static_cast<std::uint16_t>(i));
    }
  }
  bits.push_back(0x7c00);
  bits.push_back(0xfc00);
  ForEachSimdTarget([&] {
    std::vector<float> values(bits.size());
    F16ToF32(bits, values);
    std::vector<std::uint16_t> back(bits.size());
    F32ToF16(values, back);
    EXPECT_EQ(back, bits);
    for (std::size_t i = 0; i < bits.size(); ++i) {
      ASSERT_EQ(values[i], F16BitsToF32(bits[i])) << bits[i];
    }
  });
}

TEST(ConvertTest, RoundsToNearestEven) {
  test::Rng rng(TestSeed());
  std::vector<float> values = {1.0F + 0x1p-11F, 1.0F + 3 * 0x1p-11F, 65504.0F, 0x1p-25F,
                               0x1p-24F,        3 * 0x1p-25F,        0.0F};
  for (int i = 0; i < 20000; ++i) {
    values.push_back(std::ldexp(rng.Normal(), static_cast<int>(rng.Below(36)) - 24));
  }
  std::vector<std::uint16_t> expected(values.size());
  std::transform(values.begin(), values.end(), expected.begin(), reference::F32ToF16Bits);
  ForEachSimdTarget([&] {
    std::vector<std::uint16_t> bits(values.size());
    F32ToF16(values, bits);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(bits[i], expected[i]) << values[i];
    }
  });
}

TEST(ConvertTest, RowsAreTheSameAtAnyAddress) {
  test::Rng rng(TestSeed());
  const std::vector<float> row = RandomRow(rng, 70);
  ForEachSimdTarget([&] {
    std::vector<std::byte> storage(70 * 2 + 1);
    StoreF16Row(row, storage.data() + 1);
    std::vector<float> back(70);
    LoadF16Row(storage.data() + 1, back);
    for (std::size_t i = 0; i < row.size(); ++i) {
      EXPECT_EQ(back[i], F16BitsToF32(reference::F32ToF16Bits(row[i])));
    }
  });
}

}  // namespace
}  // namespace cairn::compute
