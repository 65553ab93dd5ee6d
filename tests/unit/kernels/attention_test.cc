// Block-wise attention against plain softmax attention, and what it promises about placement and
// company.
#include "compute-node/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "compute-node/kernels/kv_entry.h"
#include "tests/unit/kernels/kernel_testing.h"
#include "tests/unit/kernels/reference.h"

namespace cairn::compute {
namespace {

struct TestEntries {
  TestEntries(test::Rng& rng, std::int64_t count, std::int64_t head_dim, KvFormat format) {
    const std::int64_t bytes = KvEntryBytes(format, head_dim);
    storage.resize(static_cast<std::size_t>(count * bytes));
    for (std::int64_t e = 0; e < count; ++e) {
      std::byte* entry = storage.data() + e * bytes;
      const auto dim = static_cast<std::size_t>(head_dim);
      StoreKvEntry(RandomRow(rng, dim), RandomRow(rng, dim), format, entry);
      pointers.push_back(entry);
    }
  }
  std::vector<std::byte> storage;
  std::vector<const std::byte*> pointers;
};

// All rows of `queries` over all of `entries`, in blocks of at most `block_entries`.
std::vector<float> AttendAll(std::span<const std::byte* const> entries, KvFormat format,
                             std::int64_t head_dim, const std::vector<float>& queries,
                             std::size_t block_entries) {
  const std::int64_t row_count = static_cast<std::int64_t>(queries.size()) / head_dim;
  std::vector<float> states(static_cast<std::size_t>(row_count * AttentionStateFloats(head_dim)));
  InitAttention(states, head_dim);
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  for (std::size_t first = 0; first < entries.size(); first += block_entries) {
    AttendBlock(entries.subspan(first, std::min(block_entries, entries.size() - first)), format,
                head_dim, scale, {queries.data(), row_count, head_dim}, {}, states);
  }
  std::vector<float> out(queries.size());
  FinishAttention(states, head_dim, out.data(), head_dim);
  return out;
}

TEST(AttentionTest, MatchesTheReference) {
  test::Rng rng(TestSeed());
  for (const KvFormat format : kKvFormats) {
    for (const std::int64_t head_dim : {8, 24, 32, 64, 80, 128, 256, 512}) {
      const auto count = static_cast<std::int64_t>(1 + rng.Below(100));
      SCOPED_TRACE(testing::Message()
                   << KvFormatName(format) << " head_dim " << head_dim << " entries " << count);
      const TestEntries entries(rng, count, head_dim, format);
      const std::vector<float> query = RandomRow(rng, static_cast<std::size_t>(head_dim), 2.0F);
      const auto expected =
          reference::Attention(entries.pointers, format, head_dim,
                               1.0 / std::sqrt(static_cast<double>(head_dim)), query);
      ForEachSimdTarget([&] {
        const std::vector<float> out = AttendAll(entries.pointers, format, head_dim, query,
                                                 1 + rng.Below(kAttentionBlockEntries));
        // Against the size of values, whose mean may be small. A score is one chain of head_dim
        // sums.
        const double size = std::sqrt(static_cast<double>(head_dim));
        EXPECT_LT(Difference(out, expected), size * (head_dim > 128 ? 1e-5 : 4e-6));
      });
    }
  }
}

TEST(AttentionTest, ResultDependsNeitherOnPlacementNorOnOtherRows) {
  test::Rng rng(TestSeed());
  constexpr std::int64_t kDim = 72;
  constexpr std::int64_t kRows = 23;
  const std::int64_t bytes = KvEntryBytes(KvFormat::kF16, kDim);
  const TestEntries entries(rng, 75, kDim, KvFormat::kF16);
  const std::vector<float> queries = RandomRow(rng, kRows * kDim);
  // The same entries elsewhere: other order in memory, odd addresses.
  std::vector<std::byte> scattered(entries.storage.size() + 75 + 1);
  std::vector<const std::byte*> moved;
  for (std::size_t e = 0; e < entries.pointers.size(); ++e) {
    std::byte* place = scattered.data() + (74 - e) * static_cast<std::size_t>(bytes + 1) + 1;
    std::memcpy(place, entries.pointers[e], static_cast<std::size_t>(bytes));
    moved.push_back(place);
  }
  ForEachSimdTarget([&] {
    const std::vector<float> together =
        AttendAll(entries.pointers, KvFormat::kF16, kDim, queries, 32);
    EXPECT_EQ(AttendAll(moved, KvFormat::kF16, kDim, queries, 32), together);
    for (std::int64_t count = 1; count < 12; ++count) {
      for (std::int64_t row = 0; row + count <= kRows; row += count) {
        const std::vector<float> some(queries.begin() + row * kDim,
                                      queries.begin() + (row + count) * kDim);
        const std::vector<float> alone =
            AttendAll(entries.pointers, KvFormat::kF16, kDim, some, 32);
        EXPECT_TRUE(SameBits(alone.data(), together.data() + row * kDim, alone.size()))
            << count << " rows from " << row;
      }
    }
  });
}

// Means of clusters as an index holds them, in random numbers.
struct TestMeans {
  TestMeans(test::Rng& rng, std::size_t count, std::size_t head_dim)
      : centre(RandomRow(rng, head_dim)) {
    for (std::size_t i = 0; i < count * head_dim; ++i) {
      keys.push_back(static_cast<std::int8_t>(static_cast<int>(rng.Below(255)) - 127));
      values.push_back(static_cast<std::int8_t>(static_cast<int>(rng.Below(255)) - 127));
    }
    for (std::size_t i = 0; i < count; ++i) {
      key_scales.push_back(0.001F * static_cast<float>(1 + rng.Below(20)));
      value_scales.push_back(0.001F * static_cast<float>(1 + rng.Below(20)));
      biases.push_back(std::log(static_cast<float>(1 + rng.Below(16))));
      key_rows.push_back(keys.data() + i * head_dim);
      value_rows.push_back(values.data() + i * head_dim);
    }
  }
  float KeyOf(std::size_t entry, std::size_t i) const {
    return centre[i] + key_scales[entry] * static_cast<float>(key_rows[entry][i]);
  }
  float ValueOf(std::size_t entry, std::size_t i) const {
    return value_scales[entry] * static_cast<float>(value_rows[entry][i]);
  }
  void Load(KvBlock& block) const {
    LoadMeans({key_rows, key_scales, centre, value_rows, value_scales}, block);
  }
  std::vector<float> centre;
  std::vector<std::int8_t> keys;
  std::vector<std::int8_t> values;
  std::vector<float> key_scales;
  std::vector<float> value_scales;
  std::vector<float> biases;
  std::vector<const std::int8_t*> key_rows;
  std::vector<const std::int8_t*> value_rows;
};

TEST(AttentionTest, MeansAreLoadedAsTheirCodesSay) {
  test::Rng rng(TestSeed());
  for (const std::size_t head_dim : {8U, 24U, 32U, 64U, 80U, 128U}) {
    for (const std::size_t count : {1U, 13U, 32U}) {
      const TestMeans means(rng, count, head_dim);
      ForEachSimdTarget([&] {
        KvBlock block;
        means.Load(block);
        ASSERT_EQ(block.entry_count, static_cast<std::int64_t>(count));
        ASSERT_EQ(block.head_dim, static_cast<std::int64_t>(head_dim));
        for (std::size_t e = 0; e < count; ++e) {
          for (std::size_t i = 0; i < head_dim; ++i) {
            ASSERT_FLOAT_EQ(block.keys[i * kAttentionBlockEntries + e], means.KeyOf(e, i));
            ASSERT_FLOAT_EQ(block.values[e * head_dim + i], means.ValueOf(e, i));
          }
        }
      });
    }
  }
}

// The softmax over entries and means together, computed in double by its definition.
TEST(AttentionTest, AMeanCountsAsOftenAsItSays) {
  test::Rng rng(TestSeed());
  constexpr std::size_t kDim = 40;
  constexpr std::size_t kMeans = 21;
  constexpr std::size_t kEntries = 9;
  const TestMeans means(rng, kMeans, kDim);
  const TestEntries entries(rng, kEntries, kDim, KvFormat::kF32);
  for (const float size : {1.0F, 40.0F}) {
    const std::vector<float> query = RandomRow(rng, kDim, size);
    const double scale = 0.25;
    std::vector<double> weights;
    std::vector<std::vector<double>> values;
    const auto add = [&](const auto& key, const auto& value, double bias) {
      double score = 0;
      std::vector<double> row;
      for (std::size_t i = 0; i < kDim; ++i) {
        score += static_cast<double>(query[i]) * static_cast<double>(key(i));
        row.push_back(static_cast<double>(value(i)));
      }
      weights.push_back(score * scale + bias);
      values.push_back(row);
    };
    for (std::size_t e = 0; e < kEntries; ++e) {
      const auto* row = reinterpret_cast<const float*>(entries.pointers[e]);
      add([&](std::size_t i) { return row[i]; }, [&](std::size_t i) { return row[kDim + i]; }, 0);
    }
    for (std::size_t e = 0; e < kMeans; ++e) {
      add([&](std::size_t i) { return means.KeyOf(e, i); },
          [&](std::size_t i) { return means.ValueOf(e, i); }, static_cast<double>(means.biases[e]));
    }
    const double most = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - most);
    std::vector<double> expected(kDim);
    for (std::size_t e = 0; e < weights.size(); ++e) {
      for (std::size_t i = 0; i < kDim; ++i) expected[i] += weights[e] / sum * values[e][i];
    }
    ForEachSimdTarget([&] {
      KvBlock block;
      means.Load(block);
      std::vector<float> state(static_cast<std::size_t>(AttentionStateFloats(kDim)));
      InitAttention(state, kDim);
      const QueryRows rows{query.data(), 1, kDim};
      AttendMeans(block, means.biases, static_cast<float>(scale), rows, state);
      AttendBlock(entries.pointers, KvFormat::kF32, kDim, static_cast<float>(scale), rows, {},
                  state);
      std::vector<float> out(kDim);
      FinishAttention(state, kDim, out.data(), kDim);
      // A score is wrong by so much of its terms, and a weight by as much of itself.
      const double error = 3e-6 * static_cast<double>(1 + size);
      for (std::size_t i = 0; i < kDim; ++i) EXPECT_NEAR(out[i], expected[i], error) << i;
    });
  }
}

TEST(AttentionTest, HiddenEntriesAreAsIfAbsent) {
  test::Rng rng(TestSeed());
  constexpr std::int64_t kDim = 64;
  const TestEntries entries(rng, kAttentionBlockEntries, kDim, KvFormat::kF16);
  const std::vector<float> queries = RandomRow(rng, (kAttentionBlockEntries + 1) * kDim);
  const QueryRows rows{queries.data(), kAttentionBlockEntries + 1, kDim};
  std::vector<std::int32_t> visible;
  for (int row = 0; row <= kAttentionBlockEntries; ++row) {
    visible.push_back(row);
  }
  ForEachSimdTarget([&] {
    std::vector<float> states(
        static_cast<std::size_t>(rows.row_count * AttentionStateFloats(kDim)));
    InitAttention(states, kDim);
    AttendBlock(entries.pointers, KvFormat::kF16, kDim, 0.125F, rows, visible, states);
    for (std::int64_t row = 0; row < rows.row_count; ++row) {
      std::vector<float> expected(static_cast<std::size_t>(AttentionStateFloats(kDim)));
      InitAttention(expected, kDim);
      AttendBlock(std::span(entries.pointers).first(static_cast<std::size_t>(row)), KvFormat::kF16,
                  kDim, 0.125F, {queries.data() + row * kDim, 1, kDim}, {}, expected);
      EXPECT_TRUE(SameBits(expected.data(), states.data() + row * AttentionStateFloats(kDim),
                           expected.size()))
          << row << " visible entries";
    }
  });
}

TEST(AttentionTest, WeightsAreTheSoftmaxOfWhatARowSees) {
  test::Rng rng(TestSeed());
  constexpr std::int64_t kDim = 72;
  constexpr std::int64_t kRows = 11;
  constexpr float kScale = 0.125F;
  const TestEntries entries(rng, kAttentionBlockEntries + 13, kDim, KvFormat::kF16);
  const std::span<const std::byte* const> all = entries.pointers;
  const std::vector<float> queries = RandomRow(rng, kRows * kDim);
  const QueryRows rows{queries.data(), kRows, kDim};
  std::vector<std::int32_t> visible(kRows);
  std::iota(visible.begin(), visible.end(), 0);
  ForEachSimdTarget([&] {
    std::vector<float> states(static_cast<std::size_t>(kRows * AttentionStateFloats(kDim)));
    InitAttention(states, kDim);
    std::vector<float> scores[2];
    for (std::size_t i = 0; i < 2; ++i) {
      const std::size_t first = i * kAttentionBlockEntries;
      KvBlock block;
      LoadBlock(all.subspan(first, i == 0 ? kAttentionBlockEntries : 13), {}, KvFormat::kF16, kDim,
                block);
      const std::span<const std::int32_t> seen = i == 0 ? std::span<std::int32_t>() : visible;
      AttendBlock(block, kScale, rows, seen, states);
      scores[i].assign(kRows * kAttentionBlockEntries, std::nanf(""));
      ScoreBlock(block, kScale, rows, seen, scores[i]);
    }
    for (std::int64_t row = 0; row < kRows; ++row) {
      const std::size_t seen = static_cast<std::size_t>(kAttentionBlockEntries + row);
      std::vector<double> expected(all.size());
      double sum = 0;
      for (std::size_t e = 0; e < seen; ++e) {
        std::vector<float> key(kDim);
        std::vector<float> value(kDim);
        LoadKvEntry(all[e], KvFormat::kF16, key, value);
        double score = 0;
        for (std::size_t i = 0; i < kDim; ++i) {
          score += double{queries[static_cast<std::size_t>(row * kDim) + i]} * double{key[i]};
        }
        sum += expected[e] = std::exp(double{kScale} * score);
      }
      std::vector<float> weights(all.size(), 1.0F);
      for (std::size_t i = 0; i < 2; ++i) {
        const std::span<const float> of_row =
            std::span(scores[i]).subspan(static_cast<std::size_t>(row * kAttentionBlockEntries));
        AddWeights(
            std::span(states).subspan(static_cast<std::size_t>(row * AttentionStateFloats(kDim))),
            of_row.first<kAttentionBlockEntries>(),
            std::span(weights).subspan(i * kAttentionBlockEntries).first(i == 0 ? 32 : 13));
      }
      for (std::size_t e = 0; e < all.size(); ++e) {
        // What is hidden adds nothing at all.
        EXPECT_NEAR(weights[e], 1 + expected[e] / sum, e < seen ? 2e-6 : 0.0) << row << " " << e;
      }
    }
  });
}

TEST(AttentionTest, HiddenEntriesMayHoldAnything) {
  test::Rng rng(TestSeed());
  constexpr std::int64_t kDim = 40;
  constexpr std::int64_t kRows = 19;
  TestEntries entries(rng, kRows, kDim, KvFormat::kF32);
  const std::vector<float> queries = RandomRow(rng, kRows * kDim);
  const QueryRows rows{queries.data(), kRows, kDim};
  std::vector<std::int32_t> visible(kRows);
  std::iota(visible.begin(), visible.end(), 1);
  constexpr std::int64_t kBad = 11;
  ForEachSimdTarget([&] {
    std::vector<std::vector<float>> results;
    for (const float content : {1.0F, std::numeric_limits<float>::infinity()}) {
      std::byte* entry = entries.storage.data() + kBad * KvEntryBytes(KvFormat::kF32, kDim);
      const std::vector<float> row(kDim, content);
      StoreKvEntry(row, row, KvFormat::kF32, entry);
      std::vector<float> states(static_cast<std::size_t>(kRows * AttentionStateFloats(kDim)));
      InitAttention(states, kDim);
      AttendBlock(entries.pointers, KvFormat::kF32, kDim, 0.125F, rows, visible, states);
      results.emplace_back(kRows * kDim);
      FinishAttention(states, kDim, results.back().data(), kDim);
    }
    EXPECT_TRUE(SameBits(results[0].data(), results[1].data(), kBad * kDim));
    // Whoever sees it says so.
    for (std::int64_t i = kBad * kDim; i < kRows * kDim; ++i) {
      ASSERT_FALSE(std::isfinite(results[1][static_cast<std::size_t>(i)])) << i / kDim;
    }
  });
}

// Numbers that a model overflowed to must not be taken for entries that nobody attends.
TEST(AttentionTest, AScoreThatIsNoNumberSpoilsTheRow) {
  test::Rng rng(TestSeed());
  constexpr std::int64_t kDim = 40;
  constexpr std::int64_t kCount = 70;
  const std::vector<float> query = RandomRow(rng, kDim);
  for (const KvFormat format : kKvFormats) {
    for (const float content :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{13}, kCount - 1}) {
        TestEntries entries(rng, kCount, kDim, format);
        std::vector<float> key = RandomRow(rng, kDim);
        key[7] = content;
        StoreKvEntry(key, RandomRow(rng, kDim), format,
                     entries.storage.data() + bad * KvEntryBytes(format, kDim));
        ForEachSimdTarget([&] {
          for (const float out : AttendAll(entries.pointers, format, kDim, query, 32)) {
            ASSERT_FALSE(std::isfinite(out))
                << KvFormatName(format) << " " << content << " " << bad;
          }
        });
      }
    }
  }
}

TEST(AttentionTest, LargeScoresDoNotOverflow) {
  test::Rng rng(TestSeed());
  constexpr std::int64_t kDim = 32;
  const TestEntries entries(rng, 64, kDim, KvFormat::kF32);
  const std::vector<float> query = RandomRow(rng, kDim, 1000.0F);
  const auto expected =
      reference::Attention(entries.pointers, KvFormat::kF32, kDim, 1.0 / std::sqrt(32.0), query);
  ForEachSimdTarget([&] {
    EXPECT_LT(Distance(AttendAll(entries.pointers, KvFormat::kF32, kDim, query, 32), expected),
              1e-3);
  });
}

TEST(AttentionTest, NothingAttendedGivesZeros) {
  std::vector<float> state(static_cast<std::size_t>(AttentionStateFloats(16)));
  InitAttention(state, 16);
  std::vector<float> out(16, 7.0F);
  FinishAttention(state, 16, out.data(), 16);
  EXPECT_EQ(out, std::vector<float>(16, 0.0F));
}

}  // namespace
}  // namespace cairn::compute
