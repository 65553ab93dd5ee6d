// Two apps on one engine: what one of them has is to the other as if it was not there.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kv-node/layout/rows.h"
#include "tests/unit/engine/engine_fixture.h"

namespace cairn::kv {
namespace {

constexpr AppId kOther{2};

class EngineAppsTest : public EngineTest {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.sessions_max = 2;
    Start(options);
    mine_ = Create();
    session_ = Open(mine_);
    ASSERT_NE(session_, nullptr);
    AppendAll(*session_, 1, Positions::Range(0, 40));
    const auto sealed = TakeCheckpoint(*session_, 0, 40, /*seal=*/true);
    ASSERT_TRUE(sealed.ok()) << sealed.status();
    sealed_ = sealed->sealed_segment_id;
  }

  absl::StatusOr<SessionRef> CreateFor(AppId app, CreateSession request) {
    request.key = SmallKey();
    request.layout = layout_;
    return Await<SessionRef>(
        [&](auto done) { engine_->Create(app, std::move(request), std::move(done)); });
  }
  std::vector<SessionInfo> List(AppId app) {
    const auto listed = Await<std::vector<SessionInfo>>(
        [&](auto done) { engine_->ListSessions(app, ListDetail::kRows, std::move(done)); });
    EXPECT_TRUE(listed.ok()) << listed.status();
    return listed.value_or(std::vector<SessionInfo>());
  }
  KvStats StatsOf(AppId app) {
    const auto stats = Await<KvStats>([&](auto done) { engine_->GetStats(app, std::move(done)); });
    return stats.value_or(KvStats());
  }
  // What every call about a session answers to the other app.
  std::vector<absl::Status> AskAsOther(SessionId session, Epoch epoch) {
    const SessionRef mine{session, ""};
    return {Await<Attachment>([&](auto done) {
              engine_->OpenSession(kOther, {mine, {}}, std::move(done));
            }).status(),
            Await<Attachment>([&](auto done) {
              engine_->ResumeSession(kOther, {session, epoch, {}, OpSeq()}, std::move(done));
            }).status(),
            Await<std::monostate>([&](auto done) {
              engine_->DeleteSession(kOther, mine, std::move(done));
            }).status(),
            Await<SessionInfo>([&](auto done) {
              engine_->GetSession(kOther, mine, ListDetail::kRows, std::move(done));
            }).status(),
            Await<SealedSegment>([&](auto done) {
              engine_->SealSession(kOther, mine, std::move(done));
            }).status()};
  }

