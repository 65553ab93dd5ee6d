#include "compute-node/session/memory_shares.h"

#include <gtest/gtest.h>

namespace cairn::compute {
namespace {

constexpr std::int32_t kLayers = 8;
constexpr std::int64_t kWindowBytes = 1000;

// Like dynakv as far as its memory goes.
class SharesPolicy : public RetrievalPolicy {
 public:
  std::string_view name() const override { return "shares"; }
  bool selects_without_queries() const override { return false; }
  std::vector<FetchSlice> Select(const SelectionInput&) const override { return {}; }
  StoreActions Store(const LeavingEntries&) override { return {}; }
  std::vector<std::int64_t> NextClusterIds() const override { return {}; }
  PutPolicyState SaveState() const override { return {}; }
  absl::Status RestoreState(const StoredPolicyState&) override { return absl::OkStatus(); }
  std::int64_t ClusterCount(std::int32_t) const override { return cluster_count; }
  std::int64_t IndexBytes(std::int32_t) const override { return 64 * cluster_count; }

  std::int64_t cluster_count = 100;  // of a layer
};

class MemorySharesTest : public testing::Test {
 protected:
  MemoryShares Of(std::int64_t budget) {
    return {{.dram_budget_bytes = budget}, kWindowBytes, kLayers, policy_};
  }
  std::int64_t KeptLayers(const MemoryShares& shares) {
    std::int64_t count = 0;
    for (std::int32_t layer = 0; layer < kLayers; ++layer) count += shares.KeepsIndex(layer);
    return count;
  }
  // What all of it takes together.
  std::int64_t Taken(const MemoryShares& shares) {
    std::int64_t bytes = kWindowBytes + KeptLayers(shares) * policy_.IndexBytes(0);
    for (std::int32_t layer = 0; layer < kLayers; ++layer) bytes += shares.KeptBytes(layer);
    return bytes;
  }

  SharesPolicy policy_;
};

TEST_F(MemorySharesTest, NothingIsKeptThatDoesNotFit) {
  const MemoryShares shares = Of(2 * kWindowBytes);
  EXPECT_EQ(KeptLayers(shares), 0);
  EXPECT_EQ(shares.KeptBytes(0), 0);
}

TEST_F(MemorySharesTest, TheIndexComesFirstAndThenClusters) {
  std::int64_t last_layers = 0;
  std::int64_t last_bytes = 0;
  for (std::int64_t budget = 0; budget < 600'000; budget += 5000) {
    const MemoryShares shares = Of(budget);
    const std::int64_t layers = KeptLayers(shares);
    EXPECT_GE(layers, last_layers);
    EXPECT_GE(shares.KeptBytes(0), last_bytes);
    if (shares.KeptBytes(0) > 0) {
      EXPECT_EQ(layers, kLayers) << budget;
    }
    EXPECT_LE(Taken(shares), std::max(kWindowBytes, budget / 2)) << budget;
    last_layers = layers;
    last_bytes = shares.KeptBytes(0);
  }
  EXPECT_EQ(last_layers, kLayers);
  EXPECT_GT(last_bytes, 0);
}

TEST_F(MemorySharesTest, AGrowingConversationGivesUpWhatItKept) {
  const MemoryShares shares = Of(400'000);
  EXPECT_GT(shares.KeptBytes(0), 0);
  policy_.cluster_count = 200;
  EXPECT_EQ(shares.KeptBytes(0), 0);
  const std::int64_t layers = KeptLayers(shares);
  EXPECT_GT(layers, 0);
  EXPECT_LT(layers, kLayers);
  policy_.cluster_count = 300;
  EXPECT_EQ(KeptLayers(shares), 0);
}

TEST_F(MemorySharesTest, EitherMayBeSwitchedOff) {
  MemoryLimits limits{.dram_budget_bytes = 1 << 20, .keep_index = false};
  const MemoryShares no_index(limits, kWindowBytes, kLayers, policy_);
  EXPECT_EQ(KeptLayers(no_index), 0);
  EXPECT_GT(no_index.KeptBytes(0), Of(1 << 20).KeptBytes(0));
  limits = {.dram_budget_bytes = 1 << 20, .keep_clusters = false};
  const MemoryShares no_clusters(limits, kWindowBytes, kLayers, policy_);
  EXPECT_EQ(KeptLayers(no_clusters), kLayers);
  EXPECT_EQ(no_clusters.KeptBytes(0), 0);
}

}  // namespace
}  // namespace cairn::compute
