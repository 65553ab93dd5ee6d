// A session that takes over what another one holds of the same tokens.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/tools/says.h"
#include "tests/tools/unsynced_fs.h"
#include "tests/unit/engine/engine_fault_fixture.h"

namespace cairn::kv {
namespace {

using test::Says;

class EngineSupersedeTest : public EngineFaultTest {
 protected:
  static constexpr std::int64_t kTokenCount = 40;

  void SetUp() override {
    wrap_ = [this](const std::shared_ptr<rocksdb::FileSystem>& base) {
      files_ = std::make_shared<UnsyncedFs>(base, 1);
      return files_;
    };
    EngineFaultTest::SetUp();
  }

  // A session of its own entries, and nobody attached.
  SessionRef Make(std::int64_t salt, std::int64_t token_count = kTokenCount,
                  SessionLifetime lifetime = SessionLifetime::kPermanent,
                  const EntryLayout& layout = {1, 1, 40, KvFormat::kF16}) {
    CreateSession request;
    request.key = SmallKey();
    request.layout = layout;
    request.label = fmt::format("of salt {}", salt);
    request.creator = "test";
    request.lifetime = lifetime;
    const auto created = Await<SessionRef>(
        [&](auto done) { engine_->Create(kDefaultApp, request, std::move(done)); });
    EXPECT_TRUE(created.ok()) << created.status();
    Append(created->id, salt, 0, token_count);
    return *created;
  }
  // Tokens behind those that it has.
  void Append(SessionId session, std::int64_t salt, std::int64_t first, std::int64_t end,
              std::int32_t token = 1) {
    id_ = session;
    Open();
    const Positions positions = Positions::Range(first, end - first);
    const EntryLayout& layout = session_->attachment().layout;
    session_->Send(cairn::Append{
        0, {{{0, ClusterId(1)}, positions, EntriesBytes(layout, salt, 0, 0, positions)}}});
    session_->Send(PutPolicyState{1, fmt::format("policy {}", salt)});
    Checkpoint op;
    op.token_count = end;
    op.token_ids_start = first;
    op.token_ids.assign(static_cast<std::size_t>(end - first), token);
    op.next_cluster_ids.assign(2, 100);
    const auto done = session_->WaitFor(session_->Send(std::move(op)));
    EXPECT_TRUE(done.ok()) << done.status();
    Close();
  }
  void Close() {
    const auto closed = Await<std::monostate>([&](auto done) {
      engine_->CloseSession(kDefaultApp, id_, session_->attachment().epoch, std::move(done));
    });
    EXPECT_TRUE(closed.ok()) << closed.status();
    session_.reset();
  }
  SessionRef Fork(const SessionRef& parent, std::int64_t token_count,
                  SessionLifetime lifetime = SessionLifetime::kPermanent) {
    const auto sealed = Await<SealedSegment>(
        [&](auto done) { engine_->SealSession(kDefaultApp, parent, std::move(done)); });
    EXPECT_TRUE(sealed.ok()) << sealed.status();
    CreateSession request;
    request.key = SmallKey();
    request.layout = layout_;
    request.parent = parent;
    request.parent_segment_id = sealed->segment_id;
    request.parent_token_count = token_count;
    request.lifetime = lifetime;
    const auto fork = Await<SessionRef>(
        [&](auto done) { engine_->Create(kDefaultApp, request, std::move(done)); });
    EXPECT_TRUE(fork.ok()) << fork.status();
    return *fork;
  }
  absl::Status Supersede(const SessionRef& session, const SessionRef& replacement) {
    return Await<std::monostate>([&](auto done) {
             engine_->SupersedeSession(kDefaultApp, {session, replacement}, std::move(done));
           })
        .status();
  }
  absl::Status Delete(const SessionRef& session) {
    return Await<std::monostate>(
               [&](auto done) { engine_->DeleteSession(kDefaultApp, session, std::move(done)); })
        .status();
  }
  std::vector<SessionInfo> List() {
    return Await<std::vector<SessionInfo>>([&](auto done) {
             engine_->ListSessions(kDefaultApp, ListDetail::kRows, std::move(done));
           })
        .value();
  }
  std::vector<SessionId> Ids() {
    std::vector<SessionId> ids;
    for (const SessionInfo& info : List()) ids.push_back(info.session_id);
    std::sort(ids.begin(), ids.end());
    return ids;
  }
  void ExpectHolds(const SessionRef& session, std::int64_t salt,
                   std::int64_t token_count = kTokenCount) {
    SCOPED_TRACE(session.id.value());
    id_ = session.id;
    Open();
    EXPECT_EQ(session_->attachment().uid, session.uid);
    EXPECT_EQ(session_->attachment().token_count, token_count);
    const auto fetched = FetchCluster(1);
    ASSERT_TRUE(fetched.ok()) << fetched.status();
    ASSERT_EQ(fetched->outcome, FetchOutcome::kFound);
    const Positions positions = Positions::Range(0, token_count);
    EXPECT_TRUE(Join(layout_, *fetched).entries == EntriesBytes(layout_, salt, 0, 0, positions));
    Close();
  }
  void ExpectNoFlashInUse() {
    for (const SessionInfo& info : List()) EXPECT_TRUE(Delete(RefTo(info)).ok());
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (Stats().flash_used_bytes != 2 * kPageBytes) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << Stats().flash_used_bytes;
    }
  }

