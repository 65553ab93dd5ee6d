#include "kv-node/engine/engine.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "kv-node/device/memory_device.h"
#include "tests/unit/engine/engine_harness.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kSalt = 7;

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override { Start({}); }

  void Start(EngineOptions options, std::int64_t size_bytes = std::int64_t{64} << 20) {
    engine_.reset();
    options.durable = false;
    MetaOptions meta;
    meta.path = "/engine-test";
    meta.in_memory = true;
    auto store = MetaStore::Open(meta);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    auto engine = Engine::Open(options, StoreId{}, std::make_unique<MemoryDevice>(size_bytes),
                               *std::move(store));
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = *std::move(engine);
  }

  SessionId Create(SegmentId parent = SegmentId(0), std::int64_t t = 0) {
    CreateSession request;
    request.key = SmallKey();
    request.layout = layout_;
    request.parent_segment_id = parent;
    request.parent_token_count = t;
    const auto id = Await<SessionId>([&](auto done) { engine_->Create(request, std::move(done)); });
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    return id.value_or(SessionId(0));
  }

  std::unique_ptr<TestSession> Open(SessionId id) {
    auto session = TestSession::Open(*engine_, id);
    EXPECT_TRUE(session.ok()) << session.status().ToString();
    return session.ok() ? *std::move(session) : nullptr;
  }

  // Appends positions to a cluster in every layer and head.
  void AppendAll(TestSession& session, std::int64_t cluster, const Positions& positions,
                 std::int64_t salt = kSalt) {
    for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
      Append op;
      op.layer = layer;
      for (std::int32_t head = 0; head < layout_.head_count; ++head) {
        op.clusters.push_back({{head, ClusterId(cluster)},
                               positions,
                               EntriesBytes(layout_, salt, layer, head, positions)});
      }
      session.Send(std::move(op));
    }
  }

  void CarryAll(TestSession& session, const Positions& positions, const Positions& brought,
                std::int64_t salt = kSalt) {
    for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
      StageCarried op;
      op.layer = layer;
      for (std::int32_t head = 0; head < layout_.head_count; ++head) {
        op.carried.push_back({head, kWindowBuffer, positions, brought,
                              EntriesBytes(layout_, salt, layer, head, brought)});
      }
      session.Send(std::move(op));
    }
  }

  absl::StatusOr<Checkpointed> TakeCheckpoint(TestSession& session, std::int64_t start,
                                              std::int64_t count, bool seal = false) {
    Checkpoint op;
    op.token_count = count;
    op.token_ids_start = start;
    for (std::int64_t i = start; i < count; ++i) op.token_ids.push_back(static_cast<int>(i * 3));
    op.seal = seal;
    op.random_state = "dice";
    op.next_cluster_ids.assign(6, 100);
    return session.WaitFor(session.Send(std::move(op)));
  }

  void ExpectCluster(TestSession& session, std::int64_t cluster, const Positions& positions,
                     std::int64_t salt = kSalt) {
    for (std::int32_t layer = 0; layer < layout_.layer_count; ++layer) {
      for (std::int32_t head = 0; head < layout_.head_count; ++head) {
        const auto reply =
            session.Read(Fetch{layer, {{head, ClusterId(cluster)}}, /*with_positions=*/true});
        ASSERT_TRUE(reply.ok()) << reply.status().ToString();
        const auto& fetched = std::get<FetchReply>(*reply).clusters.at(0);
        if (positions.empty()) {
          EXPECT_EQ(fetched.outcome, FetchOutcome::kUnknown);
          continue;
        }
        ASSERT_EQ(fetched.outcome, FetchOutcome::kFound);
        const JoinedCluster joined = Join(layout_, fetched);
        EXPECT_EQ(joined.positions, positions);
        EXPECT_TRUE(joined.entries == EntriesBytes(layout_, salt, layer, head, positions))
            << "layer " << layer << " head " << head;
      }
    }
  }

  KvStats Stats() {
    const auto stats = Await<KvStats>([&](auto done) { engine_->GetStats(std::move(done)); });
    EXPECT_TRUE(stats.ok());
    return stats.value_or(KvStats());
  }

  absl::Status Delete(SessionId id) {
    return Await<std::monostate>([&](auto done) { engine_->DeleteSession(id, std::move(done)); })
        .status();
  }

  const EntryLayout layout_ = SmallLayout();
  std::unique_ptr<Engine> engine_;
};

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

