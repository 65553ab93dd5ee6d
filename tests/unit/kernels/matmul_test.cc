// Products of packed weights against plain double-precision loops over the unpacked rows, for every
// weight type and instruction set, and the promise that a token's result does not depend on its
// company.
#include "compute-node/kernels/matmul.h"

#include <array>

#include "tests/unit/kernels/quant_testing.h"
#include "tests/unit/kernels/reference.h"

namespace cairn::compute {
namespace {

// A matrix as the file stores it and packed.
struct TestMatrix {
  TestMatrix(const TypePair& type, std::vector<std::byte> rows_of_file, std::int64_t row_count,
             std::int64_t column_count)
      : rows(std::move(rows_of_file)) {
    const std::int64_t bytes = PackedBytes(type.type, row_count, column_count);
    storage.resize(static_cast<std::size_t>(bytes + kPanelAlignBytes));
    const auto misaligned = reinterpret_cast<std::uintptr_t>(storage.data()) % kPanelAlignBytes;
    std::byte* data = storage.data() + (misaligned == 0 ? 0 : kPanelAlignBytes - misaligned);
    packed = {type.type, row_count, column_count, data};
    const std::int64_t panel_bytes = PanelBytes(type.type, column_count);
    for (std::int64_t panel = 0; panel < packed.panel_count(); ++panel) {
      PackPanel(type.type, rows.data(), row_count, column_count, panel, data + panel * panel_bytes);
    }
  }
  TestMatrix(test::Rng& rng, const TypePair& type, std::int64_t row_count,
             std::int64_t column_count)
      : TestMatrix(type, RandomRows(rng, type, row_count, column_count), row_count, column_count) {}