  std::shared_ptr<UnsyncedFs> files_;
};

TEST_F(EngineSupersedeTest, TheSessionStaysWhoItWasAndHoldsWhatTheOtherHeld) {
  const SessionRef session = Make(1);
  const SessionInfo before = List().at(0);
  const std::int64_t used = Stats().flash_used_bytes;
  const SessionRef replacement = Make(2, kTokenCount, SessionLifetime::kEphemeral);
  CorruptEverything();  // entries are not looked at
  ASSERT_EQ(Supersede(session, replacement).ToString(), "OK");
  EXPECT_EQ(Stats().flash_used_bytes, used);
  const std::vector<SessionInfo> after = List();
  ASSERT_EQ(after.size(), 1U);
  EXPECT_EQ(after[0].session_id, session.id);
  EXPECT_EQ(after[0].uid, session.uid);
  EXPECT_EQ(after[0].label, "of salt 1");
  EXPECT_EQ(after[0].create_time_us, before.create_time_us);
  EXPECT_EQ(after[0].lifetime, SessionLifetime::kPermanent);
  EXPECT_TRUE(absl::IsNotFound(Delete(replacement)));
  // It goes on, also behind a restart.
  for (const bool restart : {false, true}) {
    if (restart) Start();
    id_ = session.id;
    Open();
    const auto policy = session_->Read(GetPolicyState());
    ASSERT_TRUE(policy.ok()) << policy.status();
    EXPECT_EQ(std::get<PolicyStateReply>(*policy).state, "policy 2");
    const auto tokens = session_->Read(GetTokens{0, 100});
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(std::get<TokensReply>(*tokens).token_ids.size(), 40U);
    Close();
  }
  Append(session.id, 2, kTokenCount, kTokenCount + 10);
  EXPECT_EQ(List().at(0).token_count, kTokenCount + 10);
  ExpectNoFlashInUse();
}

TEST_F(EngineSupersedeTest, EntriesAreTheReplacements) {
  const SessionRef session = Make(1);
  const SessionRef replacement = Make(2);
  ASSERT_EQ(Supersede(session, replacement).ToString(), "OK");
  ExpectHolds(session, 2);
  Start();
  ExpectHolds(session, 2);
}

TEST_F(EngineSupersedeTest, ItMayBeAskedAgainWheneverTheReplyWasLost) {
  const SessionRef session = Make(1);
  const SessionRef replacement = Make(2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Supersede(session, replacement).ToString(), "OK");
    EXPECT_EQ(Ids(), std::vector{session.id});
  }
  // Also when it has gone on, is sealed, and the daemon started anew.
  Append(session.id, 2, kTokenCount, kTokenCount + 10);
  Fork(session, kTokenCount);
  Start();
  EXPECT_EQ(Supersede(session, replacement).ToString(), "OK");
  EXPECT_TRUE(absl::IsNotFound(Supersede(session, {SessionId(12345)})));
  ExpectHolds(session, 2, kTokenCount + 10);
}

