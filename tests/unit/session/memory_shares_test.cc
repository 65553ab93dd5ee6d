#include "compute-node/session/entries/memory_shares.h"

#include <gtest/gtest.h>

namespace cairn::compute {
namespace {

constexpr std::int32_t kLayers = 8;
constexpr std::int64_t kWindowBytes = 1000;

// Like dynakv's as far as its memory goes.
class SharesIndex : public PagedIndex {
 public:
  std::vector<IndexRow> TakeChangedRows(std::int32_t) override { return {}; }
  void ReturnRows(std::int32_t, std::span<const ClusterRef>) override {}
  absl::Status RestoreIndex(std::int32_t, std::span<const IndexRecord>,
                            const std::vector<ClusterInfo>*, ThreadPool&) override {
    return absl::OkStatus();
  }
  bool IndexIsLoaded(std::int32_t) const override { return false; }
  bool StoreReadsIndex(const LeavingEntries&) const override { return true; }
  std::int64_t LoadIndex(std::int32_t, std::span<const IndexRecords>, ThreadPool&) override {
    return 0;
  }
  void FlagUnknown(std::int32_t) override {}
  void UnloadIndex(std::int32_t) override {}
  std::int64_t IndexBytes(std::int32_t) const override { return 0; }
  std::int64_t ClusterBytes(std::int32_t) const override { return cluster_bytes; }

  std::int64_t cluster_bytes = 500;  // of a layer
};

class MemorySharesTest : public testing::Test {
 protected:
  std::int64_t KeptBytes(const MemoryLimits& limits) {
    return MemoryShares(limits, kWindowBytes, kLayers, &index_).KeptBytes(0);
  }

  SharesIndex index_;
};

TEST_F(MemorySharesTest, ClustersAreKeptInWhatOthersLeaveOfHalf) {
  EXPECT_EQ(KeptBytes({.dram_budget_bytes = 0}), 0);
  const std::int64_t taken = kWindowBytes + kLayers * index_.cluster_bytes;
  EXPECT_EQ(KeptBytes({.dram_budget_bytes = 2 * taken}), 0);
  EXPECT_EQ(KeptBytes({.dram_budget_bytes = 2 * (taken + kLayers * std::int64_t{70})}), 70);
  index_.cluster_bytes += 30;
  EXPECT_EQ(KeptBytes({.dram_budget_bytes = 2 * (taken + kLayers * std::int64_t{70})}), 40);
  index_.cluster_bytes = 1 << 20;
  EXPECT_EQ(KeptBytes({.dram_budget_bytes = 2 * (taken + kLayers * std::int64_t{70})}), 0);
}

TEST_F(MemorySharesTest, NothingIsKeptWhereThatIsSwitchedOff) {
  EXPECT_GT(KeptBytes({.dram_budget_bytes = 1 << 20}), 0);
  EXPECT_EQ(KeptBytes({.dram_budget_bytes = 1 << 20, .keep_clusters = false}), 0);
}

}  // namespace
}  // namespace cairn::compute