TEST_F(EngineTest, DeletedSessionsGiveTheirFlashBack) {
  const std::int64_t empty = Stats().flash_used_bytes;
  const SessionId id = Create();
  auto session = Open(id);
  AppendAll(*session, 1, Positions::Range(0, 500));
  const auto sealed = TakeCheckpoint(*session, 0, 500, /*seal=*/true);
  ASSERT_TRUE(sealed.ok());
  const SessionId fork = Create(sealed->sealed_segment_id, 400);
  session.reset();
  EXPECT_GT(Stats().flash_used_bytes, empty);
  ASSERT_TRUE(Delete(id).ok());
  ExpectCluster(*Open(fork), 1, Positions::Range(0, 400));  // holds the sealed segment
  ASSERT_TRUE(Delete(fork).ok());
  EXPECT_EQ(Stats().flash_used_bytes, empty);
  EXPECT_EQ(Delete(fork).code(), absl::StatusCode::kNotFound);
}

TEST_F(EngineTest, LogRunsOfASegmentStayBounded) {
  EngineOptions options;
  options.place_at_idle = false;
  Start(options);
  const SessionId id = Create();
  auto session = Open(id);
  for (std::int64_t i = 0; i < 40; ++i) {
    AppendAll(*session, i + 1, Positions::Range(i * 3, 3));
    ASSERT_EQ(TakeCheckpoint(*session, i * 3, i * 3 + 3).status().ToString(), "OK");
  }
  const KvStats stats = Stats();
  EXPECT_GT(stats.write_relog_bytes, 0);
  // 120 tokens of 640 bytes take 19 pages; forty runs of a page would take 40.
  EXPECT_LE(stats.flash_used_bytes, (2 + 19 + 16) * kPageBytes);
  session.reset();
  session = Open(id);
  for (std::int64_t i = 0; i < 40; ++i) ExpectCluster(*session, i + 1, Positions::Range(i * 3, 3));
}

TEST_F(EngineTest, FullFlashIsAnErrorThatLosesNothing) {
  Start({}, std::int64_t{2} << 20);
  const SessionId id = Create();
  auto session = Open(id);
  AppendAll(*session, 1, Positions::Range(0, 200));
  ASSERT_EQ(TakeCheckpoint(*session, 0, 200).status().ToString(), "OK");
  for (std::int64_t c = 0; c < 40 && session->failure().ok(); ++c) {
    AppendAll(*session, c + 2, Positions::Range(200 + c * 100, 100));
    ExpectCluster(*session, 1, Positions::Range(0, 200));
  }
  const auto full = TakeCheckpoint(*session, 200, 4200);
  EXPECT_EQ(full.status().code(), absl::StatusCode::kResourceExhausted) << full.status().ToString();
  session.reset();
  session = Open(id);
  EXPECT_EQ(session->attachment().token_count, 200);
  ExpectCluster(*session, 1, Positions::Range(0, 200));
}

TEST_F(EngineTest, UnknownSessionsAndBadRequestsAreRefusedClearly) {
  EXPECT_EQ(TestSession::Open(*engine_, SessionId(99)).status().code(),
            absl::StatusCode::kNotFound);
  CreateSession request;
  request.key = SmallKey();
  request.layout = layout_;
  request.layout.head_dim = 0;
  const auto created =
      Await<SessionId>([&](auto done) { engine_->Create(request, std::move(done)); });
  EXPECT_EQ(created.status().code(), absl::StatusCode::kInvalidArgument);
  auto session = Open(Create());
  const auto reply = session->Read(Fetch{5, {}, false});
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn::kv
