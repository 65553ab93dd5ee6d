// An engine over memory, with shorthands for what its tests send.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "kv-node/device/memory_device.h"
#include "kv-node/engine/engine.h"
#include "tests/unit/engine/engine_harness.h"

namespace cairn::kv {

inline constexpr std::int64_t kSalt = 7;

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override { Start({}); }

  // On a store that has these rows.
  void Start(EngineOptions options, std::int64_t size_bytes = std::int64_t{64} << 20,
             MetaBatch rows = {}) {
    engine_.reset();
    options.durable = false;
    MetaOptions meta;
    meta.path = "/engine-test";
    meta.in_memory = true;
    auto store = MetaStore::Open(meta);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    ASSERT_TRUE((*store)->CommitAndWait(std::move(rows)).ok());
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
    const auto id = Await<SessionRef>(
        [&](auto done) { engine_->Create(kDefaultApp, request, std::move(done)); });
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    return id.ok() ? id->id : SessionId(0);
  }

  std::unique_ptr<TestSession> Open(SessionId id) {
    auto session = TestSession::Open(*engine_, id);
    EXPECT_TRUE(session.ok()) << session.status().ToString();
    return session.ok() ? *std::move(session) : nullptr;
  }

  // Appends positions to a cluster in every layer and head.
  void AppendAll(TestSession& session, std::int64_t cluster, const Positions& positions,
                 std::int64_t salt = kSalt) {
    next_cluster_id_ = std::max(next_cluster_id_, cluster + 1);
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
    op.next_cluster_ids.assign(6, next_cluster_id_);
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
    const auto stats =
        Await<KvStats>([&](auto done) { engine_->GetStats(kDefaultApp, std::move(done)); });
    EXPECT_TRUE(stats.ok());
    return stats.value_or(KvStats());
  }

  // Asks until the numbers are right. False: they never were, in much more time than it takes on a
  // loaded machine.
  template <typename Fn>
  bool WaitForStats(const Fn& are_right) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!are_right(Stats())) {
      if (std::chrono::steady_clock::now() > end) return false;
    }
    return true;
  }

  absl::Status Delete(SessionId id) {
    return Await<std::monostate>([&](auto done) {
             engine_->DeleteSession(kDefaultApp, {id, ""}, std::move(done));
           })
        .status();
  }

  const EntryLayout layout_ = SmallLayout();
  std::int64_t next_cluster_id_ = 100;  // for checkpoints: above what any session used
  std::unique_ptr<Engine> engine_;
};

}  // namespace cairn::kv
