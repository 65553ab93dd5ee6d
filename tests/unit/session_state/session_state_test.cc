// The bookkeeping of a session without any I/O: which positions a chain of segments shows, and what
// is refused. The rules are numbered as in docs/kv-node.md.
#include "kv-node/engine/state/session_state.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cairn::kv {
namespace {

constexpr EntryLayout kLayout = {
    .layer_count = 2, .head_count = 2, .head_dim = 4, .kv_format = KvFormat::kF16};
constexpr std::int64_t kEntryBytes = 16;

ClusterKey Key(std::int64_t id, std::int32_t layer = 0, std::int32_t head = 0) {
  return {layer, head, ClusterId(id)};
}

SessionState Empty() {
  SegmentRows rows;
  rows.id = SegmentId(1);
  return {kLayout, {rows}};
}

void AppendTo(SessionState& state, const ClusterKey& key, const Positions& positions) {
  ASSERT_TRUE(state.CheckAppend(key, positions).ok()) << state.CheckAppend(key, positions);
  state.Append(key, {{key.head, key.cluster_id},
                     positions,
                     std::string(static_cast<std::size_t>(positions.count() * kEntryBytes), 'x')});
}

Part MakePart(std::int64_t id, const Positions& positions) {
  static const auto map = std::make_shared<FreeMap>(1000, 2);
  Part part;
  part.id = PartId(id);
  part.SetExtent(std::make_shared<Extent>(map, ExtentKind::kPool, PageIndex(10), 1, true));
  part.positions = positions;
  return part;
}

// A parent with cluster 1 (positions 0 to 9) that counts up to `limit`, under an empty segment.
SessionState Child(std::int64_t limit) {
  SegmentRows parent;
  parent.id = SegmentId(1);
  parent.has_checkpoint = true;
  parent.limit = limit;
  parent.parts.Put(Key(1),
                   {MakePart(5, Positions::Range(0, 6)), MakePart(6, Positions::Range(6, 4))});
  parent.carried[{0, 0, kWindowBuffer}] = {MakePart(7, Positions::Range(10, 1)),
                                           MakePart(8, Positions::Range(11, 1))};
  SegmentRows open;
  open.id = SegmentId(2);
  open.parent = parent.id;
  open.start = limit;
  SessionState state(kLayout, {parent, open});
  state.NoteUsedId(0, 0, 1);
  EXPECT_TRUE(state.RecomputeSums().ok());
  return state;
}

TEST(SessionStateTest, PartsWithoutAllPositionsAreCutLikeOthers) {
  SegmentRows parent;
  parent.id = SegmentId(1);
  parent.limit = 9;
  parent.parts.Put(Key(1), {MakePart(5, Positions::FromUnsorted({0, 2, 4, 8, 10}))});
  SegmentRows open;
  open.id = SegmentId(2);
  open.parts.Put(Key(1), {MakePart(6, Positions::FromUnsorted({12, 20, 21}))});
  const SessionState state(kLayout, {parent, open});
  std::vector<Visible<StoredPart>> parts(3);  // of an earlier call
  for (const PositionDetail detail : {PositionDetail::kAll, PositionDetail::kFirstAndCount}) {
    state.FindStoredParts(Key(1), detail, parts);
    ASSERT_EQ(parts.size(), 2U);
    EXPECT_EQ(parts[0].count, 4);
    EXPECT_FALSE(parts[0].of_open_segment);
    EXPECT_EQ(parts[1].count, 3);
    EXPECT_TRUE(parts[1].of_open_segment);
    EXPECT_EQ(parts[1].part.count(), 3);
    EXPECT_EQ(parts[1].part.positions.first(), 12);
  }
  EXPECT_EQ(parts[1].part.positions, Positions::Range(12, 3));
}

// Rule 9.
TEST(SessionStateTest, AppendMustGoAboveTheClustersLastPosition) {
  SessionState state = Empty();
  AppendTo(state, Key(1), Positions::Range(4, 3));
  for (const std::int64_t first : {0, 4, 6}) {
    EXPECT_EQ(state.CheckAppend(Key(1), Positions::Range(first, 1)).code(),
              absl::StatusCode::kInvalidArgument)
        << first;
  }
  EXPECT_TRUE(state.CheckAppend(Key(1), Positions::Range(7, 1)).ok());
  EXPECT_TRUE(Child(10).CheckAppend(Key(1), Positions::Range(10, 1)).ok());
  EXPECT_FALSE(Child(10).CheckAppend(Key(1), Positions::Range(9, 1)).ok()) << "a parent holds 9";
}

// Rule 10.
TEST(SessionStateTest, ANewClusterIdIsAboveEveryIdThatWasUsed) {
  SessionState state = Empty();
  AppendTo(state, Key(3), Positions::Range(0, 2));
  EXPECT_FALSE(state.CheckAppend(Key(2), Positions::Range(2, 1)).ok());
  EXPECT_TRUE(state.CheckAppend(Key(2, 0, 1), Positions::Range(2, 1)).ok()) << "another head";
  Replace op;
  op.parent_ids = {ClusterId(3)};
  op.evicted_positions = Positions::Range(0, 2);
  ASSERT_TRUE(state.CheckReplace(op).ok());
  state.ApplyReplace(op);
  EXPECT_FALSE(state.Exists(Key(3)));
  EXPECT_FALSE(state.CheckAppend(Key(3), Positions::Range(2, 1)).ok()) << "gone, but used";
  EXPECT_TRUE(state.CheckAppend(Key(4), Positions::Range(2, 1)).ok());
}

// Rule 1.
TEST(SessionStateTest, CarriedRowsCountInTheLastSegmentWithACheckpointOnly) {
  SessionState state = Child(12);
  ASSERT_EQ(state.CarriedOf(0).size(), 1U);
  EXPECT_EQ(state.CarriedOf(0).begin()->second.size(), 2U);
  EXPECT_TRUE(state.CarriedOf(1).empty());
  EXPECT_EQ(Child(11).CarriedOf(0).begin()->second.size(), 1U) << "cut by the limit";
  state.open().has_checkpoint = true;
  EXPECT_TRUE(state.CarriedOf(0).empty());
}

TEST(SessionStateTest, ALimitCutsAClusterInAllItsParts) {
  SessionState state = Child(7);
  EXPECT_EQ(state.PositionsOf(Key(1)), Positions::Range(0, 7));
  const std::vector<VisiblePart> parts = state.PartsOf(Key(1));
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].count, 6);
  EXPECT_EQ(parts[1].count, 1);
  EXPECT_EQ(Child(6).PartsOf(Key(1)).size(), 1U);
}

