// Flash of clusters that grow and split, as in a long decode: bounded while it goes on, whatever
// the order in which they grow.
#include <algorithm>
#include <vector>

#include "tests/tools/rng.h"
#include "tests/tools/seed.h"
#include "tests/unit/engine/engine_fixture.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kGrownClusterMax = 16;    // entries from which on a cluster is split
constexpr std::int64_t kGrowthCheckpoint = 512;  // tokens
constexpr std::int64_t kGrownTokens = 5000;

class EngineGrowthTest : public EngineTest {
 protected:
  struct Cluster {
    std::int64_t id = 0;
    std::vector<std::int64_t> positions;
  };

  // A session that grows at random.
  struct Conversation {
    std::unique_ptr<TestSession> session;
    std::vector<Cluster> clusters;
    std::int64_t next_id = 1;
    std::int64_t token_count = 0;
    std::int64_t checkpointed = 0;
  };

  Conversation Begin() {
    Conversation conversation;
    conversation.session = Open(Create());
    return conversation;
  }

  void AddToken(Conversation& to) {
    const bool fresh = to.clusters.empty() || rng_.Below(64) == 0;
    if (fresh) to.clusters.push_back({to.next_id++, {}});
    Cluster& cluster = fresh ? to.clusters.back() : to.clusters[rng_.Below(to.clusters.size())];
    AppendAll(*to.session, cluster.id, Positions::Range(to.token_count, 1));
    cluster.positions.push_back(to.token_count++);
    if (std::ssize(cluster.positions) >= kGrownClusterMax) Split(to, cluster);
    if (to.token_count - to.checkpointed < kGrowthCheckpoint) return;
    next_cluster_id_ = to.next_id;
    ASSERT_TRUE(TakeCheckpoint(*to.session, to.checkpointed, to.token_count).ok());
    to.checkpointed = to.token_count;
  }

  // Into two of any sizes.
  void Split(Conversation& in, Cluster& cluster) {
    std::vector<std::vector<std::int64_t>> halves(2);
    const std::uint64_t share = 1 + rng_.Below(15);
    for (const std::int64_t position : cluster.positions) {
      halves[rng_.Below(16) < share ? 0 : 1].push_back(position);
    }
    Replace split;
    split.parent_ids = {ClusterId(cluster.id)};
    std::vector<Cluster> children;
    for (std::vector<std::int64_t>& half : halves) {
      if (half.empty()) continue;
      children.push_back({in.next_id++, half});
      split.children.push_back(
          {ClusterId(children.back().id), Positions::FromUnsorted(std::move(half))});
    }
    for (split.layer = 0; split.layer < layout_.layer_count; ++split.layer) {
      for (split.head = 0; split.head < layout_.head_count; ++split.head) {
        in.session->Send(Replace(split));
      }
    }
    cluster = children.front();
    if (children.size() > 1) in.clusters.push_back(children.back());
  }

  // The most that flash was of the entries' bytes.
  double GrowTogether(std::vector<Conversation>& conversations) {
    double most = 0;
    for (std::int64_t token = 0; token < kGrownTokens; ++token) {
      std::int64_t count = 0;
      for (Conversation& conversation : conversations) {
        AddToken(conversation);
        count += conversation.token_count;
      }
      if (token < kGrowthCheckpoint || token % 32 != 0) continue;
      const std::int64_t used_bytes = Stats().flash_used_bytes - 2 * kPageBytes;
      most = std::max(most, static_cast<double>(used_bytes) /
                                static_cast<double>(count * layout_.TokenBytes()));
    }
    return most;
  }

  void ExpectAll(const Conversation& of) {
    for (const Cluster& cluster : of.clusters) {
      std::vector<std::int64_t> positions = cluster.positions;
      ExpectCluster(*of.session, cluster.id, Positions::FromUnsorted(std::move(positions)));
    }
  }

  test::Rng rng_{test::TestSeed()};
};

TEST_F(EngineGrowthTest, ALongDecodeTakesAtMostTwoAndAHalfTimesItsEntries) {
  EngineOptions options;
  options.pending_bytes_max = std::int64_t{256} << 10;
  Start(options);
  std::vector<Conversation> one;
  one.push_back(Begin());
  const double most = GrowTogether(one);
  EXPECT_LE(most, 2.5);
  EXPECT_GT(most, 1.0);
  EXPECT_GT(Stats().spill_count, 0);
  ExpectAll(one.front());
}

TEST_F(EngineGrowthTest, SoDoSeveralAtOnce) {
  EngineOptions options;
  options.pending_bytes_max = std::int64_t{1} << 20;
  Start(options);
  std::vector<Conversation> four;
  four.reserve(4);
  for (int i = 0; i < 4; ++i) four.push_back(Begin());
  EXPECT_LE(GrowTogether(four), 2.5);
  for (const Conversation& conversation : four) ExpectAll(conversation);
}

// One cluster of a prompt stays, all others are replaced.
TEST_F(EngineGrowthTest, ARunOfWhichLittleIsNamedIsWrittenAgain) {
  EngineOptions options;
  options.place_at_idle = false;
  Start(options);
  constexpr std::int64_t kEach = 12;
  constexpr std::int64_t kCount = 100;
  auto session = Open(Create());
  const auto positions = [](std::int64_t cluster) {
    return Positions::Range((cluster - 1) * kEach, kEach);
  };
  for (std::int64_t id = 1; id <= kCount; ++id) AppendAll(*session, id, positions(id));
  ASSERT_TRUE(TakeCheckpoint(*session, 0, kEach * kCount).ok());
  for (std::int64_t id = 2; id <= kCount; ++id) {
    Replace replace;
    replace.parent_ids = {ClusterId(id)};
    replace.children = {{ClusterId(kCount + id), positions(id)}};
    for (replace.layer = 0; replace.layer < layout_.layer_count; ++replace.layer) {
      for (replace.head = 0; replace.head < layout_.head_count; ++replace.head) {
        session->Send(Replace(replace));
      }
    }
  }
  next_cluster_id_ = 2 * kCount + 1;
  ASSERT_TRUE(TakeCheckpoint(*session, kEach * kCount, kEach * kCount).ok());
  EXPECT_GT(Stats().write_relog_bytes, 0);
  EXPECT_LE(Stats().flash_used_bytes, kEach * kCount * layout_.TokenBytes() + 4 * kPageBytes);
  ExpectCluster(*session, 1, positions(1));
  ExpectCluster(*session, 2 * kCount, positions(kCount));
}

}  // namespace
}  // namespace cairn::kv
