#include "kv-node/engine/engine.h"

#include <optional>

#include "tests/unit/engine/engine_fixture.h"

namespace cairn::kv {
namespace {

TEST_F(EngineTest, AppendedEntriesAreReadableAtOnce) {
  auto session = Open(Create());
  AppendAll(*session, 1, Positions::Range(0, 5));
  AppendAll(*session, 1, Positions::Range(7, 3));
  Positions all = Positions::Range(0, 5);
  all.AppendAll(Positions::Range(7, 3));
  ExpectCluster(*session, 1, all);
  ExpectCluster(*session, 2, {});
  EXPECT_TRUE(session->failure().ok());
}

TEST_F(EngineTest, CheckpointedEntriesSurviveTheAttachment) {
  const SessionId id = Create();
  auto session = Open(id);
  AppendAll(*session, 1, Positions::Range(0, 30));
  AppendAll(*session, 2, Positions::Range(30, 30));
  const auto done = TakeCheckpoint(*session, 0, 60);
  ASSERT_TRUE(done.ok()) << done.status().ToString();
  EXPECT_EQ(done->token_count, 60);
  const OpSeq covered = session->last_op_seq();
  session.reset();

  session = Open(id);
  EXPECT_EQ(session->attachment().token_count, 60);
  EXPECT_EQ(session->attachment().op_seq, covered);
  ExpectCluster(*session, 1, Positions::Range(0, 30));
  ExpectCluster(*session, 2, Positions::Range(30, 30));
  const auto tokens = session->Read(GetTokens{10, 100});
  ASSERT_TRUE(tokens.ok()) << tokens.status().ToString();
  const std::vector<std::int32_t>& ids = std::get<TokensReply>(*tokens).token_ids;
  ASSERT_EQ(ids.size(), 50u);
  EXPECT_EQ(ids[0], 30);
  EXPECT_EQ(ids[49], 177);
}

// Its next ids say that it may have so many clusters that several threads are worth it.
TEST_F(EngineTest, ASessionOfManyClustersComesBackWhole) {
  constexpr std::int64_t kLastCluster = 3000;
  constexpr std::int64_t kSpread = 37;
  const SessionId id = Create();
  auto session = Open(id);
  std::int64_t position = 0;
  for (std::int64_t cluster = 1; cluster <= kLastCluster; cluster += kSpread) {
    AppendAll(*session, cluster, Positions::Range(position, 2));
    position += 2;
  }
  CarryAll(*session, Positions::Range(position, 8), Positions::Range(position, 8));
  ASSERT_EQ(TakeCheckpoint(*session, 0, position + 8).status().ToString(), "OK");
  session.reset();

  session = Open(id);
  position = 0;
  for (std::int64_t cluster = 1; cluster <= kLastCluster; cluster += kSpread) {
    ExpectCluster(*session, cluster, Positions::Range(position, 2));
    position += 2;
  }
  for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
    const auto reply = session->Read(GetCarried{layer});
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    EXPECT_EQ(std::get<CarriedReply>(*reply).carried.size(),
              static_cast<std::size_t>(layout_.head_count));
  }
  // The largest ids are known again.
  CarryAll(*session, Positions::Range(position, 8), {});
  next_cluster_id_ = kLastCluster - kSpread;
  EXPECT_EQ(TakeCheckpoint(*session, position + 8, position + 8).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, WhatNoCheckpointCoversIsDroppedWithTheAttachment) {
  const SessionId id = Create();
  auto session = Open(id);
  AppendAll(*session, 1, Positions::Range(0, 10));
  ASSERT_EQ(TakeCheckpoint(*session, 0, 10).status().ToString(), "OK");
  AppendAll(*session, 1, Positions::Range(10, 10));
  ExpectCluster(*session, 1, Positions::Range(0, 20));
  session.reset();
  session = Open(id);
  ExpectCluster(*session, 1, Positions::Range(0, 10));
  // The same positions again, with other bytes: nothing of the lost ones may show.
  AppendAll(*session, 1, Positions::Range(10, 4), kSalt);
  ExpectCluster(*session, 1, Positions::Range(0, 14));
}

TEST_F(EngineTest, FullClustersArePlacedInPoolsAndReadBack) {
  EngineOptions options;
  options.pending_bytes_max = 256 << 10;
  Start(options);
  const SessionId id = Create();
  auto session = Open(id);
  constexpr std::int64_t kClusterTokens = 409;  // 64 KiB of 160 bytes, nearly
  for (std::int64_t c = 0; c < 6; ++c) {
    for (std::int64_t i = 0; i < kClusterTokens; i += 100) {
      const std::int64_t count = std::min<std::int64_t>(100, kClusterTokens - i);
      AppendAll(*session, c + 1, Positions::Range(c * kClusterTokens + i, count));
    }
  }
  for (std::int64_t c = 0; c < 6; ++c) {
    ExpectCluster(*session, c + 1, Positions::Range(c * kClusterTokens, kClusterTokens));
  }
  EXPECT_GT(Stats().write_pool_bytes, 0);
  ASSERT_EQ(TakeCheckpoint(*session, 0, 6 * kClusterTokens).status().ToString(), "OK");
  session.reset();
  session = Open(id);
  for (std::int64_t c = 0; c < 6; ++c) {
    ExpectCluster(*session, c + 1, Positions::Range(c * kClusterTokens, kClusterTokens));
  }
  EXPECT_EQ(Stats().lost_part_count, 0);
}

TEST_F(EngineTest, CheckpointIsRefusedUnlessEveryPositionIsThereOnce) {
  auto session = Open(Create());
  AppendAll(*session, 1, Positions::Range(0, 10));
  const auto short_one = TakeCheckpoint(*session, 0, 11);
  EXPECT_EQ(short_one.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(EngineTest, OperationsBehindAFailedOneAreRefusedUntilItComesAgain) {
  auto session = Open(Create());
  AppendAll(*session, 1, Positions::Range(5, 5));  // operations 1 and 2
  Append bad;
  bad.clusters.push_back({{0, ClusterId(1)},
                          Positions::Range(3, 1),
                          EntriesBytes(layout_, kSalt, 0, 0, Positions::Range(3, 1))});
  const OpSeq failed = session->Send(bad);
  AppendAll(*session, 2, Positions::Range(20, 5));  // refused with it
  ExpectCluster(*session, 2, {});
  EXPECT_EQ(session->failure().code(), absl::StatusCode::kInvalidArgument);
  Append good;
  good.clusters.push_back({{0, ClusterId(3)},
                           Positions::Range(3, 1),
                           EntriesBytes(layout_, kSalt, 0, 0, Positions::Range(3, 1))});
  session->SendAs(failed, good);
  const auto reply = session->Read(Fetch{0, {{0, ClusterId(3)}}, true});
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(std::get<FetchReply>(*reply).clusters.at(0).outcome, FetchOutcome::kFound);
}

TEST_F(EngineTest, APlaceThatDoesNotExistIsRefusedAlsoWithNothingInIt) {
  auto session = Open(Create());
  const std::int32_t layers = layout_.layer_count;
  std::vector<ChangingOperation> operations;
  const auto replace = [](std::int32_t layer, std::int32_t head) {
    Replace op;
    op.layer = layer;
    op.head = head;
    return op;
  };
  for (const std::int32_t layer : {-1, layers, 9, INT32_MAX}) {
    operations.insert(operations.end(),
                      {Append{layer, {}}, replace(layer, 0), PutIndexRows{layer, {}},
                       StageCarried{layer, {}}, cairn::Evict{layer, 0, Positions::Range(0, 1)}});
  }
  for (const std::int32_t head : {-2, layout_.head_count}) operations.push_back(replace(0, head));
  OpSeq refused(0);
  for (const ChangingOperation& operation : operations) {
    if (refused.value() == 0) {
      refused = session->Send(operation);
    } else {
      session->SendAs(refused, operation);
    }
    EXPECT_FALSE(session->Read(GetPolicyState{}, refused).ok());
    EXPECT_EQ(session->failure().code(), absl::StatusCode::kInvalidArgument) << operation.index();
    EXPECT_NE(Message(session->failure()).find("does not exist"), std::string::npos)
        << operation.index() << " " << session->failure();
    session->ForgetFailures();
  }
}

// Rule 14.
TEST_F(EngineTest, NumbersHaveNoGapsAndAReadNamesWhatItFollows) {
  auto session = Open(Create());
  AppendAll(*session, 1, Positions::Range(0, 5));  // operations 1 and 2
  EXPECT_TRUE(session->Read(GetTokens{0, 1}, OpSeq(2)).ok());
  const auto early = session->Read(GetTokens{0, 1}, OpSeq(3));
  EXPECT_EQ(early.status().code(), absl::StatusCode::kFailedPrecondition) << early.status();
  session->SendAs(OpSeq(4), PutPolicyState{1, "fourth"});
  session->SendAs(OpSeq(2), PutPolicyState{1, "second again"});  // was applied before
  const auto reply = session->Read(GetPolicyState{});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(std::get<PolicyStateReply>(*reply).state, "");
  EXPECT_EQ(session->failure().code(), absl::StatusCode::kInvalidArgument) << session->failure();
}

TEST_F(EngineTest, CarriedEntriesComeBackAndAreLoggedOnce) {
  const SessionId id = Create();
  auto session = Open(id);
  AppendAll(*session, 1, Positions::Range(0, 20));
  CarryAll(*session, Positions::Range(20, 8), Positions::Range(20, 8));
  ASSERT_EQ(TakeCheckpoint(*session, 0, 28).status().ToString(), "OK");
  const std::int64_t logged = Stats().write_log_bytes;
  session.reset();

  session = Open(id);
  for (std::int32_t layer = 0; layer < 2; ++layer) {
    const auto reply = session->Read(GetCarried{layer});
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    const auto& carried = std::get<CarriedReply>(*reply).carried;
    ASSERT_EQ(carried.size(), 2u);
    for (const CarriedEntries& entries : carried) {
      EXPECT_EQ(entries.positions, Positions::Range(20, 8));
      EXPECT_EQ(entries.brought_positions, Positions::Range(20, 8));
      EXPECT_TRUE(entries.entries ==
                  EntriesBytes(layout_, kSalt, layer, entries.head, Positions::Range(20, 8)));
    }
  }
  // Four of them are assigned, four are carried again: their records are named, nothing is written.
  AppendAll(*session, 1, Positions::Range(20, 4));
  CarryAll(*session, Positions::Range(24, 4), {});
  ASSERT_EQ(TakeCheckpoint(*session, 28, 28).status().ToString(), "OK");
  EXPECT_EQ(Stats().write_log_bytes, logged);
  session.reset();
  session = Open(id);
  ExpectCluster(*session, 1, Positions::Range(0, 24));
}

TEST_F(EngineTest, CarriedWithoutBytesOrRecordIsRefused) {
  auto session = Open(Create());
  AppendAll(*session, 1, Positions::Range(0, 20));
  CarryAll(*session, Positions::Range(20, 8), {});
  EXPECT_EQ(TakeCheckpoint(*session, 0, 28).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, AnotherOpenEndsTheOlderAttachmentAndItsResume) {
  const SessionId id = Create();
  auto first = Open(id);
  AppendAll(*first, 1, Positions::Range(0, 10));
  auto second = Open(id);
  EXPECT_FALSE(first->Read(GetTokens{0, 1}).ok());
  const auto resumed = TestSession::Resume(*engine_, id, first->attachment().epoch);
  EXPECT_EQ(resumed.status().code(), absl::StatusCode::kFailedPrecondition);
  // The newer owner was not disturbed, and sees nothing of the older one's operations.
  ExpectCluster(*second, 1, {});
  const auto own = TestSession::Resume(*engine_, id, second->attachment().epoch);
  EXPECT_TRUE(own.ok()) << own.status().ToString();
}

TEST_F(EngineTest, ReplaceSplitsMergesAndEvicts) {
  const SessionId id = Create();
  auto session = Open(id);
  AppendAll(*session, 1, Positions::Range(0, 40));
  ASSERT_EQ(TakeCheckpoint(*session, 0, 40).status().ToString(), "OK");
  AppendAll(*session, 1, Positions::Range(40, 5));
  std::vector<std::int64_t> even;
  std::vector<std::int64_t> odd;
  for (std::int64_t p = 0; p < 44; ++p) (p % 2 == 0 ? even : odd).push_back(p);
  const Positions evens = Positions::FromUnsorted(even);
  const Positions odds = Positions::FromUnsorted(odd);
  for (std::int32_t layer = 0; layer < 2; ++layer) {
    for (std::int32_t head = 0; head < 2; ++head) {
      Replace op;
      op.layer = layer;
      op.head = head;
      op.parent_ids = {ClusterId(1)};
      op.children = {{ClusterId(2), evens}, {ClusterId(3), odds}};
      op.evicted_positions = Positions::Range(44, 1);
      session->Send(std::move(op));
    }
  }
  ExpectCluster(*session, 1, {});
  ExpectCluster(*session, 2, evens);
  ExpectCluster(*session, 3, odds);
  EXPECT_TRUE(session->failure().ok()) << session->failure().ToString();
  ASSERT_EQ(TakeCheckpoint(*session, 40, 45).status().ToString(), "OK");
  session.reset();
  session = Open(id);
  ExpectCluster(*session, 2, evens);
  ExpectCluster(*session, 3, odds);
}

TEST_F(EngineTest, ReplaceThatDoesNotCoverItsParentsIsRefused) {
  auto session = Open(Create());
  AppendAll(*session, 1, Positions::Range(0, 10));
  Replace op;
  op.parent_ids = {ClusterId(1)};
  op.children = {{ClusterId(2), Positions::Range(0, 9)}};
  session->Send(std::move(op));
  ExpectCluster(*session, 1, Positions::Range(0, 10));
  EXPECT_EQ(session->failure().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, ForkSeesItsParentBelowTheForkPointOnly) {
  const SessionId id = Create();
  auto session = Open(id);
  AppendAll(*session, 1, Positions::Range(0, 40));
  CarryAll(*session, Positions::Range(40, 10), Positions::Range(40, 10));
  const auto sealed = TakeCheckpoint(*session, 0, 50, /*seal=*/true);
  ASSERT_TRUE(sealed.ok()) << sealed.status().ToString();
  ASSERT_GT(sealed->sealed_segment_id.value(), 0);

  auto fork = Open(Create(sealed->sealed_segment_id, 45));
  EXPECT_EQ(fork->attachment().token_count, 45);
  ExpectCluster(*fork, 1, Positions::Range(0, 40));
  const auto carried = fork->Read(GetCarried{0});
  ASSERT_TRUE(carried.ok());
  EXPECT_EQ(std::get<CarriedReply>(*carried).carried.at(0).positions, Positions::Range(40, 5));
  EXPECT_TRUE(std::get<CarriedReply>(*carried).carried.at(0).brought_positions.empty());

  auto early = Open(Create(sealed->sealed_segment_id, 30));
  ExpectCluster(*early, 1, Positions::Range(0, 30));
  AppendAll(*early, 200, Positions::Range(30, 3), kSalt + 1);
  ASSERT_EQ(TakeCheckpoint(*early, 30, 33).status().ToString(), "OK");
  // The three never see each other; the first goes on behind its seal.
  AppendAll(*session, 1, Positions::Range(40, 10));
  ExpectCluster(*session, 1, Positions::Range(0, 50));
  ExpectCluster(*early, 1, Positions::Range(0, 30));
  ExpectCluster(*fork, 200, {});
}

TEST_F(EngineTest, AForkFromBeforeItsSegmentStartsOnTheOneAbove) {
  const SessionId id = Create();
  auto session = Open(id);
  AppendAll(*session, 1, Positions::Range(0, 40));
  ASSERT_EQ(TakeCheckpoint(*session, 0, 40, /*seal=*/true).status().ToString(), "OK");
  AppendAll(*session, 2, Positions::Range(40, 20));
  const auto sealed = TakeCheckpoint(*session, 40, 60, /*seal=*/true);
  ASSERT_TRUE(sealed.ok()) << sealed.status().ToString();
  for (const std::int64_t count : {1, 30, 40, 41, 60}) {
    SCOPED_TRACE(count);
    auto fork = Open(Create(sealed->sealed_segment_id, count));
    EXPECT_EQ(fork->attachment().token_count, count);
    ExpectCluster(*fork, 1, Positions::Range(0, std::min<std::int64_t>(count, 40)));
    ExpectCluster(*fork, 2, count > 40 ? Positions::Range(40, count - 40) : Positions());
  }
}

// Row of (layer 0, head 0) and this cluster, nullopt if there is none.
std::optional<IndexRow> IndexRowOf(TestSession& session, std::int64_t cluster) {
  const auto reply = session.Read(GetIndex{0});
  EXPECT_TRUE(reply.ok()) << reply.status().ToString();
  if (!reply.ok()) return std::nullopt;
  for (const IndexRow& row : std::get<IndexReply>(*reply).rows) {
    if (row.cluster == ClusterRef{0, ClusterId(cluster)}) return row;
  }
  return std::nullopt;
}

PutIndexRows OneIndexRow(std::int64_t cluster, std::string row, bool stale, std::int64_t count) {
  return PutIndexRows{0, {{{0, ClusterId(cluster)}, std::move(row), stale, count}}};
}

// After a fork the owner appends to a cluster that was cut: the counts may fit by chance again, so
// only the bit tells that the centroid does not (rule 11).
TEST_F(EngineTest, StaleBitOfAnIndexRowSurvivesThoughItsCountFits) {
  auto session = Open(Create());
  AppendAll(*session, 1, Positions::Range(0, 40));
  session->Send(OneIndexRow(1, "mean of 40", /*stale=*/false, 40));
  const auto sealed = TakeCheckpoint(*session, 0, 40, /*seal=*/true);
  ASSERT_TRUE(sealed.ok()) << sealed.status().ToString();

  const SessionId fork_id = Create(sealed->sealed_segment_id, 30);
  auto fork = Open(fork_id);
  EXPECT_EQ(IndexRowOf(*fork, 1)->entry_count, 40);  // differs from the 30 that are visible
  AppendAll(*fork, 1, Positions::Range(30, 10), kSalt);
  fork->Send(OneIndexRow(1, "mean of 40", /*stale=*/true, 40));
  ASSERT_EQ(TakeCheckpoint(*fork, 30, 40).status().ToString(), "OK");
  fork.reset();

  fork = Open(fork_id);
  const auto row = IndexRowOf(*fork, 1);
  ASSERT_TRUE(row.has_value());
  EXPECT_TRUE(row->stale);
  EXPECT_EQ(row->entry_count, 40);
  EXPECT_EQ(row->row, "mean of 40");
  EXPECT_FALSE(IndexRowOf(*session, 1)->stale);  // the parent's row is its own
}

TEST_F(EngineTest, IndexRowsFollowCheckpointsAndReplace) {
  const SessionId id = Create();
  auto session = Open(id);
  AppendAll(*session, 1, Positions::Range(0, 20));
  session->Send(OneIndexRow(1, "old", false, 20));
  ASSERT_TRUE(TakeCheckpoint(*session, 0, 20).ok());
  session->Send(OneIndexRow(1, "new", false, 20));
  session.reset();

  session = Open(id);  // what no checkpoint covers is gone
  EXPECT_EQ(IndexRowOf(*session, 1)->row, "old");
  session->Send(
      Replace{0, 0, {ClusterId(1)}, {{ClusterId(100), Positions::Range(0, 20)}}, {}, {}, {}});
  EXPECT_FALSE(IndexRowOf(*session, 1).has_value());
  session->Send(OneIndexRow(100, "child", false, 20));
  next_cluster_id_ = 101;
  ASSERT_EQ(TakeCheckpoint(*session, 20, 20).status().ToString(), "OK");
  session.reset();
  session = Open(id);
  EXPECT_FALSE(IndexRowOf(*session, 1).has_value());
  EXPECT_EQ(IndexRowOf(*session, 100)->row, "child");
}

TEST_F(EngineTest, UnknownSessionsAndBadRequestsAreRefusedClearly) {
  EXPECT_EQ(TestSession::Open(*engine_, SessionId(99)).status().code(),
            absl::StatusCode::kNotFound);
  CreateSession request;
  request.key = SmallKey();
  request.layout = layout_;
  request.layout.head_dim = 0;
  const auto created =
      Await<SessionRef>([&](auto done) { engine_->Create(kDefaultApp, request, std::move(done)); });
  EXPECT_EQ(created.status().code(), absl::StatusCode::kInvalidArgument);
  auto session = Open(Create());
  const auto reply = session->Read(Fetch{5, {}, false});
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, AListSaysWhatADeletionGivesBackAndWhatIsShared) {
  const auto get = [this](const SessionRef& ref, ListDetail detail) {
    return Await<SessionInfo>(
        [&](auto done) { engine_->GetSession(kDefaultApp, ref, detail, std::move(done)); });
  };
  // Each of them says of itself what the list does.
  const auto list = [&] {
    std::vector<SessionInfo> all =
        Await<std::vector<SessionInfo>>([&](auto done) {
          engine_->ListSessions(kDefaultApp, ListDetail::kFlashUse, std::move(done));
        }).value();
    for (const SessionInfo& info : all) {
      const auto same = get(RefTo(info), ListDetail::kFlashUse);
      EXPECT_TRUE(same.ok()) << same.status();
      if (!same.ok()) continue;
      EXPECT_EQ(RefTo(*same), RefTo(info));
      EXPECT_EQ(same->token_count, info.token_count);
      EXPECT_EQ(same->attached, info.attached);
      EXPECT_EQ(same->own_flash_bytes, info.own_flash_bytes);
      EXPECT_EQ(same->shared_flash_bytes, info.shared_flash_bytes);
      EXPECT_EQ(get(RefTo(info), ListDetail::kRows)->own_flash_bytes, 0);
      const SessionRef another{info.session_id, std::string(kUidBytes, 'x')};
      EXPECT_TRUE(absl::IsFailedPrecondition(get(another, ListDetail::kRows).status()));
    }
    return all;
  };
  EXPECT_TRUE(absl::IsNotFound(get({SessionId(99)}, ListDetail::kRows).status()));
  const SessionId id = Create();
  auto session = Open(id);
  AppendAll(*session, 1, Positions::Range(0, 40));
  const auto sealed = TakeCheckpoint(*session, 0, 40, /*seal=*/true);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  const std::int64_t used = Stats().flash_used_bytes - 2 * kPageBytes;
  EXPECT_EQ(list().front().own_flash_bytes, used);
  EXPECT_EQ(list().front().shared_flash_bytes, 0);
  const SessionId fork = Create(sealed->sealed_segment_id, 30);
  for (const SessionInfo& info : list()) {
    EXPECT_EQ(info.own_flash_bytes, 0);
    EXPECT_EQ(info.shared_flash_bytes, used);
  }
  AppendAll(*session, 2, Positions::Range(40, 40));
  ASSERT_TRUE(TakeCheckpoint(*session, 40, 80).ok());
  const std::int64_t more = Stats().flash_used_bytes - 2 * kPageBytes - used;
  EXPECT_EQ(list().back().own_flash_bytes, more);
  EXPECT_EQ(list().back().shared_flash_bytes, used);
  session.reset();
  ASSERT_TRUE(Delete(id).ok());
  EXPECT_EQ(Stats().flash_used_bytes - 2 * kPageBytes, used);  // as it was said
  EXPECT_EQ(list().front().session_id, fork);
  EXPECT_EQ(list().front().own_flash_bytes, used);
  EXPECT_EQ(list().front().shared_flash_bytes, 0);
}

}  // namespace
}  // namespace cairn::kv
