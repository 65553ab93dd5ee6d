// Questions about what an engine has in memory, asked while it works.
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include <gtest/gtest.h>

#include "tests/unit/engine/engine_fixture.h"

namespace cairn::kv {
namespace {

class EngineInspectionTest : public EngineTest {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.place_at_idle = false;
    Start(options);
    id_ = Create();
    session_ = Open(id_);
    ASSERT_NE(session_, nullptr);
  }

  absl::StatusOr<InspectionAnswer> Ask(const InspectionQuestion& question,
                                       AppId app = kDefaultApp) {
    return Await<InspectionAnswer>([&](auto done) {
      engine_->Inspect(app, {id_, ""}, question, std::move(done));
    });
  }
  ProgressAnswer Progress() {
    const auto answer = Ask(ProgressQuestion{});
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? std::get<ProgressAnswer>(*answer) : ProgressAnswer{};
  }
  ClusterAnswer Cluster(std::int64_t id) {
    const auto answer = Ask(ClusterQuestion{1, {0, ClusterId(id)}});
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? std::get<ClusterAnswer>(*answer) : ClusterAnswer{};
  }
  static std::int64_t Count(const ClusterAnswer& answer) {
    std::int64_t count = answer.pending_count;
    for (const PartPlace& part : answer.parts) count += part.positions.count();
    return count;
  }

  SessionId id_;
  std::unique_ptr<TestSession> session_;
};

TEST_F(EngineInspectionTest, ProgressIsWhatWasSentAndIsNotOnFlash) {
  AppendAll(*session_, 1, Positions::Range(0, 40));
  // A read is answered behind what was sent before.
  ExpectCluster(*session_, 1, Positions::Range(0, 40));
  const ProgressAnswer before = Progress();
  EXPECT_EQ(before.epoch, session_->attachment().epoch);
  EXPECT_EQ(before.applied, session_->last_op_seq());
  EXPECT_EQ(before.queued_count, 0);
  EXPECT_EQ(before.pending_bytes, 40 * layout_.TokenBytes());
  EXPECT_EQ(before.row_bytes, 0);
  EXPECT_TRUE(before.has_channel);
  ASSERT_TRUE(TakeCheckpoint(*session_, 0, 40).ok());
  const ProgressAnswer after = Progress();
  EXPECT_EQ(after.pending_bytes, 0);
  EXPECT_GT(after.row_bytes, 0);
  EXPECT_GT(after.applied, before.applied);
}

TEST_F(EngineInspectionTest, AClusterIsPendingThenInParts) {
  AppendAll(*session_, 1, Positions::Range(0, 40));
  ExpectCluster(*session_, 1, Positions::Range(0, 40));
  EXPECT_TRUE(Cluster(1).parts.empty());
  EXPECT_EQ(Cluster(1).pending_count, 40);
  ASSERT_TRUE(TakeCheckpoint(*session_, 0, 40, /*seal=*/true).ok());
  AppendAll(*session_, 1, Positions::Range(40, 5));
  ExpectCluster(*session_, 1, Positions::Range(0, 45));
  const ClusterAnswer cluster = Cluster(1);
  ASSERT_EQ(cluster.parts.size(), 1U);
  EXPECT_EQ(cluster.parts[0].positions, Positions::Range(0, 40));
  EXPECT_GT(cluster.parts[0].page_count, 0);
  EXPECT_FALSE(cluster.parts[0].of_open_segment);
  EXPECT_EQ(cluster.pending_count, 5);
}

TEST_F(EngineInspectionTest, WhatIsNotThereIsNotFound) {
  EXPECT_EQ(Ask(ProgressQuestion{}, AppId(2)).status().code(), absl::StatusCode::kNotFound);
  for (const ClusterQuestion& question :
       {ClusterQuestion{0, {0, ClusterId(7)}}, ClusterQuestion{0, {99, ClusterId(1)}},
        ClusterQuestion{layout_.layer_count, {0, ClusterId(1)}},
        ClusterQuestion{-1, {0, ClusterId(1)}}}) {
    EXPECT_EQ(Ask(question).status().code(), absl::StatusCode::kNotFound);
  }
  session_.reset();
  const auto detached = [&] { return !Ask(ProgressQuestion{}).ok(); };
  EXPECT_TRUE(WaitForStats([](const KvStats& stats) { return stats.attached_count == 0; }));
  EXPECT_TRUE(detached());
}

TEST_F(EngineInspectionTest, IsAnsweredOnTheEngineThreadBetweenTwoSteps) {
  constexpr std::int64_t kAppended = 8;
  constexpr int kAppendCount = 200;
  AppendAll(*session_, 1, Positions::Range(0, kAppended));
  ExpectCluster(*session_, 1, Positions::Range(0, kAppended));
  std::thread asker([&] {
    std::set<std::thread::id> threads;
    std::int64_t last_count = 0;
    while (last_count < kAppendCount * kAppended && !HasFailure()) {
      const auto answer = Await<InspectionAnswer>([&](auto done) {
        engine_->Inspect(kDefaultApp, {id_, ""}, ClusterQuestion{1, {0, ClusterId(1)}},
                         [&, done](absl::StatusOr<InspectionAnswer> got) {
                           threads.insert(std::this_thread::get_id());
                           done(std::move(got));
                         });
      });
      ASSERT_TRUE(answer.ok()) << answer.status();
      const std::int64_t count = Count(std::get<ClusterAnswer>(*answer));
      EXPECT_EQ(count % kAppended, 0);
      EXPECT_GE(count, last_count);
      last_count = count;
    }
    EXPECT_EQ(threads.size(), 1U);
    EXPECT_FALSE(threads.contains(std::this_thread::get_id()));
  });
  for (int i = 1; i < kAppendCount; ++i) {
    AppendAll(*session_, 1, Positions::Range(i * kAppended, kAppended));
  }
  asker.join();
  EXPECT_TRUE(session_->failure().ok());
}

}  // namespace
}  // namespace cairn::kv
