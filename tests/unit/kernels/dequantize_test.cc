// Rows of any bytes, decoded, against the values that the format's definition gives one by one.
#include "compute-node/kernels/dequantize.h"

#include "tests/tools/tensor_decoding.h"
#include "tests/unit/kernels/quant_testing.h"

namespace cairn::compute {
namespace {

TEST(DequantizeTest, EveryTypeDecodesAsTheFormatDefines) {
  test::Rng rng(TestSeed());
  for (const TypePair& type : kTypes) {
    SCOPED_TRACE(type.name);
    constexpr std::size_t kColumns = 1024;
    const std::vector<std::byte> row = RandomRows(rng, type, 1, kColumns);
    ASSERT_EQ(std::ssize(row), WeightRowBytes(type.type, kColumns));
    std::vector<float> decoded(kColumns);
    DequantizeRow(type.type, row.data(), decoded);
    const std::string_view bytes(reinterpret_cast<const char*>(row.data()), row.size());
    for (std::size_t i = 0; i < kColumns; ++i) {
      const double expected = test::DecodedValue(type.encoded, bytes, i);
      // Scale and minimum may cancel; each is rounded once.
      ASSERT_NEAR(static_cast<double>(decoded[i]), expected, 1e-6 * (std::abs(expected) + 0.01))
          << "column " << i;
    }
  }
}

TEST(DequantizeTest, BlocksHaveTheSizesOfTheFormat) {
  for (const TypePair& type : kTypes) {
    const test::TensorTypeInfo info = test::InfoOf(type.encoded);
    EXPECT_EQ(WeightBlockValues(type.type), info.block_values) << type.name;
    EXPECT_EQ(WeightRowBytes(type.type, 512), 512 / info.block_values * info.block_bytes)
        << type.name;
    EXPECT_NE(kWeightTypeNames.find(type.name), std::string_view::npos);
  }
}

}  // namespace
}  // namespace cairn::compute