TEST(SessionStateTest, AReplacedClusterOfAParentIsMaskedForThisChainOnly) {
  SessionState state = Child(10);
  Replace op;
  op.parent_ids = {ClusterId(1)};
  op.children = {{ClusterId(2), Positions::Range(0, 5)}, {ClusterId(3), Positions::Range(5, 5)}};
  ASSERT_TRUE(state.CheckReplace(op).ok()) << state.CheckReplace(op);
  EXPECT_TRUE(state.ApplyReplace(op).empty()) << "the parent segment's parts stay";
  EXPECT_FALSE(state.Exists(Key(1)));
  EXPECT_TRUE(state.open().masks.contains(Key(1)));
  EXPECT_EQ(state.chain().front().parts.Find(Key(1)).size(), 2U);
}

TEST(SessionStateTest, ReplaceMustAccountForEveryPosition) {
  SessionState state = Empty();
  AppendTo(state, Key(1), Positions::Range(0, 4));
  Replace op;
  op.parent_ids = {ClusterId(1)};
  op.children = {{ClusterId(2), Positions::Range(0, 3)}};
  EXPECT_FALSE(state.CheckReplace(op).ok()) << "3 is missing";
  op.children[0].positions = Positions::Range(0, 5);
  EXPECT_FALSE(state.CheckReplace(op).ok()) << "4 comes from nowhere";
  op.brought_positions = Positions::Range(4, 1);
  EXPECT_TRUE(state.CheckReplace(op).ok());
  op.children[0].cluster_id = ClusterId(1);
  EXPECT_FALSE(state.CheckReplace(op).ok()) << "a used id";
  op.children[0].cluster_id = ClusterId(2);
  op.parent_ids.emplace_back(1);
  EXPECT_FALSE(state.CheckReplace(op).ok()) << "a parent twice";
}