  std::vector<std::byte> rows;
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

// |W| |x| / sqrt(columns): the size of all products together, unless their terms cancel.
double ProductSize(const TestMatrix& matrix, const std::vector<float>& x) {
  const PackedMatrix& packed = matrix.packed;
  std::vector<float> row(static_cast<std::size_t>(packed.column_count));
  std::vector<double> norms;
  for (std::int64_t at = 0; at < packed.row_count; ++at) {
    DequantizeRow(packed.type,
                  matrix.rows.data() + at * WeightRowBytes(packed.type, packed.column_count), row);
    norms.push_back(Norm(row));
  }
  return Norm(norms) * Norm(x) / std::sqrt(static_cast<double>(packed.column_count));
}

TEST(MatMulTest, MatchesTheReferenceForEveryType) {
  test::Rng rng(TestSeed());
  ThreadPool pool(2);
  for (const TypePair& type : kTypes) {
    for (int round = 0; round < 4; ++round) {
      const auto row_count = static_cast<std::int64_t>(1 + rng.Below(70));
      const std::int64_t values = WeightBlockValues(type.type);
      const auto column_count =
          values * static_cast<std::int64_t>(1 + rng.Below(values == 256  ? 4
                                                           : values == 32 ? 35
                                                                          : 300));
      const auto token_count = static_cast<std::int64_t>(1 + rng.Below(21));
      SCOPED_TRACE(testing::Message() << type.name << " " << row_count << " x " << column_count
                                      << ", " << token_count << " tokens");
      const TestMatrix matrix(rng, type, row_count, column_count);
      const std::vector<float> x =
          RandomRow(rng, static_cast<std::size_t>(token_count * column_count));
      const auto expected =
          reference::MatMul(type.type, matrix.rows.data(), row_count, column_count, x);
      const double size = ProductSize(matrix, x);
      ForEachSimdTarget([&] {
        EXPECT_LT(Difference(Multiply(pool, matrix.packed, x), expected),
                  size * (IsQuantised(type.type) ? 2e-4 : 2e-6));
      });
    }
  }
}

TEST(PackedMatrixTest, APanelHasTheBytesOfItsRowsRoundedUp) {
  for (const TypePair& type : kTypes) {
    for (const std::int64_t columns : {256, 512, 896, 4864}) {
      if (columns % WeightBlockValues(type.type) != 0) continue;
      const std::int64_t bytes = PackedBytes(type.type, kPanelRows, columns);
      const std::int64_t file_bytes = kPanelRows * WeightRowBytes(type.type, columns);
      EXPECT_GE(bytes, file_bytes) << type.name;
      EXPECT_LT(bytes, file_bytes + kPanelAlignBytes) << type.name;
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

// Blocks of the largest and smallest numbers meet the edges of the 8-bit products, and f32 holds
// their sums.
TEST(MatMulTest, ExtremeNumbersAreExact) {
  ThreadPool pool(1);
  for (const TypePair& type : kTypes) {
    if (!IsQuantised(type.type)) continue;
    const std::int64_t columns = WeightBlockValues(type.type);
    for (const int fill : {0x00, 0x7f, 0x80, 0x88, 0xff}) {
      std::vector<std::byte> row(static_cast<std::size_t>(WeightRowBytes(type.type, columns)),
                                 static_cast<std::byte>(fill));
      PutHalfAt(row.data(), type.half_at, 0x3c00);        // 1
      PutHalfAt(row.data(), type.other_half_at, 0xc000);  // -2
      const TestMatrix matrix(type, row, 1, columns);
      for (const float value : {1.0F, -1.0F}) {
        SCOPED_TRACE(testing::Message() << type.name << " of bytes " << fill << " times " << value);
        const std::vector<float> x(static_cast<std::size_t>(columns), value);
        const double expected = reference::MatMul(type.type, row.data(), 1, columns, x)[0];
        ForEachSimdTarget([&] {
          const auto product = static_cast<double>(Multiply(pool, matrix.packed, x)[0]);
          EXPECT_NEAR(product, expected, 4e-7 * std::abs(expected));
        });
      }
    }
  }
}

TEST(MatMulTest, AScaleThatIsNoNumberSpoilsItsRowOnly) {
  test::Rng rng(TestSeed());
  ThreadPool pool(1);
  constexpr std::int64_t kColumns = 256;
  constexpr std::int64_t kRows = 20;
  const std::vector<float> x = RandomRow(rng, 3 * kColumns);
  for (const TypePair& type : kTypes) {
    if (!IsQuantised(type.type)) continue;
    for (const std::uint16_t bits : std::array<std::uint16_t, 3>{0x7e00, 0x7c00, 0xfc00}) {
      SCOPED_TRACE(testing::Message() << type.name << " " << bits);
      std::vector<std::byte> rows = RandomRows(rng, type, kRows, kColumns);
      const TestMatrix good(type, rows, kRows, kColumns);
      std::byte* bad_row = rows.data() + 5 * WeightRowBytes(type.type, kColumns);
      PutHalfAt(bad_row, type.half_at, bits);
      PutHalfAt(bad_row, type.other_half_at, bits);
      const TestMatrix bad(type, rows, kRows, kColumns);
      ForEachSimdTarget([&] {
        const std::vector<float> expected = Multiply(pool, good.packed, x);
        const std::vector<float> product = Multiply(pool, bad.packed, x);
        for (std::size_t i = 0; i < product.size(); ++i) {
          if (i % kRows != 5) {
            ASSERT_EQ(product[i], expected[i]) << i;
          }
        }
      });
    }
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
      int high[2] = {};
      int low[2] = {};
      for (int i = 0; i < 32; ++i) {
        high[i / 16] += block.high[i];
        low[i / 16] += block.low[i];
      }
      EXPECT_EQ(block.sums[0], 254 * high[0] + low[0]);
      EXPECT_EQ(block.sums[1], 254 * high[1] + low[1]);
      EXPECT_EQ(block.high_sum, high[0] + high[1]);
      EXPECT_EQ(block.low_sum, low[0] + low[1]);
    }
  });
}

TEST(QuantizeActivationsTest, ANumberThatIsNoneShowsInTheScale) {
  test::Rng rng(TestSeed());
  ForEachSimdTarget([&] {
    for (const float content :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
          std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      for (std::size_t i = 0; i < 32; ++i) {
        std::vector<float> row = RandomRow(rng, 64);
        row[i] = content;
        std::vector<ActivationBlock> blocks(2);
        QuantizeActivations(row, blocks);
        EXPECT_FALSE(std::isfinite(blocks[0].scale)) << content << " at " << i;
        EXPECT_EQ(blocks[0].sums[0], 0);
        EXPECT_TRUE(std::isfinite(blocks[1].scale));
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
