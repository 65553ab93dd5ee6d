// Stored entries: bytes, errors, and what does not fit a format.
#include "compute-node/kernels/kv_entry.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "compute-node/kernels/dequantize.h"
#include "tests/unit/kernels/kernel_testing.h"

namespace cairn::compute {
namespace {

struct Entry {
  Entry(const std::vector<float>& k, const std::vector<float>& v, KvFormat format)
      : bytes(static_cast<std::size_t>(KvEntryBytes(format, std::ssize(k)))),
        keys(k.size()),
        values(k.size()) {
    misfit = StoreKvEntry(k, v, format, bytes.data());
    LoadKvEntry(bytes.data(), format, keys, values);
  }
  std::vector<std::byte> bytes;
  std::vector<float> keys;
  std::vector<float> values;
  KvMisfit misfit;
};

std::vector<float> Part(const std::vector<float>& row, std::size_t first) {
  const std::size_t end = std::min(row.size(), first + kKvGroupNumbers);
  return {row.begin() + static_cast<std::ptrdiff_t>(first),
          row.begin() + static_cast<std::ptrdiff_t>(end)};
}

float LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0.0F;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    // NaN, too.
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

// A scale is rounded up to f16: by 2^-10 at most, or by the smallest f16 number.
float ScaleMax(float exact) { return exact * (1.0F + 0x1p-10F) + 0x1p-24F; }

TEST(KvEntryTest, SizesFollowFromTheFormat) {
  EXPECT_EQ(KvEntryBytes(KvFormat::kF32, 64), 512);
  EXPECT_EQ(KvEntryBytes(KvFormat::kF16, 64), 256);
  EXPECT_EQ(KvEntryBytes(KvFormat::kQ8, 64), 132);
  EXPECT_EQ(KvEntryBytes(KvFormat::kQ4, 64), 106);
  EXPECT_EQ(KvEntryBytes(KvFormat::kQ8, 128), 260);
  EXPECT_EQ(KvEntryBytes(KvFormat::kQ4, 128), 210);
  EXPECT_EQ(KvEntryBytes(KvFormat::kQ4, 33), 2 + 33 + 8 + 17);
}

// The bytes are on disk: they may not change.
TEST(KvEntryTest, BytesAreAsDocumented) {
  const std::vector<float> k = {127.0F, -254.0F, 0.0F, 1.0F};
  const std::vector<float> v = {-1.0F, 6.5F, 0.2F, 0.3F};
  const auto bytes = [](std::initializer_list<int> list) {
    std::vector<std::byte> out;
    for (const int value : list) out.push_back(static_cast<std::byte>(value));
    return out;
  };
  // Scale 2 is 0x4000, 6.5 / 127 rounded up 0x2a8e (0.05118).
  EXPECT_EQ(Entry(k, v, KvFormat::kQ8).bytes,
            bytes({0x00, 0x40, 64, 0x81, 0, 0, 0x8e, 0x2a, 0xec, 127, 4, 6}));
  // Scale 7.5 / 15 is 0x3800, minimum -1 0xbc00; numbers 0, 15, 2 (of 2.4), 3 (of 2.6).
  EXPECT_EQ(Entry(k, v, KvFormat::kQ4).bytes,
            bytes({0x00, 0x40, 64, 0x81, 0, 0, 0x00, 0x38, 0x00, 0xbc, 0xf0, 0x32}));
}

TEST(KvEntryTest, ErrorsAreAtMostHalfAStep) {
  test::Rng rng(TestSeed());
  for (int round = 0; round < 300; ++round) {
    const std::size_t dim = 1 + rng.Below(150);
    const float size = std::ldexp(1.0F, static_cast<int>(rng.Below(31)) - 20);
    const std::vector<float> k = RandomRow(rng, dim, size);
    std::vector<float> v = RandomRow(rng, dim, size);
    const float shift = rng.Normal() * size * 3.0F;
    for (float& x : v) x += shift;
    SCOPED_TRACE(testing::Message() << dim << " numbers of size " << size);
    const auto step = [](const std::vector<float>& row) {
      float largest = 0.0F;
      for (const float x : row) largest = std::max(largest, std::abs(x));
      return ScaleMax(largest / 127.0F);
    };
    constexpr float kHalf = 0.5001F;
    const Entry q8(k, v, KvFormat::kQ8);
    EXPECT_LE(LargestDifference(q8.keys, k), kHalf * step(k));
    EXPECT_LE(LargestDifference(q8.values, v), kHalf * step(v));
    const Entry q4(k, v, KvFormat::kQ4);
    EXPECT_EQ(q4.keys, q8.keys);
    for (std::size_t first = 0; first < dim; first += kKvGroupNumbers) {
      const std::vector<float> group = Part(v, first);
      const auto [least, largest] = std::minmax_element(group.begin(), group.end());
      // The minimum is rounded down to f16.
      const float range = *largest - *least + std::abs(*least) * 0x1p-10F + 0x1p-24F;
      EXPECT_LE(LargestDifference(Part(q4.values, first), group), kHalf * ScaleMax(range / 15.0F));
    }
  }
}

TEST(KvEntryTest, ZerosAndTinyNumbersStayFinite) {
  const std::vector<float> zeros(40, 0.0F);
  const std::vector<float> tiny(40, -1e-30F);
  for (const KvFormat format : kKvFormats) {
    const Entry entry(zeros, tiny, format);
    EXPECT_EQ(entry.keys, zeros) << KvFormatName(format);
    EXPECT_LE(LargestDifference(entry.values, zeros), 1e-7F) << KvFormatName(format);
  }
}

TEST(KvEntryTest, WhatDoesNotFitIsNotANumber) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {infinity, -infinity, nan, 8.4e6F, -8.4e6F}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{35}, std::size_t{63}}) {
      std::vector<float> row(64, 0.25F);
      row[at] = bad;
      for (const KvFormat format : {KvFormat::kQ8, KvFormat::kQ4}) {
        const Entry entry(row, row, format);
        for (std::size_t i = 0; i < row.size(); ++i) {
          EXPECT_TRUE(std::isnan(entry.keys[i])) << bad << " at " << at << ", number " << i;
          // In q4 only the values' group.
          const bool hit = format == KvFormat::kQ8 || i / kKvGroupNumbers == at / kKvGroupNumbers;
          EXPECT_EQ(std::isnan(entry.values[i]), hit) << bad << " at " << at << ", number " << i;
        }
      }
    }
  }
}

