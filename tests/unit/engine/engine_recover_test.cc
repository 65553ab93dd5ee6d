// Commits that fail, on an engine that goes on: what they would have done is there or not, and no
// flash is lost to not knowing which.
#include <atomic>
#include <future>
#include <vector>

#include "tests/tools/unsynced_fs.h"
#include "tests/unit/engine/engine_fault_fixture.h"

namespace cairn::kv {
namespace {

class EngineRecoverTest : public EngineFaultTest {
 protected:
  void SetUp() override {
    wrap_ = [this](const std::shared_ptr<rocksdb::FileSystem>& base) {
      files_ = std::make_shared<UnsyncedFs>(base, 1);
      return files_;
    };
    EngineFaultTest::SetUp();
  }
  // What a failed commit has named is given back behind the next one that is done.
  void ExpectNoFlashInUse() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (Stats().flash_used_bytes != 2 * kPageBytes) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << Stats().flash_used_bytes;
    }
  }
  absl::Status Delete() {
    session_.reset();
    return Await<std::monostate>([&](auto done) {
             engine_->DeleteSession(kDefaultApp, {id_, ""}, std::move(done));
           })
        .status();
  }

  std::shared_ptr<UnsyncedFs> files_;
};

TEST_F(EngineRecoverTest, ACheckpointThatIsNotCommittedIsThereOrNotAndTheNextOneIs) {
  Create();
  std::int64_t count = 0;
  const auto append = [&] { AppendTokens(1, Positions::Range(count, 40)); };
  for (const bool disk_full : {false, true, false}) {
    append();
    ASSERT_EQ(TakeCheckpoint(count, count + 40).ToString(), "OK");
    count += 40;
    append();
    files_->FailNextLogSync(disk_full);
    const absl::Status status = TakeCheckpoint(count, count + 40);
    EXPECT_EQ(status.code(),
              disk_full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal)
        << status;
    Open();
    const std::int64_t there = session_->attachment().token_count;
    EXPECT_TRUE(there == count || there == count + 40) << there;
    count = there;
    ExpectWhole(1, Positions::Range(0, count));
  }
  EXPECT_TRUE(Delete().ok());
  ExpectNoFlashInUse();
}

TEST_F(EngineRecoverTest, ADeletionThatIsNotCommittedCanBeRepeatedAndCostsNoFlash) {
  for (int round = 0; round < 3; ++round) {
    Create();
    AppendTokens(1, Positions::Range(0, 400));
    ASSERT_EQ(TakeCheckpoint(0, 400).ToString(), "OK");
    files_->FailNextLogSync();
    EXPECT_FALSE(Delete().ok());
    const absl::Status again = Delete();
    EXPECT_TRUE(again.ok() || absl::IsNotFound(again)) << again;
  }
  Create();  // a commit that is done
  ExpectNoFlashInUse();
}

// Not a sync for each. The first one goes at once, the others while it does.
TEST_F(EngineRecoverTest, DeletionsThatComeTogetherAreOneCommit) {
  constexpr int kCount = 40;
  std::vector<SessionId> sessions;
  for (int i = 0; i < kCount; ++i) {
    Create();
    AppendTokens(1, Positions::Range(0, 40));
    ASSERT_EQ(TakeCheckpoint(0, 40).ToString(), "OK");
    session_.reset();
    sessions.push_back(id_);
  }
  sessions.push_back(sessions.back());  // one of the two finds it gone
  sessions.emplace_back(12345);
  const std::int64_t before = files_->log_sync_count();
  std::atomic<int> deleted = 0;
  std::atomic<int> not_found = 0;
  std::promise<void> all;
  // On the engine's thread, so that all are there before it looks at the first.
  engine_->GetStats(kDefaultApp, [&](const absl::StatusOr<KvStats>&) {
    for (const SessionId session : sessions) {
      engine_->DeleteSession(
          kDefaultApp, {session, ""}, [&](const absl::StatusOr<std::monostate>& done) {
            ++(done.ok() ? deleted : not_found);
            EXPECT_TRUE(done.ok() || absl::IsNotFound(done.status())) << done.status();
            if (deleted + not_found == std::ssize(sessions)) all.set_value();
          });
    }
  });
  all.get_future().wait();
  EXPECT_EQ(deleted, kCount);
  EXPECT_EQ(not_found, 2);
  EXPECT_EQ(files_->log_sync_count() - before, 2);
  ExpectNoFlashInUse();
}

// Each of two forks needs the parent; without both nobody does.
TEST_F(EngineRecoverTest, AParentGoesWithTheLastOfTheForksThatAreDeletedTogether) {
  SealOneForDefragmentation();
  std::vector<SessionId> forks = {id_};
  CreateSession request;
  request.key = SmallKey();
  request.layout = layout_;
  request.parent_segment_id = sealed_;
  request.parent_token_count = 40;
  for (int i = 0; i < 2; ++i) {
    const auto fork = Await<SessionRef>(
        [&](auto done) { engine_->Create(kDefaultApp, request, std::move(done)); });
    ASSERT_TRUE(fork.ok()) << fork.status();
    forks.push_back(fork->id);
  }
  std::atomic<int> open = 3;
  std::promise<void> all;
  engine_->GetStats(kDefaultApp, [&](const absl::StatusOr<KvStats>&) {
    for (const SessionId fork : forks) {
      engine_->DeleteSession(kDefaultApp, {fork, ""},
                             [&](const absl::StatusOr<std::monostate>& done) {
                               EXPECT_TRUE(done.ok()) << done.status();
                               if (--open == 0) all.set_value();
                             });
    }
  });
  all.get_future().wait();
  ExpectNoFlashInUse();
}

// As long as the disk is full everything is refused, and reads go on.
TEST_F(EngineRecoverTest, WhileTheMetadataHasNoRoomReadsGoOnAndThenEverything) {
  Create();
  AppendTokens(1, Positions::Range(0, 40));
  ASSERT_EQ(TakeCheckpoint(0, 40).ToString(), "OK");
  files_->FillDisk();
  CreateSession request;
  request.key = SmallKey();
  request.layout = layout_;
  const auto create = [&] {
    return Await<SessionRef>(
               [&](auto done) { engine_->Create(kDefaultApp, request, std::move(done)); })
        .status();
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(create().code(), absl::StatusCode::kResourceExhausted);
    ExpectWhole(1, Positions::Range(0, 40));
  }
  files_->MendDisk();
  EXPECT_TRUE(create().ok());
  AppendTokens(1, Positions::Range(40, 5));
  EXPECT_EQ(TakeCheckpoint(40, 45).ToString(), "OK");
}

}  // namespace
}  // namespace cairn::kv
