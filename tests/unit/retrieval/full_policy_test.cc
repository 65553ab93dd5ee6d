#include "compute-node/retrieval/baselines/full_policy.h"

#include <limits>
#include <map>

#include <gtest/gtest.h>

#include "compute-node/retrieval/policy_registry.h"

namespace cairn::compute {
namespace {

PolicyOptions Options(std::int32_t head_dim, std::int64_t part_bytes_max = 65536) {
  PolicyOptions options;
  options.layout = {
      .layer_count = 3, .head_count = 2, .head_dim = head_dim, .kv_format = KvFormat::kF16};
  options.part_bytes_max = part_bytes_max;
  return options;
}

TEST(FullPolicyTest, ClusterFillsTheLargestPart) {
  EXPECT_EQ(FullPolicy(Options(64)).cluster_entries(), 256);
  EXPECT_EQ(FullPolicy(Options(128)).cluster_entries(), 128);
  EXPECT_EQ(FullPolicy(Options(32)).cluster_entries(), 256);  // the most
  EXPECT_EQ(FullPolicy(Options(96)).cluster_entries(), 160);  // whole attention blocks
  EXPECT_EQ(FullPolicy(Options(64, 4096)).cluster_entries(), 16);
  EXPECT_EQ(FullPolicy(Options(64, 100)).cluster_entries(), 8);  // the least
}

TEST(FullPolicyTest, StoreAndSelectAgreeOnEveryPosition) {
  FullPolicy policy(Options(128));
  std::map<ClusterRef, Positions> stored;
  for (std::int64_t first = 0; first < 800; first += 32) {
    for (const Assignment& assignment :
         policy.Store({.layer = 1, .first_position = first, .token_count = 32}).appended) {
      stored[assignment.cluster].AppendAll(assignment.positions);
    }
  }
  std::map<ClusterRef, Positions> planned;
  for (const FetchSlice& slice : policy.Select({.layer = 1, .stored_token_count = 800})) {
    for (const PlannedCluster& cluster : slice.clusters) {
      EXPECT_TRUE(planned.emplace(cluster.cluster, cluster.positions).second);
    }
  }
  EXPECT_EQ(planned.size(), 2U * 7U);
  EXPECT_EQ(planned, stored);
}

TEST(FullPolicyTest, SlicesKeepTheirLimitAndClusterOrder) {
  PolicyOptions options = Options(64);
  options.fetch_slice_bytes = 200000;  // three clusters of 65536
  FullPolicy policy(options);
  const std::vector<FetchSlice> slices = policy.Select({.layer = 0, .stored_token_count = 1000});
  ASSERT_EQ(slices.size(), 3U);  // 8 clusters, the last two shorter
  std::int64_t last_id = 0;
  std::int64_t bytes = 0;
  for (const FetchSlice& slice : slices) {
    EXPECT_LE(slice.bytes, options.fetch_slice_bytes);
    bytes += slice.bytes;
    for (const PlannedCluster& cluster : slice.clusters) {
      EXPECT_GE(cluster.cluster.cluster_id.value(), last_id);
      last_id = cluster.cluster.cluster_id.value();
    }
  }
  EXPECT_EQ(bytes, 1000 * options.layout.EntryBytes(kAllHeads));
}

absl::Status Restore(FullPolicy& policy, std::int32_t version, std::string_view state,
                     const std::vector<std::int64_t>& ids, std::int64_t token_count = 0,
                     std::int64_t state_token_count = 0) {
  return policy.RestoreState({version, state, ids, token_count, state_token_count});
}

TEST(FullPolicyTest, NothingStoredNeedsNothing) {
  EXPECT_TRUE(FullPolicy(Options(64)).Select({.layer = 0, .stored_token_count = 0}).empty());
}

TEST(FullPolicyTest, NextIdsAreAboveAllUsedOnes) {
  FullPolicy policy(Options(64));
  policy.Store({.layer = 1, .first_position = 0, .token_count = 257});
  EXPECT_EQ(policy.NextClusterIds(), (std::vector<std::int64_t>{1, 1, 1, 3, 3, 1, 1, 1, 1}));
}

TEST(FullPolicyTest, RestoredPolicyKeepsTheStoresClusterLength) {
  FullPolicy before(Options(128));
  before.Store({.layer = 0, .first_position = 0, .token_count = 300});
  const PutPolicyState saved = before.SaveState();
  FullPolicy after(Options(128, 8192));  // a KV node with smaller parts
  ASSERT_TRUE(Restore(after, saved.version, saved.state, before.NextClusterIds()).ok());
  EXPECT_EQ(after.cluster_entries(), 128);
  EXPECT_EQ(after.NextClusterIds(), before.NextClusterIds());
}

// Ids of the clusters that a plan of layer 0, head 0 names.
std::vector<std::int64_t> PlannedIds(FullPolicy& policy, std::int64_t token_count) {
  std::vector<std::int64_t> ids;
  for (const FetchSlice& slice : policy.Select({.layer = 0, .stored_token_count = token_count})) {
    for (const PlannedCluster& cluster : slice.clusters) {
      if (cluster.cluster.head == 0) ids.push_back(cluster.cluster.cluster_id.value());
    }
  }
  return ids;
}

TEST(FullPolicyTest, AForkTakesIdsAboveThoseThatItNoLongerSees) {
  FullPolicy policy(Options(64));
  const std::int64_t entries = policy.cluster_entries();
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    policy.Store({.layer = layer, .first_position = 0, .token_count = 5 * entries});
  }
  // In the middle of the third cluster, which keeps its id.
  PutPolicyState saved = policy.SaveState();
  FullPolicy fork(Options(64));
  const std::int64_t at = 2 * entries + 3;
  ASSERT_TRUE(
      Restore(fork, saved.version, saved.state, policy.NextClusterIds(), at, 5 * entries + 9).ok());
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    fork.Store({.layer = layer, .first_position = at, .token_count = 3 * entries});
  }
  EXPECT_EQ(PlannedIds(fork, at + 3 * entries), (std::vector<std::int64_t>{1, 2, 3, 6, 7, 8}));
  EXPECT_EQ(fork.NextClusterIds()[0], 9);
  // The state keeps it, also for a fork of the fork, at a cluster's end.
  saved = fork.SaveState();
  FullPolicy again(Options(64));
  const std::int64_t held = at + 3 * entries;
  ASSERT_TRUE(Restore(again, saved.version, saved.state, fork.NextClusterIds(), held, held).ok());
  EXPECT_EQ(PlannedIds(again, held), PlannedIds(fork, held));
  ASSERT_TRUE(
      Restore(again, saved.version, saved.state, fork.NextClusterIds(), entries, held).ok());
  EXPECT_EQ(PlannedIds(again, 3 * entries), (std::vector<std::int64_t>{1, 9, 10}));
  // One that loses no cluster goes on as the others do.
  ASSERT_TRUE(
      Restore(again, saved.version, saved.state, fork.NextClusterIds(), held - 1, held).ok());
  EXPECT_EQ(PlannedIds(again, held + entries), (std::vector<std::int64_t>{1, 2, 3, 6, 7, 8, 9}));
}

