#include "compute-node/session/reading/selected_fetch.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/seed.h"
#include "tests/unit/session/fake_kv_node.h"

namespace cairn::compute {
namespace {

constexpr EntryLayout kFetchLayout = {
    .layer_count = 1, .head_count = 2, .head_dim = 2, .kv_format = KvFormat::kF16};
constexpr std::int64_t kFetchEntries = 3;  // of each cluster

// Clusters 1 to 9 of both heads; cluster c of every third position from c - 1 on.
class SelectedFetchTest : public testing::Test {
 protected:
  SelectedFetchTest() {
    CreateSession create;
    create.key.model_digest = std::string(32, 'm');
    create.layout = kFetchLayout;
    session_ = node_.Open(node_.Create(create).value()).value();
    Append append;
    for (std::int32_t head = 0; head < 2; ++head) {
      for (std::int64_t id = 1; id <= 9; ++id) {
        ClusterEntries entries;
        entries.cluster = {head, ClusterId(id)};
        for (std::int64_t i = 0; i < kFetchEntries; ++i) {
          entries.positions.Append(id - 1 + 9 * i);
          entries.entries += EntryOf(head, id, i);
        }
        append.clusters.push_back(std::move(entries));
      }
    }
    EXPECT_TRUE(session_->Send(std::move(append)).ok());
    node_.tamper = [this](const Fetch& fetch, FetchReply&) { asked_.push_back(fetch); };
  }

  static std::string EntryOf(std::int32_t head, std::int64_t id, std::int64_t index) {
    return fmt::format("{:04}{}{}{:02}", id, head, index, 7);
  }
  static PlannedCluster Planned(std::int32_t head, std::int64_t id, bool adapt = false) {
    PlannedCluster planned;
    planned.cluster = {head, ClusterId(id)};
    planned.entry_count = kFetchEntries;
    planned.adapt = adapt;
    return planned;
  }
  static std::vector<FetchSlice> Slices(std::vector<std::vector<PlannedCluster>> plan) {
    std::vector<FetchSlice> slices;
    slices.reserve(plan.size());
    for (std::vector<PlannedCluster>& clusters : plan) slices.push_back({std::move(clusters), 0});
    return slices;
  }
  SelectedClusters Take(SelectedFetch& fetch, std::vector<std::vector<PlannedCluster>> plan) {
    auto taken = fetch.Take(*session_, 0, Slices(std::move(plan)), never_);
    EXPECT_TRUE(taken.ok()) << taken.status();
    return taken.ok() ? *std::move(taken) : SelectedClusters();
  }
  static void ExpectEntries(const SelectedClusters& taken) {
    for (const SelectedClusters::Cluster& cluster : taken.clusters) {
      const ClusterRef& ref = cluster.planned.cluster;
      const auto entries = taken.EntriesOf(cluster);
      ASSERT_EQ(std::ssize(entries), kFetchEntries);
      for (std::int64_t i = 0; i < kFetchEntries; ++i) {
        const std::string want = EntryOf(ref.head, ref.cluster_id.value(), i);
        EXPECT_EQ(std::memcmp(entries[static_cast<std::size_t>(i)], want.data(), want.size()), 0)
            << ref.head << " " << ref.cluster_id.value() << " " << i;
      }
    }
  }

