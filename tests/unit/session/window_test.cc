#include "compute-node/session/entries/window.h"

#include <gtest/gtest.h>

namespace cairn::compute {
namespace {

TEST(WindowTest, HoldsBetween97And128OfTheNewestTokens) {
  for (std::int64_t tokens = 1; tokens < 5000; ++tokens) {
    const std::int64_t held = tokens - WindowStart(tokens, 128);
    EXPECT_LE(held, 128) << tokens;
    EXPECT_GE(held, std::min<std::int64_t>(tokens, 97)) << tokens;
    EXPECT_EQ(WindowStart(tokens, 128) % kAttentionBlockEntries, 0) << tokens;
  }
}

TEST(WindowTest, StartNeverGoesBack) {
  for (const std::int64_t capacity : {64, 100, 128}) {
    for (std::int64_t tokens = 1; tokens < 1000; ++tokens) {
      EXPECT_LE(WindowStart(tokens - 1, capacity), WindowStart(tokens, capacity));
      EXPECT_LE(tokens - WindowStart(tokens, capacity), capacity);
    }
  }
}

TEST(WindowTest, SparseWindowHoldsWhatIsKeptAndLessThanAStepMore) {
  for (const std::int64_t capacity : {64, 100, 128}) {
    for (const std::int64_t kept : {16, 48, 61, 120}) {
      for (std::int64_t tokens = 1; tokens < 140000; tokens += tokens < 1000 ? 1 : 7) {
        const std::int64_t step = SparseWindowStep(tokens, kept, capacity);
        const std::int64_t start = SparseWindowStart(tokens, kept, capacity);
        ASSERT_EQ(start % step, 0);
        ASSERT_GE(tokens - start, std::min({tokens, kept, capacity - step})) << tokens;
        ASSERT_LT(tokens - start, std::min(kept + step, capacity)) << tokens;
      }
    }
  }
}

TEST(WindowTest, SparseWindowMovesInStepsThatGrowWithTheConversation) {
  EXPECT_EQ(SparseWindowStep(1, 48, 128), 8);
  EXPECT_EQ(SparseWindowStep(16383, 120, 128), 8);
  EXPECT_EQ(SparseWindowStep(16384, 120, 128), 16);
  EXPECT_EQ(SparseWindowStep(32768, 120, 128), 32);
  EXPECT_EQ(SparseWindowStep(1 << 30, 120, 128), 32);
  EXPECT_EQ(SparseWindowStep(1 << 30, 48, 128), 16);
  EXPECT_EQ(SparseWindowStep(1 << 30, 16, 128), 8);
  EXPECT_EQ(SparseWindowStep(1 << 30, 120, 64), 16);  // of 48 to 63
}

TEST(WindowTest, EntriesOfOneWindowDoNotOverlap) {
  const EntryLayout layout{
      .layer_count = 2, .head_count = 3, .head_dim = 8, .kv_format = KvFormat::kF16};
  Window window(layout, 64);
  std::byte* last = nullptr;
  for (std::int32_t layer = 0; layer < 2; ++layer) {
    for (std::int32_t head = 0; head < 3; ++head) {
      for (std::int64_t position = 640; position < 704; ++position) {
        std::byte* entry = window.Entry(layer, head, position);
        if (last != nullptr) {
          EXPECT_EQ(entry - last, layout.EntryBytes(0));
        }
        last = entry;
      }
    }
  }
  EXPECT_EQ(window.size_bytes(), std::int64_t{2} * 3 * 64 * layout.EntryBytes(0));
}

}  // namespace
}  // namespace cairn::compute
