// Sessions that nobody deletes: which of them go by themselves, and when.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/faulty_device.h"
#include "tests/tools/temp_dir.h"
#include "tests/unit/engine/engine_harness.h"

namespace cairn::kv {
namespace {

constexpr std::chrono::milliseconds kAtOnce{0};
constexpr std::chrono::hours kNever{1};
const std::string kAttacher(kUidBytes, 'o');

class EngineEphemeralTest : public ::testing::Test {
 protected:
  void Start(std::chrono::milliseconds abandoned_after) {
    engine_.reset();
    auto store = MetaStore::Open({.path = directory_.File("meta")});
    ASSERT_TRUE(store.ok()) << store.status();
    auto engine = Engine::Open({.abandoned_after = abandoned_after}, StoreId{}, disk_.Open(),
                               *std::move(store));
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  SessionId Create(SessionLifetime lifetime, SegmentId parent = SegmentId()) {
    CreateSession request;
    request.key = SmallKey();
    request.layout = layout_;
    request.lifetime = lifetime;
    request.creator = "test";
    request.parent_segment_id = parent;
    request.parent_token_count = parent == SegmentId() ? 0 : 1;
    const auto created = Await<SessionRef>(
        [&](auto done) { engine_->Create(kDefaultApp, request, std::move(done)); });
    EXPECT_TRUE(created.ok()) << created.status();
    return created.ok() ? created->id : SessionId();
  }
  std::unique_ptr<TestSession> Open(SessionId id) {
    auto session = TestSession::Open(*engine_, id, {kAttacher, 1});
    EXPECT_TRUE(session.ok()) << session.status();
    return session.ok() ? *std::move(session) : nullptr;
  }
  void Checkpoint(TestSession& session) const {
    const Positions position = Positions::Range(0, 1);
    session.Send(
        Append{0, {{{0, ClusterId(1)}, position, EntriesBytes(layout_, 1, 0, 0, position)}}});
    cairn::Checkpoint op;
    op.token_count = 1;
    op.token_ids = {1};
    op.next_cluster_ids.assign(2, 100);
    const auto done = session.WaitFor(session.Send(op));
    ASSERT_TRUE(done.ok()) << done.status();
  }
  std::vector<SessionInfo> List() {
    return Await<std::vector<SessionInfo>>([&](auto done) {
             engine_->ListSessions(kDefaultApp, ListDetail::kRows, std::move(done));
           })
        .value();
  }
  bool IsThere(SessionId id) {
    const std::vector<SessionInfo> sessions = List();
    return std::any_of(sessions.begin(), sessions.end(),
                       [id](const SessionInfo& info) { return info.session_id == id; });
  }
  // False: it did not go in much more time than that takes.
  bool Goes(SessionId id) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (IsThere(id)) {
      if (std::chrono::steady_clock::now() > end) return false;
    }
    return true;
  }
  // They are looked at in the order of their numbers: when a younger one is gone, the others were
  // passed over.
  void WaitForALook() { ASSERT_TRUE(Goes(Create(SessionLifetime::kEphemeral))); }

  const EntryLayout layout_{1, 1, 40, KvFormat::kF16};
  const test::TempDir directory_;
  FaultyDisk disk_{{.size_bytes = std::int64_t{1} << 20}};
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineEphemeralTest, OneThatNobodyOpensGoes) {
  Start(kAtOnce);
  const SessionId stays = Create(SessionLifetime::kPermanent);
  EXPECT_TRUE(Goes(Create(SessionLifetime::kEphemeral)));
  EXPECT_TRUE(Goes(Create(SessionLifetime::kFromCheckpoint)));
  EXPECT_TRUE(IsThere(stays));
}

TEST_F(EngineEphemeralTest, OneGoesBehindItsOwnerWhateverItHolds) {
  Start(kNever);
  const SessionId id = Create(SessionLifetime::kEphemeral);
  {
    const auto session = Open(id);
    Checkpoint(*session);
  }
  Start(kAtOnce);
  EXPECT_TRUE(Goes(id));
}

TEST_F(EngineEphemeralTest, OneThatIsInUseStays) {
  Start(kNever);
  const SessionId id = Create(SessionLifetime::kEphemeral);
  auto session = Open(id);
  session.reset();
  Start(kNever);  // an owner that survives has time to resume
  const auto resumed = TestSession::Resume(*engine_, {id, Epoch(), {kAttacher, 2}, OpSeq()});
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  Checkpoint(**resumed);
  EXPECT_EQ(List().front().lifetime, SessionLifetime::kEphemeral);
  EXPECT_EQ(List().front().creator, "test");
}

TEST_F(EngineEphemeralTest, WhatIsAttachedIsLeftAloneUntilItsEnd) {
  Start(kAtOnce);
  SessionId id;
  absl::StatusOr<std::unique_ptr<TestSession>> session = NotFound("not opened yet");
  while (absl::IsNotFound(session.status())) {  // it may go before it is opened
    id = Create(SessionLifetime::kEphemeral);
    session = TestSession::Open(*engine_, id);
  }
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_NO_FATAL_FAILURE(WaitForALook());
  Checkpoint(**session);
  EXPECT_TRUE(IsThere(id));
  session->reset();
  EXPECT_TRUE(Goes(id));
}

TEST_F(EngineEphemeralTest, ACheckpointMakesOneStay) {
  Start(kNever);
  const SessionId id = Create(SessionLifetime::kFromCheckpoint);
  const SessionId empty = Create(SessionLifetime::kFromCheckpoint);
  {
    const auto session = Open(id);
    EXPECT_EQ(List().back().lifetime, SessionLifetime::kFromCheckpoint);
    Checkpoint(*session);
    EXPECT_EQ(List().back().lifetime, SessionLifetime::kPermanent);
  }
  Start(kAtOnce);
  EXPECT_TRUE(Goes(empty));
  ASSERT_NO_FATAL_FAILURE(WaitForALook());
  EXPECT_TRUE(IsThere(id));
}

// Its parent's checkpoint is not its own.
TEST_F(EngineEphemeralTest, AForkThatStoredNothingGoes) {
  Start(kNever);
  const SessionId parent = Create(SessionLifetime::kPermanent);
  {
    const auto session = Open(parent);
    Checkpoint(*session);
  }
  Start(kNever);
  const auto sealed = Await<SealedSegment>(
      [&](auto done) { engine_->SealSession(kDefaultApp, {parent}, std::move(done)); });
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  const SessionId fork = Create(SessionLifetime::kFromCheckpoint, sealed->segment_id);
  const SessionId wanted = Create(SessionLifetime::kPermanent, sealed->segment_id);
  Start(kAtOnce);
  EXPECT_TRUE(Goes(fork));
  ASSERT_NO_FATAL_FAILURE(WaitForALook());
  EXPECT_TRUE(IsThere(parent));
  EXPECT_TRUE(IsThere(wanted));
}

}  // namespace
}  // namespace cairn::kv