TEST(SessionStateTest, ACheckpointNeedsEveryPositionOnceInEveryLayerAndHead) {
  SessionState state = Empty();
  const std::map<ClusterKey, CarriedEntries> nothing;
  for (std::int32_t layer = 0; layer < 2; ++layer) {
    AppendTo(state, Key(1, layer, kAllHeads), Positions::Range(0, 4));  // counts for both heads
  }
  EXPECT_TRUE(state.CheckPositions(4, nothing).ok());
  EXPECT_EQ(state.CheckPositions(5, nothing).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(state.CheckPositions(3, nothing).code(), absl::StatusCode::kFailedPrecondition);
  AppendTo(state, Key(1, 0, 0), Positions::Range(4, 1));
  EXPECT_FALSE(state.CheckPositions(5, nothing).ok()) << "only one head has position 4";
  std::map<ClusterKey, CarriedEntries> carried;
  carried[{0, 1, kWindowBuffer}].positions = Positions::Range(4, 1);
  carried[{1, kAllHeads, kWindowBuffer}].positions = Positions::Range(4, 1);
  EXPECT_TRUE(state.CheckPositions(5, carried).ok()) << state.CheckPositions(5, carried);
  carried[{0, 1, kWindowBuffer}].positions = Positions::Range(3, 1);
  EXPECT_FALSE(state.CheckPositions(5, carried).ok()) << "the count is right, the position is not";
}

TEST(SessionStateTest, PositionsAreEvictedOnceAndOfHeadsOrOfAllHeads) {
  SessionState state = Empty();
  const std::map<ClusterKey, CarriedEntries> nothing;
  for (std::int32_t layer = 0; layer < 2; ++layer) {
    AppendTo(state, Key(1, layer, kAllHeads), Positions::Range(0, 4));
  }
  EXPECT_FALSE(state.CheckEvict({0, 0, {}}).ok());
  state.ApplyEvict({0, 0, Positions::Range(4, 2)});
  state.ApplyEvict({0, 1, Positions::Range(5, 1)});
  state.ApplyEvict({0, 1, Positions::Range(4, 1)});
  EXPECT_FALSE(state.CheckPositions(6, nothing).ok()) << "layer 1 has not got them";
  state.ApplyEvict({1, kAllHeads, Positions::Range(4, 2)});
  EXPECT_TRUE(state.CheckPositions(6, nothing).ok()) << state.CheckPositions(6, nothing);
  for (const std::int32_t head : {0, 1}) {
    EXPECT_EQ(state.CheckEvict({0, head, Positions::Range(5, 3)}).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(state.CheckEvict({0, head, Positions::Range(6, 3)}).ok());
  }
  EXPECT_TRUE(state.SumsAreRight());
}

// What a parent evicted behind the limit is there again.
TEST(SessionStateTest, AForkInheritsWhatWasEvictedInFrontOfIt) {
  SegmentRows parent;
  parent.id = SegmentId(1);
  parent.has_checkpoint = true;
  parent.limit = 8;
  parent.evicted[{0, 0, ClusterId(0)}] = Positions::Range(6, 4);
  SegmentRows open;
  open.id = SegmentId(2);
  open.parent = parent.id;
  open.start = parent.limit;
  SessionState state(kLayout, {parent, open});
  ASSERT_TRUE(state.RecomputeSums().ok());
  EXPECT_EQ(state.CheckEvict({0, 0, Positions::Range(7, 1)}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(state.CheckEvict({0, 0, Positions::Range(8, 2)}).ok());
  state.ApplyEvict({0, 0, Positions::Range(8, 2)});
  EXPECT_TRUE(state.SumsAreRight());
}

TEST(SessionStateTest, RowsThatShowAPositionTwiceAreDataLoss) {
  SegmentRows rows;
  rows.id = SegmentId(1);
  rows.parts.Put(Key(1), {MakePart(5, Positions::Range(0, 6))});
  rows.parts.Put(Key(2), {MakePart(6, Positions::Range(5, 2))});
  SessionState state(kLayout, {rows});
  EXPECT_EQ(state.RecomputeSums().code(), absl::StatusCode::kDataLoss);

  // Beyond the number of positions that there are.
  rows.parts.Put(Key(2), {MakePart(6, Positions::Range(1000, 2))});
  EXPECT_TRUE(SessionState(kLayout, {rows}).RecomputeSums().ok());
  rows.parts.Put(Key(3), {MakePart(7, Positions::Range(1001, 1))});
  EXPECT_EQ(SessionState(kLayout, {rows}).RecomputeSums().code(), absl::StatusCode::kDataLoss);
}

TEST(SessionStateTest, AChainOfSegmentsShowsAPositionOnceToo) {
  SegmentRows parent;
  parent.id = SegmentId(1);
  parent.limit = 10;
  parent.parts.Put(Key(1), {MakePart(5, Positions::Range(0, 12))});  // 10 and 11 do not count
  SegmentRows open;
  open.id = SegmentId(2);
  open.parent = parent.id;
  open.start = 10;
  EXPECT_TRUE(SessionState(kLayout, {parent, open}).RecomputeSums().ok());
  open.parts.Put(Key(2), {MakePart(6, Positions::Range(10, 2))});
  EXPECT_TRUE(SessionState(kLayout, {parent, open}).RecomputeSums().ok());
  open.parts.Put(Key(3), {MakePart(7, Positions::Range(4, 1))});
  EXPECT_EQ(SessionState(kLayout, {parent, open}).RecomputeSums().code(),
            absl::StatusCode::kDataLoss);
  open.masks.insert(Key(1));
  EXPECT_TRUE(SessionState(kLayout, {parent, open}).RecomputeSums().ok());
}

TEST(SessionStateTest, DroppingPendingEntriesCutsChunks) {
  SessionState state = Empty();
  AppendTo(state, Key(1), Positions::Range(0, 3));
  AppendTo(state, Key(1), Positions::Range(3, 3));
  state.DropPending(Key(1), 4);
  EXPECT_EQ(state.PendingCount(Key(1)), 2);
  EXPECT_EQ(state.pending_bytes(), 2 * kEntryBytes);
  EXPECT_EQ(state.PositionsOf(Key(1)), Positions::Range(4, 2));
  state.DropPending(Key(1), 2);
  EXPECT_TRUE(state.pending().empty());
}

}  // namespace
}  // namespace cairn::kv