  SessionId mine_;
  SegmentId sealed_;
  std::unique_ptr<TestSession> session_;
};

TEST_F(EngineAppsTest, AnotherAppsSessionsAreNotThere) {
  for (const bool open : {true, false}) {
    const Epoch epoch = session_->attachment().epoch;
    for (const absl::Status& status : AskAsOther(mine_, epoch)) {
      EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    }
    if (!open) break;
    EXPECT_TRUE(Await<std::monostate>([&](auto done) {
                  engine_->CloseSession(kOther, mine_, epoch, std::move(done));
                }).ok());
    ExpectCluster(*session_, 1, Positions::Range(0, 40));  // it was not disturbed
    EXPECT_EQ(StatsOf(kOther).attached_count, 0);
    EXPECT_EQ(StatsOf(kOther).row_bytes, 0);
    EXPECT_EQ(StatsOf(kDefaultApp).attached_count, 1);
    session_ = Open(mine_);
    const auto channel = Await<std::shared_ptr<Channel>>([&](auto done) {
      engine_->Attach(kOther, mine_, session_->attachment().epoch, nullptr, std::move(done));
    });
    EXPECT_EQ(channel.status().code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_TRUE(List(kOther).empty());
  EXPECT_EQ(List(kDefaultApp).size(), 1U);
}

// Nor does damage tell that it is there: its chain leads nowhere.
TEST_F(EngineAppsTest, ADamagedSessionOfAnotherAppIsNotThereEither) {
  SessionRow row;
  row.segment = SegmentId(99);
  row.layout = layout_;
  row.key = SmallKey();
  MetaBatch rows;
  rows.Put(Family::kSessions, SessionKeyBytes(SessionId(1)), EncodeSessionRow(row));
  rows.Put(Family::kConfig, std::string(kNextIdKey), EncodeNextId(1000));
  session_.reset();
  Start({}, std::int64_t{64} << 20, std::move(rows));
  EXPECT_NE(Message(TestSession::Open(*engine_, SessionId(1)).status()).find("segment 99"),
            std::string::npos);
  const auto damaged = AskAsOther(SessionId(1), Epoch(1));
  const auto absent = AskAsOther(SessionId(2), Epoch(1));
  for (std::size_t i = 0; i < damaged.size(); ++i) {
    EXPECT_EQ(Message(damaged[i]), "session 1 is not in the store");
    EXPECT_EQ(Message(absent[i]), "session 2 is not in the store");
  }
}

TEST_F(EngineAppsTest, NothingIsBuiltOnAnotherAppsSegmentsOrSessions) {
  CreateSession fork;
  fork.parent_segment_id = sealed_;
  fork.parent_token_count = 40;
  EXPECT_EQ(CreateFor(kOther, fork).status().code(), absl::StatusCode::kNotFound);
  fork.parent = {mine_, ""};
  EXPECT_EQ(CreateFor(kOther, fork).status().code(), absl::StatusCode::kNotFound);
  const auto theirs = CreateFor(kOther, {});
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  for (const Supersession& request :
       {Supersession{{mine_, ""}, *theirs}, Supersession{*theirs, {mine_, ""}}}) {
    const absl::Status status = Await<std::monostate>([&](auto done) {
                                  engine_->SupersedeSession(kOther, request, std::move(done));
                                }).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  }
  EXPECT_TRUE(CreateFor(kDefaultApp, fork).ok());
}

// Whoever guesses it is not told that there is such a session.
TEST_F(EngineAppsTest, AUidOfAnotherAppMakesASessionOfOnesOwn) {
  CreateSession request;
  request.uid = std::string(kUidBytes, 'u');
  const auto mine = CreateFor(kDefaultApp, request);
  const auto theirs = CreateFor(kOther, request);
  ASSERT_TRUE(mine.ok() && theirs.ok()) << mine.status() << theirs.status();
  EXPECT_NE(mine->id, theirs->id);
  EXPECT_EQ(CreateFor(kOther, request)->id, theirs->id) << "a repeated call";
}

TEST_F(EngineAppsTest, EachAppHasItsNumberOfSessions) {
  EXPECT_TRUE(CreateFor(kDefaultApp, {}).ok());
  EXPECT_EQ(CreateFor(kDefaultApp, {}).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(CreateFor(kOther, {}).ok());
}

TEST_F(EngineAppsTest, WhatIsReadForOneAppLiesInItsMemoryOnly) {
  session_ = Open(mine_);
  ExpectCluster(*session_, 1, Positions::Range(0, 40));
  EXPECT_GT(StatsOf(kDefaultApp).arena_bytes, 0);
  EXPECT_FALSE(engine_->ArenaGranules(kDefaultApp).empty());
  EXPECT_EQ(StatsOf(kOther).arena_bytes, 0);
  EXPECT_TRUE(engine_->ArenaGranules(kOther).empty());

  const auto theirs = CreateFor(kOther, {});
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  auto other = TestSession::Open(*engine_, theirs->id, {}, kOther);
  ASSERT_TRUE(other.ok()) << other.status();
  AppendAll(**other, 1, Positions::Range(0, 40));
  ASSERT_TRUE(TakeCheckpoint(**other, 0, 40).ok());
  other->reset();
  other = TestSession::Open(*engine_, theirs->id, {}, kOther);
  ASSERT_TRUE(other.ok()) << other.status();
  ExpectCluster(**other, 1, Positions::Range(0, 40));
  const auto theirs_memory = engine_->ArenaGranules(kOther);
  ASSERT_FALSE(theirs_memory.empty());
  for (const auto& granule : engine_->ArenaGranules(kDefaultApp)) {
    for (const auto& theirs_granule : theirs_memory) EXPECT_NE(granule->fd(), theirs_granule->fd());
  }
}

}  // namespace
}  // namespace cairn::kv
