// Products of packed weights against plain double-precision loops over the unpacked rows, for every
// weight type and instruction set, and the promise that a token's result does not depend on its
// company.
#include "compute-node/kernels/matmul.h"

#include "compute-node/kernels/reference.h"
#include "tests/tools/tensor_encoding.h"
#include "tests/unit/kernels/kernel_testing.h"

namespace cairn::compute {
namespace {

struct TypePair {
  WeightType type;
  test::TensorType encoded;
  const char* name;
};

constexpr TypePair kTypes[] = {
    {WeightType::kF32, test::TensorType::kF32, "F32"},
    {WeightType::kF16, test::TensorType::kF16, "F16"},
    {WeightType::kBF16, test::TensorType::kBf16, "BF16"},
    {WeightType::kQ80, test::TensorType::kQ80, "Q8_0"},
    {WeightType::kQ40, test::TensorType::kQ40, "Q4_0"},
    {WeightType::kQ6K, test::TensorType::kQ6K, "Q6_K"},
};

// A matrix as the file stores it and packed.
struct TestMatrix {
  TestMatrix(test::Rng& rng, const TypePair& type, std::int64_t row_count,
             std::int64_t column_count) {
    test::EncodeValues(RandomRow(rng, static_cast<std::size_t>(row_count * column_count)),
                       type.encoded, encoded);
    const std::int64_t bytes = PackedBytes(type.type, row_count, column_count);
    storage.resize(static_cast<std::size_t>(bytes + kPanelAlignBytes));
    const auto misaligned = reinterpret_cast<std::uintptr_t>(storage.data()) % kPanelAlignBytes;
    std::byte* data = storage.data() + (misaligned == 0 ? 0 : kPanelAlignBytes - misaligned);
    packed = {type.type, row_count, column_count, data};
    const std::int64_t panel_bytes = LayoutOfPanel(type.type, column_count).panel_bytes;
    for (std::int64_t panel = 0; panel < packed.panel_count(); ++panel) {
      PackPanel(type.type, rows(), row_count, column_count, panel, data + panel * panel_bytes);
    }
  }
  const std::byte* rows() const { return reinterpret_cast<const std::byte*>(encoded.data()); }

  std::vector<std::uint8_t> encoded;
  std::vector<std::byte> storage;
  PackedMatrix packed;
};

std::vector<float> Multiply(ThreadPool& pool, const PackedMatrix& weights,
                            const std::vector<float>& x, const float* bias = nullptr) {
  const std::int64_t token_count = static_cast<std::int64_t>(x.size()) / weights.column_count;
  std::vector<ActivationBlock> blocks(x.size() / kActivationBlock);
  if (IsQuantised(weights.type)) {
    QuantizeActivations(x, blocks);
  }
  std::vector<float> out(static_cast<std::size_t>(token_count * weights.row_count));
  const MatMulJob job{weights, bias, out.data(), weights.row_count};
  MatMul(pool, {token_count, weights.column_count, x.data(), blocks.data()}, {&job, 1});
  return out;
}

TEST(MatMulTest, MatchesTheReferenceForEveryType) {
  test::Rng rng(TestSeed());
  ThreadPool pool(2);
  for (const TypePair& type : kTypes) {
    for (int round = 0; round < 4; ++round) {
      const auto row_count = static_cast<std::int64_t>(1 + rng.Below(70));
      const std::int64_t column_count = IsQuantised(type.type)
                                            ? 256 * static_cast<std::int64_t>(1 + rng.Below(4))
                                            : static_cast<std::int64_t>(1 + rng.Below(300));
      const auto token_count = static_cast<std::int64_t>(1 + rng.Below(21));
      SCOPED_TRACE(testing::Message() << type.name << " " << row_count << " x " << column_count
                                      << ", " << token_count << " tokens");
      const TestMatrix matrix(rng, type, row_count, column_count);
      const std::vector<float> x =
          RandomRow(rng, static_cast<std::size_t>(token_count * column_count));
      const auto expected = reference::MatMul(type.type, matrix.rows(), row_count, column_count, x);
      ForEachSimdTarget([&] {
        EXPECT_LT(Distance(Multiply(pool, matrix.packed, x), expected),
                  IsQuantised(type.type) ? 2e-4 : 2e-6);
      });
    }
  }
}

TEST(MatMulTest, ATokensResultDoesNotDependOnTheBatch) {
  test::Rng rng(TestSeed());
  ThreadPool pool(1);
  for (const TypePair& type : kTypes) {
    SCOPED_TRACE(type.name);
    constexpr std::int64_t kColumns = 512;
    constexpr std::int64_t kRows = 50;
    constexpr std::int64_t kTokens = 27;
    const TestMatrix matrix(rng, type, kRows, kColumns);
    const std::vector<float> x = RandomRow(rng, kTokens * kColumns);
    ForEachSimdTarget([&] {
      const std::vector<float> together = Multiply(pool, matrix.packed, x);
      for (std::int64_t token = 0; token < kTokens; ++token) {
        const std::vector<float> alone =
            Multiply(pool, matrix.packed,
                     {x.begin() + token * kColumns, x.begin() + (token + 1) * kColumns});
        ASSERT_TRUE(SameBits(alone.data(), together.data() + token * kRows, kRows))
            << "token " << token;
      }
    });
  }
}

TEST(MatMulTest, TheThreadCountDoesNotChangeTheResult) {
  test::Rng rng(TestSeed());
  const TestMatrix matrix(rng, kTypes[3], 3000, 256);
  const std::vector<float> x = RandomRow(rng, 3UL * 256);
  ThreadPool one(1);
  ThreadPool four(4);
  EXPECT_EQ(Multiply(one, matrix.packed, x), Multiply(four, matrix.packed, x));
}

TEST(MatMulTest, AddsTheBias) {
  test::Rng rng(TestSeed());
  ThreadPool pool(1);
  const TestMatrix matrix(rng, kTypes[0], 21, 40);
  const std::vector<float> x = RandomRow(rng, 2UL * 40);
  const std::vector<float> bias = RandomRow(rng, 21);
  std::vector<float> expected = Multiply(pool, matrix.packed, x);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] += bias[i % bias.size()];
  }
  EXPECT_EQ(Multiply(pool, matrix.packed, x, bias.data()), expected);
}