TEST_F(EngineSupersedeTest, WhatIsNotTheSameIsRefusedAndChangesNothing) {
  const SessionRef session = Make(1);
  const SessionRef shorter = Make(2, kTokenCount - 1);
  const SessionRef others = Make(3, kTokenCount - 1);
  Append(others.id, 3, kTokenCount - 1, kTokenCount, /*token=*/2);
  const SessionRef wider =
      Make(4, kTokenCount, SessionLifetime::kPermanent, {1, 1, 48, KvFormat::kF16});
  const SessionRef same = Make(5);
  const std::vector<SessionId> ids = Ids();
  const auto refused = [&](const SessionRef& old, const SessionRef& other, absl::StatusCode code,
                           std::string_view what) {
    const absl::Status status = Supersede(old, other);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_TRUE(Says(status, what)) << status;
    EXPECT_EQ(Ids(), ids);
  };
  using enum absl::StatusCode;
  refused(session, shorter, kFailedPrecondition, "has 39 tokens");
  refused(session, others, kFailedPrecondition, "not the same");
  refused(session, wider, kFailedPrecondition, "another model, adapter or KV format");
  refused(session, {same.id, std::string(kUidBytes, 'x')}, kFailedPrecondition, "another one");
  refused({session.id, std::string(kUidBytes, 'x')}, same, kFailedPrecondition, "another one");
  refused(session, session, kInvalidArgument, "cannot take the place");
  refused({SessionId()}, same, kInvalidArgument, "cannot take the place");
  refused({SessionId(12345)}, same, kNotFound, "12345");
  for (const SessionRef& open : {session, same}) {
    id_ = open.id;
    Open();
    refused(session, same, kFailedPrecondition, "is open: close it first");
    Close();
  }
  ExpectHolds(session, 1);
  ExpectHolds(same, 5);
}

// What forks need stays, on whichever side they are.
TEST_F(EngineSupersedeTest, ForksStayAsTheyAre) {
  const SessionRef session = Make(1);
  const SessionRef fork = Fork(session, 30);
  Append(session.id, 1, kTokenCount, kTokenCount + 10);
  const SessionRef replacement = Make(2, kTokenCount + 10);
  const SessionRef replacement_fork = Fork(replacement, 20);
  ASSERT_EQ(Supersede(session, replacement).ToString(), "OK");
  ExpectHolds(session, 2, kTokenCount + 10);
  ExpectHolds(fork, 1, 30);
  ExpectHolds(replacement_fork, 2, 20);
  // The fork itself, of which the parent is another one now.
  const SessionRef second = Make(3, 30);
  ASSERT_EQ(Supersede(fork, second).ToString(), "OK");
  ExpectHolds(fork, 3, 30);
  ExpectHolds(session, 2, kTokenCount + 10);
  Start();
  ExpectHolds(fork, 3, 30);
  ExpectHolds(session, 2, kTokenCount + 10);
  ExpectHolds(replacement_fork, 2, 20);
  ExpectNoFlashInUse();
}

// It would be deleted else when the next process finds nobody attached to it.
TEST_F(EngineSupersedeTest, AForkWithoutACheckpointHasOneFromThenOn) {
  const SessionRef session = Make(1);
  const SessionRef fork = Fork(session, kTokenCount, SessionLifetime::kFromCheckpoint);
  ASSERT_EQ(Supersede(fork, Make(2)).ToString(), "OK");
  Start();
  for (const SessionInfo& info : List()) {
    EXPECT_EQ(info.lifetime, SessionLifetime::kPermanent) << info.session_id.value();
  }
  ExpectHolds(fork, 2);
  // One that is to go stays so.
  const SessionRef other = Fork(session, kTokenCount, SessionLifetime::kEphemeral);
  ASSERT_EQ(Supersede(other, Make(3)).ToString(), "OK");
  const std::vector<SessionInfo> after = List();
  const auto found = std::find_if(after.begin(), after.end(), [&](const SessionInfo& info) {
    return info.session_id == other.id;
  });
  ASSERT_NE(found, after.end());
  EXPECT_EQ(found->lifetime, SessionLifetime::kEphemeral);
}