TEST(KvEntryTest, WhatDoesNotFitIsTold) {
  const float infinity = std::numeric_limits<float>::infinity();
  struct Limit {
    KvFormat format;
    float fits;
    float does_not;
  };
  for (const Limit& limit : {Limit{KvFormat::kF32, 3e38F, infinity},
                             {KvFormat::kF16, 65519.0F, 65520.0F},
                             {KvFormat::kQ8, 127.0F * 65504.0F, 8.4e6F}}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{35}, std::size_t{63}}) {
      for (const float sign : {1.0F, -1.0F}) {
        const std::vector<float> small(64, 0.25F);
        std::vector<float> row = small;
        row[at] = sign * limit.fits;
        const std::string_view name = KvFormatName(limit.format);
        EXPECT_EQ(Entry(row, row, limit.format).misfit, KvMisfit::kNone) << name;
        for (const float bad :
             {limit.does_not, infinity, std::numeric_limits<float>::quiet_NaN()}) {
          row[at] = sign * bad;
          EXPECT_EQ(Entry(row, small, limit.format).misfit, KvMisfit::kKey) << name << bad;
          EXPECT_EQ(Entry(small, row, limit.format).misfit, KvMisfit::kValue) << name << bad;
          EXPECT_EQ(Entry(small, row, KvFormat::kQ4).misfit,
                    sign * bad == 65520.0F ? KvMisfit::kNone : KvMisfit::kValue)
              << bad;
        }
      }
    }
  }
}

TEST(KvEntryTest, TheLargestNumbersThatFitAreKept) {
  const std::vector<float> huge(64, 127.0F * 65504.0F);
  EXPECT_EQ(Entry(huge, huge, KvFormat::kQ8).values, huge);
}

}  // namespace
}  // namespace cairn::compute