TEST(MatMulTest, ExtremeQuantsAreExact) {
  // Weights of -128 and the largest digits meet the edges of the 8-bit products.
  std::vector<std::byte> row(34, std::byte{0x80});
  row[0] = std::byte{0};
  row[1] = std::byte{0x3c};  // scale 1
  const PanelLayout layout = LayoutOfPanel(WeightType::kQ80, 32);
  std::vector<std::byte> panel(static_cast<std::size_t>(layout.panel_bytes));
  PackPanel(WeightType::kQ80, row.data(), 1, 32, 0, panel.data());
  ThreadPool pool(1);
  for (const float value : {1.0F, -1.0F}) {
    const std::vector<float> x(32, value);
    ForEachSimdTarget([&] {
      EXPECT_FLOAT_EQ(Multiply(pool, {WeightType::kQ80, 1, 32, panel.data()}, x)[0],
                      value * 32 * -128);
    });
  }
}

TEST(QuantizeActivationsTest, KeepsSixteenBits) {
  test::Rng rng(TestSeed());
  ForEachSimdTarget([&] {
    const std::vector<float> row = RandomRow(rng, 256, 3.0F);
    std::vector<ActivationBlock> blocks(8);
    QuantizeActivations(row, blocks);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const ActivationBlock& block = blocks[i / 32];
      const int number = 254 * block.high[i % 32] + block.low[i % 32];
      EXPECT_NEAR(static_cast<float>(number) * block.scale, row[i], block.scale * 0.51F);
    }
    for (const ActivationBlock& block : blocks) {
      for (int half = 0; half < 2; ++half) {
        int high = 0;
        int low = 0;
        for (int i = half * 16; i < half * 16 + 16; ++i) {
          high += block.high[i];
          low += block.low[i];
        }
        EXPECT_EQ(block.high_sums[half], high);
        EXPECT_EQ(block.low_sums[half], low);
      }
    }
  });
}

TEST(QuantizeActivationsTest, ZeroRowsStayZero) {
  const std::vector<float> row(32, 0.0F);
  std::vector<ActivationBlock> blocks(1);
  QuantizeActivations(row, blocks);
  EXPECT_EQ(blocks[0].high[3], 0);
  EXPECT_EQ(blocks[0].low[3], 0);
  EXPECT_EQ(blocks[0].scale, 0.0F);
}

}  // namespace
}  // namespace cairn::compute
