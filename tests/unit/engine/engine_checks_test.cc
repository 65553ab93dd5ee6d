// What the engine refuses: a store whose rows contradict each other, and operations that break the
// protocol's rules. A refused operation changes nothing, and its number can be sent again.
#include <limits>
#include <optional>

#include <gtest/gtest.h>

#include "kv-node/device/memory_device.h"
#include "kv-node/engine/engine.h"
#include "kv-node/layout/rows.h"
#include "tests/tools/says.h"
#include "tests/unit/engine/engine_fixture.h"

namespace cairn::kv {
namespace {

using test::Says;

constexpr std::int64_t kSmallStoreBytes = std::int64_t{64} << 20;

// Opens an engine over a store with these rows.
absl::Status OpenOver(MetaBatch rows) {
  auto store = MetaStore::Open({.path = "/engine-checks-test", .in_memory = true});
  EXPECT_TRUE(store.ok());
  EXPECT_TRUE((*store)->CommitAndWait(std::move(rows)).ok());
  EngineOptions options;
  options.durable = false;
  return Engine::Open(options, StoreId{}, std::make_unique<MemoryDevice>(kSmallStoreBytes),
                      *std::move(store))
      .status();
}

// The same with one row of `family` and perhaps a row with the next id.
absl::Status OpenOver(Family family, const std::string& key, const std::string& value,
                      std::optional<std::int64_t> next_id) {
  MetaBatch batch;
  batch.Put(family, key, value);
  if (next_id) batch.Put(Family::kConfig, std::string(kNextIdKey), EncodeNextId(*next_id));
  return OpenOver(std::move(batch));
}

// Allocation records of one page each.
struct NamedPage {
  std::int64_t segment;
  std::int64_t page;
};
MetaBatch AllocationRecords(const std::vector<NamedPage>& pages) {
  MetaBatch batch;
  batch.Put(Family::kConfig, std::string(kNextIdKey), EncodeNextId(100));
  for (const NamedPage& named : pages) {
    RegionBits bits;
    bits.set(static_cast<std::size_t>(named.page % kRegionPages));
    batch.Put(Family::kPools, RegionKey(SegmentId(named.segment), named.page / kRegionPages),
              EncodeRegion(bits));
  }
  return batch;
}

TEST(EngineOptionsTest, HolesOutOfRangeAreRefused) {
  EngineOptions options;
  EXPECT_TRUE(options.Validate().ok());
  for (const std::int64_t gap_bytes : {std::int64_t{-1}, kMergeGapBytesMax + 1}) {
    options.merge_gap_bytes = gap_bytes;
    const absl::Status status = options.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(Says(status, "merge_gap_bytes")) << status;
  }
}

TEST(EngineStoredIds, ASessionWhoseIdIsNotBelowTheNextOneIsRefused) {
  const std::string key = SessionKeyBytes(SessionId(70));
  SessionRow session;
  session.layout = SmallLayout();
  session.key = SmallKey();
  const std::string row = EncodeSessionRow(session);
  for (const auto next_id : {std::optional<std::int64_t>(), std::optional<std::int64_t>(1),
                             std::optional<std::int64_t>(70)}) {
    const absl::Status status = OpenOver(Family::kSessions, key, row, next_id);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_TRUE(Says(status, "up to id 70") && Says(status, "cairn-kv-util repair")) << status;
  }
  EXPECT_TRUE(OpenOver(Family::kSessions, key, row, 71).ok());
}

TEST(EngineStoredIds, ASegmentWhoseIdIsNotBelowTheNextOneIsRefused) {
  const std::string key = RegionKey(SegmentId(9), 1);
  const std::string row = EncodeRegion(RegionBits(1));
  EXPECT_EQ(OpenOver(Family::kPools, key, row, std::nullopt).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(OpenOver(Family::kPools, key, row, 9).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(OpenOver(Family::kPools, key, row, 10).ok());
}

TEST(EngineStoredAllocation, APageOfTwoSegmentsRefusesToStart) {
  EXPECT_TRUE(OpenOver(AllocationRecords({{7, 600}, {9, 601}})).ok());
  const absl::Status status = OpenOver(AllocationRecords({{7, 600}, {9, 600}}));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  for (const std::string_view text :
       {"page 600 of segment 9", "belongs to another segment", "cairn-kv-util repair"}) {
    EXPECT_TRUE(Says(status, text)) << status;
  }
}

TEST(EngineStoredAllocation, APageOfTheSuperblockRefusesToStart) {
  EXPECT_TRUE(OpenOver(AllocationRecords({{7, 2}})).ok());
  const absl::Status status = OpenOver(AllocationRecords({{7, 1}}));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_TRUE(Says(status, "page 1 of segment 7")) << status;
}

TEST(EngineStoredAllocation, APageOutsideTheFileRefusesToStart) {
  constexpr std::int64_t kPageCount = kSmallStoreBytes / kPageBytes;
  EXPECT_TRUE(OpenOver(AllocationRecords({{7, kPageCount - 1}})).ok());
  const absl::Status status = OpenOver(AllocationRecords({{7, kPageCount}}));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_TRUE(Says(status, fmt::format("page {} of segment 7 is outside", kPageCount))) << status;
}

class EngineRulesTest : public EngineTest {
 protected:
  // A session with positions 0 to 7 in cluster 3 of every layer and head.
  void SetUp() override {
    EngineTest::SetUp();
    session_ = Open(Create());
    ASSERT_NE(session_, nullptr);
    AppendAll(*session_, 3, Positions::Range(0, 8));
  }
  // Sends what must be refused, sees that, and sends a harmless operation with its number.
  void ExpectInvalid(const ChangingOperation& operation, const std::vector<std::string>& texts) {
    const OpSeq op_seq = session_->Send(operation);
    const absl::Status status = session_->WaitFor(op_seq).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    for (const std::string& text : texts) EXPECT_TRUE(Says(status, text)) << status;
    session_->ForgetFailures();
    session_->SendAs(op_seq, PutPolicyState{1, "harmless"});
  }
  static Checkpoint CheckpointWith(std::vector<std::int64_t> next_cluster_ids) {
    Checkpoint op;
    op.token_count = 8;
    op.token_ids.assign(8, 1);
    op.next_cluster_ids = std::move(next_cluster_ids);
    return op;
  }
  // Everything is there and can be checkpointed.
  void ExpectWhole() {
    const OpSeq op_seq = session_->Send(CheckpointWith({4, 4, 1, 4, 4, 1}));
    const auto done = session_->WaitFor(op_seq);
    EXPECT_TRUE(done.ok()) << done.status();
    ExpectCluster(*session_, 3, Positions::Range(0, 8));
  }

  std::unique_ptr<TestSession> session_;
};

TEST_F(EngineRulesTest, AppendWithoutClustersIsRefused) {
  ExpectInvalid(Append{1, {}}, {"append to layer 1", "no clusters"});
  ExpectWhole();
}

TEST_F(EngineRulesTest, ReplaceWithoutParentsIsRefused) {
  Replace op;
  op.layer = 1;
  ExpectInvalid(op, {"layer 1 head 0", "no parent"});
  op.children = {{ClusterId(9), Positions::Range(8, 1)}};
  op.brought_positions = Positions::Range(8, 1);
  op.brought_entries = EntriesBytes(layout_, kSalt, 1, 0, op.brought_positions);
  ExpectInvalid(op, {"layer 1 head 0", "no parent"});
  ExpectWhole();
}

TEST_F(EngineRulesTest, IndexRowOfAClusterThatDoesNotExistIsRefusedWithItsNeighbours) {
  for (const ClusterRef& cluster : {ClusterRef{0, ClusterId(77)}, ClusterRef{5, ClusterId(3)},
                                    ClusterRef{kAllHeads, ClusterId(3)}}) {
    ExpectInvalid(
        PutIndexRows{0, {{{0, ClusterId(3)}, "good", false, 8}, {cluster, "x", false, 8}}},
        {"layer 0", fmt::format("head {}", cluster.head),
         fmt::format("cluster {} does not exist", cluster.cluster_id)});
  }
  const auto rows = session_->Read(GetIndex{0});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_TRUE(std::get<IndexReply>(*rows).rows.empty());
  session_->Send(PutIndexRows{0, {{{0, ClusterId(3)}, "good", false, 8}}});
  ExpectWhole();
}

TEST_F(EngineRulesTest, CarriedBytesOfPositionsThatAreNotCarriedAreRefused) {
  const auto carried = [&](const Positions& positions, const Positions& brought) {
    return StageCarried{
        0, {{1, kWindowBuffer, positions, brought, EntriesBytes(layout_, kSalt, 0, 1, brought)}}};
  };
  ExpectInvalid(carried(Positions::Range(8, 4), Positions::Range(8, 5)),
                {"layer 0 head 1", "position 12"});
  ExpectInvalid(carried(Positions::Range(8, 4), Positions::Range(7, 2)),
                {"layer 0 head 1", "position 7"});
  ExpectInvalid(carried(Positions(), Positions::Range(8, 1)), {"layer 0 head 1", "position 8"});
  ExpectWhole();  // nothing was staged
}

TEST_F(EngineRulesTest, NextClusterIdsThatWouldBeGivenOutAgainAreRefused) {
  for (const std::int64_t low : {std::int64_t{3}, std::int64_t{1}, std::int64_t{0},
                                 std::numeric_limits<std::int64_t>::min()}) {
    ExpectInvalid(CheckpointWith({4, 4, 1, 4, low, 1}),
                  {"layer 1 head 1", fmt::format("is {}, not above 3", low)});
  }
  ExpectInvalid(CheckpointWith({4, 4, 0, 4, 4, 1}), {"layer 0 head -1", "is 0, not above 0"});
  ExpectWhole();
}

TEST_F(EngineRulesTest, NextClusterIdsNeverGoBack) {
  const SessionId id = session_->attachment().session_id;
  ASSERT_TRUE(session_->WaitFor(session_->Send(CheckpointWith({50, 4, 1, 4, 4, 1}))).ok());
  session_.reset();
  session_ = Open(id);
  ASSERT_NE(session_, nullptr);
  ExpectInvalid(CheckpointWith({49, 4, 1, 4, 4, 1}), {"layer 0 head 0", "is 49, not above 49"});
}

TEST_F(EngineRulesTest, AnAdapterScaleThatIsNoNumberIsRefused) {
  for (const float scale :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    CreateSession request;
    request.key = SmallKey();
    request.key.adapter_scale = scale;
    request.layout = layout_;
    const auto id = Await<SessionRef>(
        [&](auto done) { engine_->Create(kDefaultApp, request, std::move(done)); });
    EXPECT_EQ(id.status().code(), absl::StatusCode::kInvalidArgument) << scale;
    EXPECT_TRUE(Says(id.status(), "adapter_scale")) << id.status();
  }
}

}  // namespace
}  // namespace cairn::kv