  const std::uint64_t seed_ = test::TestSeed();
  FakeKvNode node_{seed_};
  std::unique_ptr<KvSession> session_;
  std::vector<Fetch> asked_;
  KvMemory memory_;
  StopSignal never_;
};

TEST_F(SelectedFetchTest, ClustersComeInTheOrderOfThePlanWhateverWasForeseen) {
  SelectedFetch fetch(kFetchLayout, WithPositions::kNo, memory_);
  fetch.Predict(*session_, 0, Slices({{Planned(1, 7), Planned(0, 2)}, {Planned(0, 9)}}));
  const SelectedClusters taken =
      Take(fetch, {{Planned(0, 5), Planned(1, 7), Planned(0, 2)}, {Planned(1, 2), Planned(0, 9)}});
  std::vector<ClusterRef> order;
  for (const auto& cluster : taken.clusters) order.push_back(cluster.planned.cluster);
  EXPECT_EQ(order, (std::vector<ClusterRef>{{0, ClusterId(5)},
                                            {1, ClusterId(7)},
                                            {0, ClusterId(2)},
                                            {1, ClusterId(2)},
                                            {0, ClusterId(9)}}));
  ExpectEntries(taken);
  EXPECT_EQ(fetch.counts().foreseen_count, 3);
  EXPECT_EQ(fetch.counts().selected_count, 5);
  EXPECT_EQ(asked_.size(), 4U);  // what was not foreseen, once for each slice
}

TEST_F(SelectedFetchTest, MeanwhileIsCalledOnceEverythingIsAskedFor) {
  SelectedFetch fetch(kFetchLayout, WithPositions::kNo, memory_);
  std::vector<std::size_t> asked_then;
  const auto taken =
      fetch.Take(*session_, 0, Slices({{Planned(0, 5)}, {Planned(1, 2), Planned(0, 9)}}), never_,
                 [&] { asked_then.push_back(asked_.size()); });
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(asked_then, (std::vector<std::size_t>{2}));
  ExpectEntries(*taken);
}

TEST_F(SelectedFetchTest, PositionsComeForClustersThatNeedThem) {
  SelectedFetch fetch(kFetchLayout, WithPositions::kNo, memory_);
  PlannedCluster known = Planned(1, 3);
  known.positions = Positions::FromUnsorted({2, 11, 20});
  const SelectedClusters taken = Take(fetch, {{Planned(0, 1), Planned(0, 2, true), known}});
  ASSERT_EQ(taken.clusters.size(), 3U);
  EXPECT_TRUE(taken.clusters[0].fetched->spans.at(0).positions.empty());
  EXPECT_FALSE(taken.clusters[1].fetched->spans.at(0).positions.empty());
  EXPECT_FALSE(taken.clusters[2].fetched->spans.at(0).positions.empty());
  ExpectEntries(taken);
}

TEST_F(SelectedFetchTest, AnObserverGetsPositionsOfAll) {
  SelectedFetch fetch(kFetchLayout, WithPositions::kYes, memory_);
  const SelectedClusters taken = Take(fetch, {{Planned(0, 1), Planned(0, 2, true)}});
  EXPECT_EQ(asked_.size(), 1U);
  EXPECT_FALSE(taken.clusters.at(0).fetched->spans.at(0).positions.empty());
}

TEST_F(SelectedFetchTest, WhatWasForeseenWithoutPositionsIsAskedForAgain) {
  SelectedFetch fetch(kFetchLayout, WithPositions::kNo, memory_);
  fetch.Predict(*session_, 0, Slices({{Planned(0, 1), Planned(0, 2)}}));
  const SelectedClusters taken = Take(fetch, {{Planned(0, 1, true), Planned(0, 2)}});
  EXPECT_EQ(fetch.counts().foreseen_count, 1);
  ASSERT_EQ(asked_.size(), 2U);
  EXPECT_TRUE(asked_[1].with_positions);
  EXPECT_EQ(asked_[1].clusters, (std::vector<ClusterRef>{{0, ClusterId(1)}}));
  EXPECT_FALSE(taken.clusters.at(0).fetched->spans.at(0).positions.empty());
  ExpectEntries(taken);
}

TEST_F(SelectedFetchTest, WrongCountsAreDataLossWithoutPositionsToo) {
  SelectedFetch fetch(kFetchLayout, WithPositions::kNo, memory_);
  PlannedCluster fewer = Planned(0, 4);
  fewer.entry_count = kFetchEntries - 1;
  PlannedCluster more = Planned(0, 4);
  more.entry_count = kFetchEntries + 1;
  for (const PlannedCluster& wrong : {fewer, more}) {
    const auto taken = fetch.Take(*session_, 0, Slices({{wrong}}), never_);
    EXPECT_EQ(taken.status().code(), absl::StatusCode::kDataLoss);
    fetch.Reset();
  }
  EXPECT_EQ(memory_.used_bytes(), 0);
}

TEST_F(SelectedFetchTest, ALayerThatIsNotForeseenIsSeldomAskedForAhead) {
  SelectedFetch fetch(kFetchLayout, WithPositions::kNo, memory_);
  // Steps that ask ahead for what comes, or for something else; answers how many asked.
  const auto asked_steps = [&](int steps, bool rightly) {
    int asked = 0;
    for (int step = 0; step < steps; ++step) {
      if (fetch.IsWorthPredicting(0)) {
        ++asked;
        fetch.Predict(*session_, 0, Slices({{Planned(0, rightly ? 1 : 2)}}));
      }
      ExpectEntries(Take(fetch, {{Planned(0, 1)}}));
    }
    return asked;
  };
  EXPECT_EQ(asked_steps(20, true), 20);
  EXPECT_LE(asked_steps(20, false), 5);
  EXPECT_EQ(asked_steps(10 * kProbeSteps, false), 10);
  // Probes that are right bring it back.
  asked_steps(4 * kProbeSteps, true);
  EXPECT_EQ(asked_steps(20, true), 20);
}

class KeptClustersTest : public SelectedFetchTest {
 protected:
  // A step: what is planned is taken, then kept.
  SelectedClusters Step(SelectedFetch& fetch, std::vector<PlannedCluster> plan) {
    asked_.clear();
    std::vector<std::vector<PlannedCluster>> slices;
    slices.push_back(std::move(plan));
    SelectedClusters taken = Take(fetch, std::move(slices));
    fetch.Keep(0, taken, kept_bytes_max_);
    return taken;
  }
  // Clusters that the last step asked for.
  std::vector<ClusterRef> Asked() const {
    std::vector<ClusterRef> all;
    for (const Fetch& fetch : asked_) {
      all.insert(all.end(), fetch.clusters.begin(), fetch.clusters.end());
    }
    return all;
  }