// A replacement that stands on what the session has itself.
TEST_F(EngineSupersedeTest, ASharedBeginningStays) {
  const SessionRef session = Make(1);
  const SessionRef fork = Fork(session, kTokenCount);
  Append(session.id, 1, kTokenCount, kTokenCount + 10);
  Append(fork.id, 1, kTokenCount, kTokenCount + 10);
  ASSERT_EQ(Supersede(session, fork).ToString(), "OK");
  ExpectHolds(session, 1, kTokenCount + 10);
  Start();
  ExpectHolds(session, 1, kTokenCount + 10);
  ExpectNoFlashInUse();
}

// The power goes off as the batch is synced: both are there as before, or it is done.
TEST_F(EngineSupersedeTest, APowerCutLeavesAllOfItOrNothing) {
  const SessionRef session = Make(1);
  const SessionRef replacement = Make(2);
  files_->CutAtSyncOf(".log");
  EXPECT_FALSE(Supersede(session, replacement).ok());
  disk_.PowerCut();
  Start();
  const std::vector<SessionId> ids = Ids();
  if (ids.size() == 1) {
    EXPECT_EQ(ids, std::vector{session.id});
    ExpectHolds(session, 2);
  } else {
    EXPECT_EQ(ids, (std::vector{session.id, replacement.id}));
    ExpectHolds(session, 1);
    ExpectHolds(replacement, 2);
  }
  // Asked again as a client does that heard nothing.
  EXPECT_EQ(Supersede(session, replacement).ToString(), "OK");
  ExpectHolds(session, 2);
  ExpectNoFlashInUse();
}

TEST_F(EngineSupersedeTest, ACommitThatFailsCanBeRepeatedAndCostsNoFlash) {
  const SessionRef session = Make(1);
  const SessionRef replacement = Make(2);
  files_->FailNextLogSync();
  EXPECT_FALSE(Supersede(session, replacement).ok());
  EXPECT_EQ(Supersede(session, replacement).ToString(), "OK");
  ExpectHolds(session, 2);
  ExpectNoFlashInUse();
}

// Behind the reply it is durable.
TEST_F(EngineSupersedeTest, APowerCutBehindTheReplyTakesNothingBack) {
  const SessionRef session = Make(1);
  const SessionRef replacement = Make(2);
  ASSERT_EQ(Supersede(session, replacement).ToString(), "OK");
  files_->PowerCut();
  disk_.PowerCut();
  Start();
  EXPECT_EQ(Ids(), std::vector{session.id});
  ExpectHolds(session, 2);
}

// An owner of before must not go on with what its replay buffer was for.
TEST_F(EngineSupersedeTest, AnEarlierOwnerCannotResume) {
  const SessionRef session = Make(1);
  const AttachAttempt owner{std::string(kUidBytes, 'o'), 1};
  auto attached = TestSession::Open(*engine_, session.id, owner);
  ASSERT_TRUE(attached.ok()) << attached.status();
  const Attachment lost = (*attached)->attachment();
  attached->reset();
  while (List().at(0).attached) {
  }
  const SessionRef replacement = Make(2);
  ASSERT_EQ(Supersede(session, replacement).ToString(), "OK");
  const auto resumed =
      TestSession::Resume(*engine_, {session.id, lost.epoch, {owner.owner, 2}, lost.op_seq});
  EXPECT_TRUE(absl::IsFailedPrecondition(resumed.status())) << resumed.status();
  const auto by_epoch = TestSession::Resume(*engine_, session.id, lost.epoch);
  EXPECT_TRUE(absl::IsFailedPrecondition(by_epoch.status())) << by_epoch.status();
}

}  // namespace
}  // namespace cairn::kv
