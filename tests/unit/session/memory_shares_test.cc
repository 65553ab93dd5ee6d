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
  std::int64_t ClusterBytes(std::int32_t) const override { return cluster_bytes; }

  std::int64_t cluster_bytes = 500;  // of a layer
};

class MemorySharesTest : public testing::Test {
 protected:
  std::int64_t KeptBytes(const MemoryLimits& limits) {
    return MemoryShares(limits, kWindowBytes, kLayers, policy_).KeptBytes(0);
  }

  SharesPolicy policy_;
};

TEST_F(MemorySharesTest, ClustersAreKeptInWhatOthersLeaveOfHalf) {
  EXPECT_EQ(KeptBytes({.dram_budget_bytes = 0}), 0);
  const std::int64_t taken = kWindowBytes + kLayers * policy_.cluster_bytes;
  EXPECT_EQ(KeptBytes({.dram_budget_bytes = 2 * taken}), 0);
  EXPECT_EQ(KeptBytes({.dram_budget_bytes = 2 * (taken + kLayers * std::int64_t{70})}), 70);
  policy_.cluster_bytes += 30;
  EXPECT_EQ(KeptBytes({.dram_budget_bytes = 2 * (taken + kLayers * std::int64_t{70})}), 40);
  policy_.cluster_bytes = 1 << 20;
  EXPECT_EQ(KeptBytes({.dram_budget_bytes = 2 * (taken + kLayers * std::int64_t{70})}), 0);
}

TEST_F(MemorySharesTest, NothingIsKeptWhereThatIsSwitchedOff) {
  EXPECT_GT(KeptBytes({.dram_budget_bytes = 1 << 20}), 0);
  EXPECT_EQ(KeptBytes({.dram_budget_bytes = 1 << 20, .keep_clusters = false}), 0);
}

}  // namespace
}  // namespace cairn::compute
