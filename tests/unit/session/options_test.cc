#include "compute-node/session/options.h"

#include <gtest/gtest.h>

namespace cairn::compute {
namespace {

constexpr EntryLayout kLayout{
    .layer_count = 8, .head_count = 2, .head_dim = 16, .kv_format = KvFormat::kF16};

TEST(KeptClusterBytesTest, ClustersAreKeptInWhatOthersLeaveOfHalf) {
  SessionOptions options;
  const std::int64_t window_bytes = options.window_tokens_max * kLayout.TokenBytes();
  const auto kept_bytes = [&](std::int64_t dram_budget_bytes, std::int64_t cluster_bytes) {
    options.dram_budget_bytes = dram_budget_bytes;
    return KeptClusterBytes(options, kLayout, cluster_bytes);
  };
  EXPECT_EQ(kept_bytes(0, 500), 0);
  const std::int64_t taken = window_bytes + kLayout.layer_count * std::int64_t{500};
  EXPECT_EQ(kept_bytes(2 * taken, 500), 0);
  const std::int64_t budget = 2 * (taken + kLayout.layer_count * std::int64_t{70});
  EXPECT_EQ(kept_bytes(budget, 500), 70);
  EXPECT_EQ(kept_bytes(budget, 530), 40);
  EXPECT_EQ(kept_bytes(budget, 1 << 20), 0);
}

TEST(KeptClusterBytesTest, NothingIsKeptWhereThatIsSwitchedOff) {
  SessionOptions options{.dram_budget_bytes = 1 << 20};
  EXPECT_GT(KeptClusterBytes(options, kLayout, 500), 0);
  options.keep_clusters = false;
  EXPECT_EQ(KeptClusterBytes(options, kLayout, 500), 0);
}

TEST(MemoryTokensMaxTest, IsWhatTheBudgetHasRoomFor) {
  const SessionOptions options{.dram_budget_bytes = 1 << 20};
  EXPECT_EQ(MemoryTokensMax(options, 1000), 1048);
  EXPECT_GE(MemoryTokensMax(options, 0), std::int64_t{1} << 24);
}

}  // namespace
}  // namespace cairn::compute
