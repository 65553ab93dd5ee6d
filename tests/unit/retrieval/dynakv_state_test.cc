#include <algorithm>

#include <gtest/gtest.h>

#include "compute-node/retrieval/dynakv/dynakv_policy.h"
#include "tests/tools/seed.h"
#include "tests/unit/retrieval/small_dynakv.h"

// What is stored of a policy and read again: its state, its index rows, the clusters it holds.

namespace cairn::compute {
namespace {

TEST(DynaKvStateTest, AMissingRowIsComputedAgainAtTheNextStep) {
  PolicyWorld world(SmallOptions(), MakeDynaKv, 7);
  world.Prefill(400);
  std::unique_ptr<RetrievalPolicy> other = MakeDynaKv(world.options());
  const PutPolicyState saved = world.policy().keeper().SaveState();
  const std::vector<std::int64_t> ids = world.policy().keeper().NextClusterIds();
  ASSERT_TRUE(other->keeper()
                  .RestoreState({.version = saved.version,
                                 .state = saved.state,
                                 .next_cluster_ids = ids,
                                 .token_count = 400,
                                 .state_token_count = 400})
                  .ok());
  std::vector<IndexRow> rows = world.policy().paged_index()->TakeChangedRows(0);
  // Some that could not be stored come again, with the others' next changes.
  std::vector<ClusterRef> returned;
  for (std::size_t i = 0; i < 4; ++i) returned.push_back(rows[i].cluster);
  world.policy().paged_index()->ReturnRows(0, returned);
  const std::vector<IndexRow> again = world.policy().paged_index()->TakeChangedRows(0);
  ASSERT_EQ(again.size(), returned.size());
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(again[i].cluster, rows[i].cluster);
    EXPECT_EQ(again[i].row, rows[i].row);
    EXPECT_EQ(again[i].stale, rows[i].stale);
  }
  std::vector<ClusterInfo> clusters;
  clusters.reserve(rows.size());
  for (const IndexRow& row : rows) {
    clusters.push_back({row.cluster, Positions::Range(0, row.entry_count)});
  }
  const ClusterRef lost = rows[5].cluster;
  rows.erase(rows.begin() + 5);
  ThreadPool pool(2);
  ASSERT_TRUE(other->paged_index()->RestoreIndex(0, RecordsOf(rows), &clusters, pool).ok());
  const std::vector<float> queries(std::size_t{2} * 2 * 16, 0.0F);
  bool planned_lost = false;
  for (const FetchSlice& slice : other->selector().Select({.layer = 0,
                                 .stored_token_count = 384,
                                 .first_position = 400,
                                 .token_count = 1,
                                 .queries = queries,
                                 .pool = nullptr})) {
    for (const PlannedCluster& planned : slice.clusters) {
      if (planned.cluster == lost) planned_lost = planned.adapt;
    }
  }
  EXPECT_TRUE(planned_lost);
}

TEST(DynaKvStateTest, ClustersWhoseRowsWereLostGoOnAsWhatTheyWere) {
  PolicyWorld world(SmallOptions(), MakeDynaKv, test::TestSeed());
  world.Prefill(400);
  int steps = 0;
  do {
    ASSERT_LT(++steps, 2000);
    world.Step();
    world.FailedStep();  // so that no split is to come of what was read
  } while (world.held(0, 0).empty());
  const ClusterId waiting = world.held(0, 0).begin()->second;
  world.RestartWithout(0, {{0, kSinkCluster}, {0, waiting}});
  world.CheckPlaces();
  const auto count_of = [&world](ClusterId wanted) {
    return std::ranges::count_if(world.places(0, 0),
                                 [&](const auto& place) { return place.second == wanted; });
  };
  for (int step = 0; step < 60; ++step) {
    world.Step();
    // Read by every step, and never joined.
    EXPECT_EQ(count_of(kSinkCluster), 4);
    for (std::int64_t position = 0; position < 4; ++position) {
      EXPECT_EQ(world.places(0, 0).at(position), kSinkCluster);
      EXPECT_TRUE(std::ranges::binary_search(world.attended().at({0, 0}), position));
    }
    // Read by the first step, and split behind it.
    EXPECT_EQ(count_of(waiting) > 0, step == 0);
  }
  world.Restart();
  for (int step = 0; step < 60; ++step) world.Step();
  world.CheckPlaces();
}

// Of Llama-2-13B, whose heads do not share keys.
TEST(DynaKvStateTest, TheStateOfAModelWithManyHeadsMayBeStored) {
  PolicyOptions options = SmallOptions();
  options.layout = {
      .layer_count = 40, .head_count = 40, .head_dim = 128, .kv_format = KvFormat::kF16};
  EXPECT_LE(std::ssize(MakeDynaKv(options)->keeper().SaveState().state), kPolicyStateBytesMax / 2);
}

TEST(DynaKvStateTest, ForeignStatesAreRefused) {
  const std::unique_ptr<RetrievalPolicy> policy = MakeDynaKv(SmallOptions());
  const PutPolicyState saved = policy->keeper().SaveState();
  const std::vector<std::int64_t> ids = policy->keeper().NextClusterIds();
  const auto restore = [&](std::int32_t version, std::string_view state,
                           std::span<const std::int64_t> next_ids) {
    return policy->keeper()
        .RestoreState({.version = version,
                       .state = state,
                       .next_cluster_ids = next_ids,
                       .token_count = 9,
                       .state_token_count = 9})
        .code();
  };
  EXPECT_EQ(restore(saved.version, saved.state, ids), absl::StatusCode::kOk);
  EXPECT_EQ(restore(saved.version + 1, saved.state, ids), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(restore(saved.version, saved.state.substr(1), ids), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(restore(saved.version, saved.state, std::span(ids).first(2)),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(restore(saved.version, std::string(saved.state.size(), '\xff'), ids),
            absl::StatusCode::kInvalidArgument);
  IndexRow row;
  row.cluster = {0, ClusterId(1)};
  row.row = "short";
  row.entry_count = 1;
  ThreadPool pool(2);
  const auto restore_row = [&] {
    return policy->paged_index()->RestoreIndex(0, RecordsOf({&row, 1}), nullptr, pool).code();
  };
  EXPECT_EQ(restore_row(), absl::StatusCode::kInvalidArgument);
  row.cluster.head = 2;
  EXPECT_EQ(restore_row(), absl::StatusCode::kInvalidArgument);
  for (const ClusterRef& unknown :
       {ClusterRef{0, ClusterId(99)}, ClusterRef{kAllHeads, ClusterId(1)}}) {
    EXPECT_EQ(policy->keeper().RestoreHeld(0, {unknown, 5}).code(),
              absl::StatusCode::kInvalidArgument);
  }
}
}  // namespace
}  // namespace cairn::compute
