// Calls about whole sessions that are made again, because nobody knows whether they took effect,
// and calls that mean a session of another store.
#include <future>
#include <vector>

#include <gtest/gtest.h>

#include "kv-node/engine/recent_creations.h"
#include "tests/tools/faulty_device.h"
#include "tests/tools/temp_dir.h"
#include "tests/unit/engine/engine_harness.h"

namespace cairn::kv {
namespace {

const std::string kOwner(kUidBytes, 'o');
const std::string kOtherOwner(kUidBytes, 'p');
const std::string kWrongUid(kUidBytes, 'w');

class EngineAttachTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Start();
    id_ = Create()->id;
  }
  void Start(EngineOptions options = {}) {
    engine_.reset();
    auto store = MetaStore::Open({.path = directory_.File("meta")});
    ASSERT_TRUE(store.ok()) << store.status();
    auto engine = Engine::Open(options, StoreId{}, disk_.Open(), *std::move(store));
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  static CreateSession Request(const std::string& uid = "") {
    CreateSession request;
    request.key = SmallKey();
    request.layout = {1, 1, 40, KvFormat::kF16};
    request.uid = uid;
    return request;
  }
  absl::StatusOr<SessionRef> Create(const CreateSession& request = Request()) {
    return Await<SessionRef>(
        [&](auto done) { engine_->Create(kDefaultApp, request, std::move(done)); });
  }
  absl::StatusOr<Attachment> Open(const AttachAttempt& attempt, const std::string& uid = "") {
    return Await<Attachment>([&](auto done) {
      engine_->OpenSession(kDefaultApp, {{id_, uid}, attempt}, std::move(done));
    });
  }
  // Nobody knows the epoch.
  absl::StatusOr<Attachment> Resume(const AttachAttempt& attempt, OpSeq op_seq = OpSeq()) {
    return Await<Attachment>([&](auto done) {
      engine_->ResumeSession(kDefaultApp, {id_, Epoch(), attempt, op_seq}, std::move(done));
    });
  }
  // Attached with a channel.
  std::unique_ptr<TestSession> OpenBound(const AttachAttempt& attempt) {
    auto session = TestSession::Open(*engine_, id_, attempt);
    EXPECT_TRUE(session.ok()) << session.status();
    return session.ok() ? *std::move(session) : nullptr;
  }
  absl::StatusOr<SealedSegment> Seal(const SessionRef& session) {
    return Await<SealedSegment>(
        [&](auto done) { engine_->SealSession(kDefaultApp, session, std::move(done)); });
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
  static void Checkpoint(TestSession& session, std::int64_t first, std::int64_t end) {
    const Positions positions = Positions::Range(first, end - first);
    session.Send(Append{
        0, {{{0, ClusterId(1)}, positions, EntriesBytes(Request().layout, 1, 0, 0, positions)}}});
    cairn::Checkpoint op;
    op.token_count = end;
    op.token_ids_start = first;
    op.token_ids.assign(static_cast<std::size_t>(end - first), 1);
    op.next_cluster_ids.assign(2, 100);
    const auto done = session.WaitFor(session.Send(op));
    ASSERT_TRUE(done.ok()) << done.status();
  }
  static bool Serves(TestSession& session) { return session.Read(GetClusters{0}).ok(); }

  const test::TempDir directory_;
  FaultyDisk disk_{{.size_bytes = std::int64_t{1} << 20}};
  std::unique_ptr<Engine> engine_;
  SessionId id_;
};

TEST_F(EngineAttachTest, AResumeWhoseReplyWasLostSucceedsAgain) {
  {
    const auto session = OpenBound({kOwner, 1});
    ASSERT_NO_FATAL_FAILURE(Checkpoint(*session, 0, 5));
  }
  const auto unheard = Resume({kOwner, 2});
  ASSERT_TRUE(unheard.ok()) << unheard.status();
  Start();
  for (std::int64_t attempt = 3; attempt < 6; ++attempt) {
    const auto again = Resume({kOwner, attempt});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->token_count, 5);
    EXPECT_GT(again->epoch, unheard->epoch);
    if (attempt == 4) Start();
  }
}

TEST_F(EngineAttachTest, AnOpenWhoseReplyWasLostCanBeMadeAgainOrResumed) {
  const auto unheard = Open({kOwner, 1});
  ASSERT_TRUE(unheard.ok()) << unheard.status();
  Start();
  EXPECT_TRUE(Open({kOwner, 2}).ok());
  Start();
  EXPECT_TRUE(Resume({kOwner, 3}).ok());
}

TEST_F(EngineAttachTest, AnAttemptThatComesLateEndsNothing) {
  const auto session = OpenBound({kOwner, 3});
  for (const std::int64_t late : {1, 2, 3}) {
    EXPECT_EQ(Resume({kOwner, late}).status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(Open({kOwner, late}).status().code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_TRUE(Serves(*session));
}

// A commit that takes longer than its caller waits would be begun again for ever.
TEST_F(EngineAttachTest, WhatNoChannelCameToGoesToTheNextAttempt) {
  const auto unheard = Open({kOwner, 1});
  ASSERT_TRUE(unheard.ok()) << unheard.status();
  const auto again = Resume({kOwner, 4});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->epoch, unheard->epoch);
  EXPECT_EQ(again->uid, unheard->uid);
  // One that was under way meanwhile.
  EXPECT_EQ(Resume({kOwner, 3}).status().code(), absl::StatusCode::kFailedPrecondition);
  // It is one owner's.
  const auto other = Open({kOtherOwner, 1});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_GT(other->epoch, again->epoch);
}

TEST_F(EngineAttachTest, WhatHasAChannelIsAttachedAnew) {
  const auto session = OpenBound({kOwner, 1});
  const auto again = Resume({kOwner, 2});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_GT(again->epoch, session->attachment().epoch);
  EXPECT_FALSE(Serves(*session));
}

// Rule 13.
TEST_F(EngineAttachTest, AnOwnerInBetweenEndsTheOlderOnesResumes) {
  OpenBound({kOwner, 1});
  auto other = OpenBound({kOtherOwner, 1});
  EXPECT_EQ(Resume({kOwner, 2}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Serves(*other));
  other.reset();
  Start();
  EXPECT_EQ(Resume({kOwner, 3}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Resume({kOtherOwner, 2}).ok());
  // Nor does one without a name leave anything to resume.
  ASSERT_TRUE(Open({}).ok());
  EXPECT_EQ(Resume({kOtherOwner, 3}).status().code(), absl::StatusCode::kFailedPrecondition);
}

// Rule 2: the owner's numbers are of a segment that is sealed now.
TEST_F(EngineAttachTest, ASealByTheNodeEndsTheOwnersResumes) {
  {
    const auto session = OpenBound({kOwner, 1});
    ASSERT_NO_FATAL_FAILURE(Checkpoint(*session, 0, 5));
    Await<std::monostate>([&](auto done) {
      engine_->CloseSession(kDefaultApp, id_, session->attachment().epoch, std::move(done));
    }).IgnoreError();
  }
  ASSERT_TRUE(Resume({kOwner, 2}).ok());
  Start();
  ASSERT_TRUE(Seal({id_}).ok());
  EXPECT_EQ(Resume({kOwner, 3}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(EngineAttachTest, AnOlderCopyOfTheStoreIsNotGoneOnWith) {
  OpSeq acknowledged;
  {
    const auto session = OpenBound({kOwner, 1});
    ASSERT_NO_FATAL_FAILURE(Checkpoint(*session, 0, 5));
    acknowledged = session->last_op_seq();
  }
  const auto refused = Resume({kOwner, 2}, OpSeq(acknowledged.value() + 1));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kDataLoss) << refused.status();
  // It has changed nothing.
  const auto resumed = Resume({kOwner, 2}, acknowledged);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->op_seq, acknowledged);
}

TEST_F(EngineAttachTest, AnotherSessionOfTheSameNumberIsNotReached) {
  const std::string uid = List().front().uid;
  ASSERT_EQ(std::ssize(uid), kUidBytes);
  EXPECT_EQ(Open({}, kWrongUid).status().code(), absl::StatusCode::kFailedPrecondition);
  auto session = OpenBound({kOwner, 1});
  EXPECT_EQ(session->attachment().uid, uid);
  ASSERT_NO_FATAL_FAILURE(Checkpoint(*session, 0, 5));
  EXPECT_EQ(Open({}, kWrongUid).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Delete({id_, kWrongUid}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Serves(*session));  // the attachment is still there
  const Epoch epoch = session->attachment().epoch;
  session.reset();
  Start();
  EXPECT_EQ(Seal({id_, kWrongUid}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Delete({id_, kWrongUid}).code(), absl::StatusCode::kFailedPrecondition);
  const auto sealed = Seal({id_, uid});
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  const auto again = Seal({id_, uid});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->segment_id, sealed->segment_id);
  const auto opened = Open({}, uid);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->epoch, Epoch(epoch.value() + 2));
  EXPECT_TRUE(Delete({id_, uid}).ok());
}

TEST_F(EngineAttachTest, AForkNamesTheSessionThatItsSegmentIsOf) {
  const std::string uid = List().front().uid;
  {
    const auto session = OpenBound({kOwner, 1});
    ASSERT_NO_FATAL_FAILURE(Checkpoint(*session, 0, 5));
  }
  Start();
  const auto sealed = Seal({id_, uid});
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  CreateSession fork = Request();
  fork.parent_segment_id = sealed->segment_id;
  fork.parent_token_count = 5;
  fork.parent = {id_, kWrongUid};
  EXPECT_EQ(Create(fork).status().code(), absl::StatusCode::kFailedPrecondition);
  fork.parent = *Create();
  EXPECT_EQ(Create(fork).status().code(), absl::StatusCode::kFailedPrecondition);
  fork.parent = {SessionId(99), ""};
  EXPECT_EQ(Create(fork).status().code(), absl::StatusCode::kNotFound);
  fork.parent = {id_, uid};
  EXPECT_TRUE(Create(fork).ok());
}

TEST_F(EngineAttachTest, ACreationThatIsMadeAgainFindsTheSession) {
  const CreateSession request = Request(kOwner);
  const auto created = Create(request);
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(created->uid, kOwner);
  EXPECT_EQ(*Create(request), *created);
  Start();
  EXPECT_EQ(*Create(request), *created);
  EXPECT_EQ(List().size(), 2U);
  // One that was deleted meanwhile does not come back.
  ASSERT_TRUE(Delete(*created).ok());
  EXPECT_EQ(*Create(request), *created);
  EXPECT_EQ(List().size(), 1U);
}

TEST_F(EngineAttachTest, ACreationThatIsMadeAgainWhileItIsUnderWayWaitsForIt) {
  const CreateSession request = Request(kOwner);
  std::vector<std::promise<absl::StatusOr<SessionRef>>> answers(8);
  for (auto& answer : answers) {
    engine_->Create(kDefaultApp, request,
                    [&answer](auto created) { answer.set_value(std::move(created)); });
  }
  std::vector<SessionRef> created;
  created.reserve(answers.size());
  for (auto& answer : answers) created.push_back(answer.get_future().get().value());
  EXPECT_EQ(created, std::vector<SessionRef>(answers.size(), created.front()));
  EXPECT_EQ(List().size(), 2U);
}

TEST_F(EngineAttachTest, ACreationThatFailedCanBeMadeAgain) {
  Start({.sessions_max = 1});
  const CreateSession request = Request(kOwner);
  EXPECT_EQ(Create(request).status().code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(Delete({id_}).ok());
  EXPECT_TRUE(Create(request).ok());
}

// Its owner has died, and nobody could fork the session.
TEST_F(EngineAttachTest, AnAttachmentWithoutAChannelEnds) {
  ASSERT_TRUE(Open({}).ok());
  ASSERT_EQ(Seal({id_}).status().code(), absl::StatusCode::kFailedPrecondition);
  Start({.channel_wait_max = std::chrono::milliseconds(1)});
  ASSERT_TRUE(Open({}).ok());
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (List().front().attached) ASSERT_LT(std::chrono::steady_clock::now(), end);
  EXPECT_TRUE(Seal({id_}).ok());
}

TEST(RecentCreationsTest, TheOldestAreForgotten) {
  RecentCreations creations;
  const auto is_new = [&creations](std::int64_t number) {
    return creations.Begin({kDefaultApp, fmt::format("{}", number)},
                           [](const absl::StatusOr<SessionRef>&) {});
  };
  for (std::int64_t i = 1; i <= kCreationsKnownMax; ++i) {
    ASSERT_TRUE(is_new(i));
    creations.End({kDefaultApp, fmt::format("{}", i)}, SessionRef{SessionId(i), ""});
  }
  EXPECT_FALSE(is_new(1));
  creations.Note({kDefaultApp, "another"}, SessionId(5000));
  EXPECT_TRUE(is_new(1));
  EXPECT_FALSE(is_new(2));
  EXPECT_FALSE(is_new(kCreationsKnownMax));
}

}  // namespace
}  // namespace cairn::kv