  const std::int64_t cluster_bytes_ = kFetchEntries * kFetchLayout.EntryBytes(0);
  std::int64_t kept_bytes_max_ = 4 * cluster_bytes_;
};

TEST_F(KeptClustersTest, WhatIsAttendedAgainIsNotAskedForAgain) {
  SelectedFetch fetch(kFetchLayout, WithPositions::kNo, memory_);
  Step(fetch, {Planned(0, 1), Planned(1, 1), Planned(0, 3)});
  fetch.Predict(*session_, 0, Slices({{Planned(1, 1), Planned(0, 4)}}));
  EXPECT_EQ(fetch.counts().predicted_count, 1);
  const SelectedClusters taken = Step(fetch, {Planned(0, 4), Planned(1, 1), Planned(0, 2)});
  EXPECT_EQ(Asked(), (std::vector<ClusterRef>{{0, ClusterId(2)}}));
  ASSERT_EQ(taken.clusters.size(), 3U);
  EXPECT_TRUE(taken.clusters[1].was_kept);
  ExpectEntries(taken);
  EXPECT_EQ(fetch.counts().kept_count, 1);
  EXPECT_EQ(fetch.counts().foreseen_count, 1);
  EXPECT_EQ(fetch.counts().selected_count, 6);
}

TEST_F(KeptClustersTest, WhatWasAttendedLongestAgoLeavesFirst) {
  kept_bytes_max_ = 2 * cluster_bytes_;
  SelectedFetch fetch(kFetchLayout, WithPositions::kNo, memory_);
  Step(fetch, {Planned(0, 1)});
  Step(fetch, {Planned(0, 2)});
  Step(fetch, {Planned(0, 1)});
  EXPECT_TRUE(Asked().empty());
  const SelectedClusters third = Step(fetch, {Planned(0, 3)});
  Step(fetch, {Planned(0, 1)});
  EXPECT_TRUE(Asked().empty());
  // What was given out stays whole when it leaves.
  const SelectedClusters all = Step(fetch, {Planned(0, 1), Planned(0, 2), Planned(0, 3)});
  EXPECT_EQ(Asked(), (std::vector<ClusterRef>{{0, ClusterId(2)}}));
  Step(fetch, {Planned(1, 8), Planned(1, 9)});
  ExpectEntries(third);
  ExpectEntries(all);
}

TEST_F(KeptClustersTest, AClusterThatGrewIsAskedForAgain) {
  SelectedFetch fetch(kFetchLayout, WithPositions::kNo, memory_);
  Step(fetch, {Planned(0, 5)});
  Append append;
  append.clusters.push_back({{0, ClusterId(5)}, Positions::Range(100, 1), EntryOf(0, 5, 3)});
  ASSERT_TRUE(session_->Send(std::move(append)).ok());
  PlannedCluster grown = Planned(0, 5);
  grown.entry_count = kFetchEntries + 1;
  for (int i = 0; i < 2; ++i) {
    const SelectedClusters taken = Step(fetch, {grown});
    EXPECT_EQ(Asked().size(), i == 0 ? 1U : 0U);
    ASSERT_EQ(taken.entries.size(), 4U);
    EXPECT_EQ(std::memcmp(taken.entries[3], EntryOf(0, 5, 3).data(), 8), 0);
  }
}

TEST_F(KeptClustersTest, WhoNeedsPositionsGetsThem) {
  SelectedFetch fetch(kFetchLayout, WithPositions::kNo, memory_);
  Step(fetch, {Planned(0, 5)});
  PlannedCluster known = Planned(0, 5);
  known.positions = Positions::FromUnsorted({4, 13, 22});
  for (int i = 0; i < 2; ++i) {
    const SelectedClusters taken = Step(fetch, {known});
    EXPECT_EQ(Asked().size(), i == 0 ? 1U : 0U);
    EXPECT_EQ(taken.clusters.at(0).was_kept, i == 1);
    Positions positions;
    for (const Span& span : taken.clusters.at(0).fetched->spans) {
      positions.AppendAll(span.positions);
    }
    EXPECT_EQ(positions, known.positions);
    ExpectEntries(taken);
  }
}

TEST_F(KeptClustersTest, OfWhatIsAttendedInPartThatPartIsKept) {
  kept_bytes_max_ = 4096;  // copies in part count more than their entries
  SelectedFetch fetch(kFetchLayout, WithPositions::kYes, memory_);
  const auto attending = [&](std::vector<std::int32_t> indices) {
    PlannedCluster planned = Planned(0, 5);
    planned.attended = std::move(indices);
    return Step(fetch, {planned});
  };
  const auto expect_entry = [&](const SelectedClusters& taken, std::int64_t at,
                                std::int64_t index) {
    const SelectedClusters::Cluster& cluster = taken.clusters.at(0);
    const auto of_copy =
        static_cast<std::size_t>(cluster.planned.attended.at(static_cast<std::size_t>(at)));
    EXPECT_EQ(std::memcmp(taken.EntriesOf(cluster)[of_copy], EntryOf(0, 5, index).data(), 8), 0);
    Positions positions;
    for (const Span& span : cluster.fetched->spans) positions.AppendAll(span.positions);
    EXPECT_EQ(positions.at(static_cast<std::int64_t>(of_copy)), 4 + 9 * index);
  };
  attending({0, 2});
  EXPECT_EQ(Asked().size(), 1U);
  const SelectedClusters again = attending({2});
  EXPECT_TRUE(Asked().empty());
  expect_entry(again, 0, 2);
  expect_entry(attending({0, 2}), 1, 2);
  EXPECT_TRUE(Asked().empty());
  expect_entry(attending({1, 2}), 0, 1);
  EXPECT_EQ(Asked().size(), 1U);
  Step(fetch, {Planned(0, 5)});
  EXPECT_EQ(Asked().size(), 1U);
  // Of a whole copy any part serves, also where the cluster has grown since.
  Append append;
  append.clusters.push_back({{0, ClusterId(5)}, Positions::Range(100, 1), EntryOf(0, 5, 3)});
  ASSERT_TRUE(session_->Send(std::move(append)).ok());
  PlannedCluster grown = Planned(0, 5);
  grown.entry_count = kFetchEntries + 1;
  grown.attended = {1};
  expect_entry(Step(fetch, {grown}), 0, 1);
  EXPECT_TRUE(Asked().empty());
  grown.attended = {3};
  Step(fetch, {grown});
  EXPECT_EQ(Asked().size(), 1U);
}

TEST_F(KeptClustersTest, NothingIsKeptOfWhatIsReplacedOrTakenBack) {
  SelectedFetch fetch(kFetchLayout, WithPositions::kNo, memory_);
  Step(fetch, {Planned(0, 1, true), Planned(0, 2)});
  Step(fetch, {Planned(0, 1), Planned(0, 2)});
  EXPECT_EQ(Asked(), (std::vector<ClusterRef>{{0, ClusterId(1)}}));
  EXPECT_GE(memory_.used_bytes(), 2 * cluster_bytes_);
  fetch.ForgetKept();
  EXPECT_EQ(memory_.used_bytes(), 0);
  Step(fetch, {Planned(0, 2)});
  EXPECT_EQ(Asked().size(), 1U);
}

}  // namespace
}  // namespace cairn::compute
