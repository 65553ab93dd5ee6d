// One bad number anywhere in a row of any type is found where it is.
#include "compute-node/kernels/dequantize.h"
#include "tests/unit/kernels/quant_testing.h"

namespace cairn::compute {
namespace {

constexpr std::size_t kFiniteColumns = 1536;

// What the first value of a float type, or the scale of a block, is replaced by.
std::vector<std::uint32_t> NotFinite(WeightType type) {
  if (type == WeightType::kF32) return {0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff};
  if (type == WeightType::kBF16) return {0x7f80, 0xff80, 0x7fc0, 0x7f81, 0xffff};
  return {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xffff};
}

// The largest finite numbers and some that are bad in another type.
std::vector<std::uint32_t> Finite(WeightType type) {
  if (type == WeightType::kF32) return {0x7f7fffff, 0xff7fffff, 0x007fffff, 0x00007c00, 0x7f000000};
  if (type == WeightType::kBF16) return {0x7f7f, 0xff7f, 0x7c00, 0xfc00, 0};
  return {0x7bff, 0xfbff, 0x3ff, 0x8000, 0};
}

TEST(FirstNotFiniteTest, EveryPlaceOfEveryTypeIsSeen) {
  test::Rng rng(TestSeed());
  for (const TypePair& type : kTypes) {
    SCOPED_TRACE(type.name);
    const std::vector<std::byte> row = RandomRows(rng, type, 1, kFiniteColumns);
    ASSERT_EQ(FirstNotFinite(type.type, row.data(), kFiniteColumns), -1);
    const auto block_values = static_cast<std::size_t>(WeightBlockValues(type.type));
    const auto block_bytes =
        static_cast<std::size_t>(WeightRowBytes(type.type, WeightBlockValues(type.type)));
    const std::size_t number_bytes = type.type == WeightType::kF32 ? 4 : 2;
    for (std::size_t block = 0; block < kFiniteColumns / block_values; ++block) {
      for (const int half_at : {std::max(type.half_at, 0), type.other_half_at}) {
        if (half_at < 0) continue;
        std::vector<std::byte> changed = row;
        std::byte* at = changed.data() + block * block_bytes + half_at;
        const std::vector<std::uint32_t> bad = NotFinite(type.type);
        const std::vector<std::uint32_t> good = Finite(type.type);
        const std::size_t which = block % bad.size();
        std::memcpy(at, &bad[which], number_bytes);
        ASSERT_EQ(FirstNotFinite(type.type, changed.data(), kFiniteColumns),
                  static_cast<std::int64_t>(block * block_values));
        std::memcpy(at, &good[which], number_bytes);
        ASSERT_EQ(FirstNotFinite(type.type, changed.data(), kFiniteColumns), -1);
      }
    }
  }
}

TEST(FirstNotFiniteTest, TheFirstOfSeveralCounts) {
  std::vector<float> row(1000, 1.0F);
  row[999] = std::numeric_limits<float>::infinity();
  row[700] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(FirstNotFinite(WeightType::kF32, std::as_bytes(std::span(row)).data(), 1000), 700);
  EXPECT_EQ(FirstNotFinite(WeightType::kF32, std::as_bytes(std::span(row)).data(), 700), -1);
}

}  // namespace
}  // namespace cairn::compute
