// Commits that fail, on an engine that goes on: what they would have done is there or not, and no
// flash is lost to not knowing which.
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
             engine_->DeleteSession({id_, ""}, std::move(done));
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
    return Await<SessionRef>([&](auto done) { engine_->Create(request, std::move(done)); })
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