TEST(FullPolicyTest, ForeignStateIsRefused) {
  FullPolicy policy(Options(64));
  const std::vector<std::int64_t> ids = policy.NextClusterIds();
  const std::string state = policy.SaveState().state;
  EXPECT_EQ(Restore(policy, 9, state, ids).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Restore(policy, 1, "xyz", ids).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Restore(policy, 1, std::string(8, '\0'), ids).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Restore(policy, 1, state, std::vector<std::int64_t>{1}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(FullPolicyTest, ForeignRangesOfIdsAreRefused) {
  FullPolicy policy(Options(64));
  const std::vector<std::int64_t> ids = policy.NextClusterIds();
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  const auto restore = [&](const std::vector<std::int64_t>& numbers) {
    const std::string state(reinterpret_cast<const char*>(numbers.data()),
                            numbers.size() * sizeof(std::int64_t));
    return Restore(policy, 2, state, ids).code();
  };
  EXPECT_EQ(restore({64, 0, 1, 3, 6}), absl::StatusCode::kOk);
  const std::vector<std::vector<std::int64_t>> foreign = {
      {64},                            // of version 1
      {64, 0, 1},                      // one range alone needs no version 2
      {64, 0, 1, 3},                   // half a range
      {64, 1, 1, 3, 6},                // nothing for cluster 0
      {64, 0, 1, 3, 3},                // an id twice
      {64, 0, 1, 3, 6, 3, 9},          // no order
      {64, 0, 1, kLargest, kLargest},  // overflow
      {64, 0, 1, 3, -6},               // no id
      {kLargest, 0, 1, 3, 6},          // no cluster
  };
  for (const std::vector<std::int64_t>& numbers : foreign) {
    EXPECT_EQ(restore(numbers), absl::StatusCode::kInvalidArgument) << numbers.size();
  }
}

TEST(FullPolicyTest, UnknownPolicyNamesTheKnownOnes) {
  const auto policy = MakePolicy("nonsense", Options(64));
  ASSERT_FALSE(policy.ok());
  EXPECT_NE(Message(policy.status()).find("known are: full"), std::string::npos);
}

TEST(FullPolicyTest, ModelsThatDynaKvCannotHaveAreNamed) {
  const auto refused = [](std::int32_t layer_count, std::int32_t head_count, std::int32_t dim) {
    PolicyOptions options = Options(dim);
    options.layout.layer_count = layer_count;
    options.layout.head_count = head_count;
    EXPECT_TRUE(MakePolicy("full", options).ok());
    return Message(MakePolicy("dynakv", options).status());
  };
  EXPECT_EQ(refused(80, 8, 512), "");
  EXPECT_EQ(refused(2, 2, 520),
            "policy dynakv takes heads of at most 512 numbers, the model has 520");
  EXPECT_EQ(refused(80, 64, 128),
            "policy dynakv takes models of which it stores at most 4194304 bytes: for 80 layers of "
            "64 KV heads of 128 numbers these are 6676480");
}

}  // namespace
}  // namespace cairn::compute
