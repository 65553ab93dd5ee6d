// What a power cut and a failing disk leave of the metadata: what was acknowledged is there, the
// rest whole or not at all.
#include <chrono>
#include <filesystem>
#include <random>
#include <vector>

#include "tests/tools/descriptors_left.h"
#include "tests/tools/says.h"
#include "tests/tools/seed.h"
#include "tests/tools/temp_dir.h"
#include "tests/tools/unsynced_fs.h"
#include "tests/unit/meta/meta_testing.h"

namespace cairn::kv {
namespace {

class MetaCrash : public testing::Test {
 protected:
  std::unique_ptr<MetaStore> OpenOnFaultyDisk(
      std::uint64_t seed, std::chrono::milliseconds recover_each = std::chrono::seconds(1)) {
    return OpenOrFail(
        {.path = dir_.File("meta"),
         .recover_each = recover_each,
         .wrap_file_system = [this, seed](const std::shared_ptr<rocksdb::FileSystem>& base) {
           fs_ = std::make_shared<UnsyncedFs>(base, seed);
           return fs_;
         }});
  }
  std::unique_ptr<MetaStore> OpenAgain() { return OpenOrFail({.path = dir_.File("meta")}); }

  test::TempDir dir_;
  std::shared_ptr<UnsyncedFs> fs_;
};

MetaBatch TwoFamilies(int number) {
  MetaBatch batch;
  const std::string key = fmt::format("{:04}", number);
  batch.Put(Family::kSegments, key, std::string(700, 's'));
  batch.Put(Family::kClusters, key, std::string(3000, 'c'));
  return batch;
}

TEST_F(MetaCrash, ACommittedBatchSurvivesAPowerCut) {
  auto store = OpenOnFaultyDisk(1);
  ASSERT_TRUE(store->CommitAndWait(TwoFamilies(1)).ok());
  fs_->PowerCut();
  EXPECT_FALSE(store->CommitAndWait(TwoFamilies(2)).ok());
  store.reset();
  store = OpenAgain();
  EXPECT_EQ(AllRows(*store, Family::kSegments).size(), 1U);
  EXPECT_EQ(AllRows(*store, Family::kClusters).size(), 1U);
}

// Plan: commit some batches, lose the power between the write and the sync of a group, open again.
// Some rounds in one directory, so that recovery meets what earlier recoveries left.
TEST_F(MetaCrash, AnUnsyncedGroupIsCutBetweenBatchesAndNeverInsideOne) {
  std::mt19937_64 random(test::TestSeed());
  int number = 0;
  std::int64_t lost_bytes = 0;
  for (int round = 0; round < 15; ++round) {
    auto store = OpenOnFaultyDisk(random());
    int acknowledged = number;
    for (std::uint64_t i = random() % 20; i > 0; --i) {
      ASSERT_TRUE(store->CommitAndWait(TwoFamilies(number++)).ok());
      acknowledged = number;
    }
    {
      const HeldThread held(*store);
      fs_->CutAtSyncOf(".log");
      for (std::uint64_t i = 1 + random() % 5; i > 0; --i) {
        ASSERT_TRUE(store
                        ->Commit(TwoFamilies(number++),
                                 [](const absl::Status& status) { EXPECT_FALSE(status.ok()); })
                        .ok());
      }
    }
    Settle(*store);
    store.reset();
    lost_bytes += fs_->lost_bytes();
    store = OpenAgain();
    ASSERT_NE(store, nullptr);
    const Rows segments = AllRows(*store, Family::kSegments);
    const Rows clusters = AllRows(*store, Family::kClusters);
    ASSERT_EQ(segments.size(), clusters.size());
    ASSERT_GE(static_cast<int>(segments.size()), acknowledged) << "round " << round;
    ASSERT_LE(static_cast<int>(segments.size()), number);
    for (int i = 0; i < static_cast<int>(segments.size()); ++i) {
      const std::string key = fmt::format("{:04}", i);
      ASSERT_EQ(segments.at(key), std::string(700, 's'));
      ASSERT_EQ(clusters.at(key), std::string(3000, 'c'));
    }
    number = static_cast<int>(segments.size());
  }
  EXPECT_GT(lost_bytes, 0);
}

// Plan: with small memtables flushes run beside the commits; lose the power as one of them syncs
// its table or the manifest.
TEST_F(MetaCrash, APowerCutDuringAFlushLosesNothingAcknowledged) {
  std::mt19937_64 random(test::TestSeed());
  for (const char* part : {"MANIFEST", ".sst", "MANIFEST", ".sst", "MANIFEST", ".sst"}) {
    const test::TempDir dir;
    std::shared_ptr<UnsyncedFs> fs;
    auto store =
        OpenOrFail({.path = dir.File("meta"),
                    .memtable_bytes = 64 << 10,
                    .wrap_file_system = [&](const std::shared_ptr<rocksdb::FileSystem>& base) {
                      fs = std::make_shared<UnsyncedFs>(base, random());
                      return fs;
                    }});
    fs->CutAtSyncOf(part);
    int count = 0;
    while (store->CommitAndWait(TwoFamilies(count)).ok() && count < 1000) ++count;
    ASSERT_LT(count, 1000) << "no flush came";
    store.reset();
    store = OpenOrFail({.path = dir.File("meta")});
    ASSERT_NE(store, nullptr);
    // The batch that failed may be there.
    EXPECT_GE(static_cast<int>(AllRows(*store, Family::kClusters).size()), count);
    EXPECT_LE(static_cast<int>(AllRows(*store, Family::kClusters).size()), count + 1);
    EXPECT_EQ(AllRows(*store, Family::kSegments).size(), AllRows(*store, Family::kClusters).size());
  }
}

constexpr std::chrono::hours kNever{1};
constexpr std::chrono::milliseconds kAtOnce{0};

TEST_F(MetaCrash, AFullDiskSaysHowToGoOnAndLosesNothingAcknowledged) {
  auto store = OpenOnFaultyDisk(1, kNever);
  ASSERT_TRUE(store->CommitAndWait(TwoFamilies(1)).ok());
  fs_->FailNextLogSync(/*disk_full=*/true);
  for (int i = 2; i < 5; ++i) {
    const absl::Status status = store->CommitAndWait(TwoFamilies(i));
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    for (const std::string& text :
         {"free space on the file system of " + dir_.File("meta"),
          std::string("nothing that was acknowledged is lost"), std::string("goes on by itself")}) {
      EXPECT_NE(ToStd(status.message()).find(text), std::string_view::npos) << status;
    }
  }
  store.reset();
  store = OpenAgain();
  EXPECT_NE(*store->reader().Get(Family::kSegments, "0001"), std::nullopt);
  EXPECT_TRUE(store->CommitAndWait(TwoFamilies(5)).ok());
}

TEST_F(MetaCrash, WithoutRoomForAnyFileTheStoreStaysReadableAndGoesOnWhenThereIsSome) {
  auto store = OpenOnFaultyDisk(1, kAtOnce);
  ASSERT_TRUE(store->CommitAndWait(TwoFamilies(1)).ok());
  for (int round = 0; round < 3; ++round) {
    fs_->FillDisk();
    for (int i = 2; i < 5; ++i) {
      const absl::Status status = store->CommitAndWait(TwoFamilies(100 * round + i));
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
      EXPECT_NE(*store->reader().Get(Family::kSegments, "0001"), std::nullopt);
    }
    fs_->MendDisk();
    EXPECT_TRUE(store->CommitAndWait(TwoFamilies(100 * round + 5)).ok());
    EXPECT_EQ(store->stats().recovered_count, round + 1);
    EXPECT_NE(*store->reader().Get(Family::kSegments, "0001"), std::nullopt);
  }
  store.reset();
  for (const auto& entry : std::filesystem::directory_iterator(dir_.File("meta"))) {
    EXPECT_EQ(entry.path().filename().string().find("probe"), std::string::npos) << entry.path();
    EXPECT_NE(entry.path().filename(), "LOG");
  }
  store = OpenAgain();
  const Rows rows = AllRows(*store, Family::kSegments);
  for (const char* key : {"0001", "0005", "0105", "0205"}) EXPECT_TRUE(rows.contains(key)) << key;
}

// What of the failed write is there is found out by opening the files: all of it or nothing.
TEST_F(MetaCrash, AfterAFailedSyncNothingIsAcceptedBeforeTheFilesWereOpenedAnew) {
  auto store = OpenOnFaultyDisk(1, kNever);
  ASSERT_TRUE(store->CommitAndWait(TwoFamilies(1)).ok());
  fs_->FailNextLogSync();
  const absl::Status first = store->CommitAndWait(TwoFamilies(2));
  EXPECT_EQ(first.code(), absl::StatusCode::kInternal) << first;
  // The disk works again; what it lost is unknown.
  for (int i = 3; i < 6; ++i) EXPECT_EQ(store->CommitAndWait(TwoFamilies(i)), first);
  EXPECT_NE(*store->reader().Get(Family::kSegments, "0001"), std::nullopt);
  store.reset();
  store = OpenOnFaultyDisk(1, kAtOnce);
  fs_->FailNextLogSync();
  EXPECT_FALSE(store->CommitAndWait(TwoFamilies(6)).ok());
  EXPECT_TRUE(store->CommitAndWait(TwoFamilies(7)).ok());
  const Rows segments = AllRows(*store, Family::kSegments);
  EXPECT_EQ(segments, [&] {
    Rows rows = AllRows(*store, Family::kClusters);
    for (auto& [key, value] : rows) value = std::string(700, 's');
    return rows;
  }());
  EXPECT_TRUE(segments.contains("0001") && segments.contains("0007"));
  EXPECT_FALSE(segments.contains("0003"));
}

// The log holds the batch that failed. If RocksDB then moved one family after the other into tables
// and the process were killed on the way, the batch would be found for the others alone.
TEST_F(MetaCrash, ABatchThatFailedIsThereWhollyOrNotWhereverTheProcessEnds) {
  for (int round = 0; round < 16; ++round) {
    std::filesystem::remove_all(dir_.File("meta"));
    auto store = OpenOnFaultyDisk(1, kNever);
    ASSERT_TRUE(store->CommitAndWait(TwoFamilies(1)).ok());
    fs_->FailNextLogSync(/*disk_full=*/true);
    fs_->KillAtSyncOf(".sst", round % 2 + 1);
    ASSERT_FALSE(store->CommitAndWait(TwoFamilies(2)).ok());
    store.reset();
    store = OpenAgain();
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(AllRows(*store, Family::kSegments).size(), 2U);
    EXPECT_EQ(AllRows(*store, Family::kClusters).size(), 2U);
  }
}

// Nobody needs to write for it.
TEST_F(MetaCrash, TheFilesAreOpenedAnewWithoutACommit) {
  auto store = OpenOnFaultyDisk(1, std::chrono::milliseconds(1));
  fs_->FailNextLogSync();
  ASSERT_FALSE(store->CommitAndWait(TwoFamilies(1)).ok());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (store->stats().recovered_count == 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
  }
  EXPECT_TRUE(store->CommitAndWait(TwoFamilies(2)).ok());
}

// One commit may meet it as it happens; who comes behind that finds the files opened anew.
TEST_F(MetaCrash, BehindATableThatCouldNotBeWrittenCommitsGoOn) {
  for (const bool disk_full : {true, false}) {
    std::filesystem::remove_all(dir_.File("meta"));
    const auto store =
        OpenOrFail({.path = dir_.File("meta"),
                    .memtable_bytes = 64 << 10,
                    .recover_each = kAtOnce,
                    .wrap_file_system = [this](const std::shared_ptr<rocksdb::FileSystem>& base) {
                      fs_ = std::make_shared<UnsyncedFs>(base, 1);
                      return fs_;
                    }});
    fs_->FailNextSyncOf(".sst", disk_full);
    int refused_count = 0;
    int count = 0;
    while (store->stats().recovered_count == 0) {
      ASSERT_LT(count, 1000) << "no table was written";
      if (!store->CommitAndWait(TwoFamilies(count++)).ok()) ++refused_count;
    }
    EXPECT_LE(refused_count, 1);
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(store->CommitAndWait(TwoFamilies(count++)).ok());
    EXPECT_EQ(store->stats().recovered_count, 1);
    // The one that was refused may be there.
    EXPECT_GE(static_cast<int>(AllRows(*store, Family::kClusters).size()), count - refused_count);
  }
}

// The disk has no part in it, so nobody is sent to look at that.
TEST_F(MetaCrash, WithoutADescriptorItSaysSoAndGoesOnWithOne) {
  const auto store =
      OpenOrFail({.path = dir_.File("meta"), .memtable_bytes = 64 << 10, .recover_each = kAtOnce});
  absl::Status status;
  int number = 0;
  {
    const test::DescriptorsLeft none(0);
    // Until RocksDB begins another file.
    while (status.ok() && number < 1000) status = store->CommitAndWait(TwoFamilies(number++));
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(test::Says(status, "raise the limit of open files")) << status;
  EXPECT_FALSE(test::Says(status, "disk")) << status;
  EXPECT_TRUE(store->CommitAndWait(TwoFamilies(number)).ok());
  EXPECT_GE(AllRows(*store, Family::kSegments).size(), static_cast<std::size_t>(number));
}

// Rows that others have put there meanwhile are none of this store's.
TEST_F(MetaCrash, FilesThatAreAnotherStoresOrOlderAreNotOpenedAnew) {
  { OpenOrFail({.path = dir_.File("other")}); }  // an empty store
  auto store = OpenOnFaultyDisk(1, kAtOnce);
  ASSERT_TRUE(store->CommitAndWait(TwoFamilies(1)).ok());
  fs_->BreakDisk();
  ASSERT_FALSE(store->CommitAndWait(TwoFamilies(2)).ok());
  std::filesystem::rename(dir_.File("meta"), dir_.File("aside"));
  std::filesystem::rename(dir_.File("other"), dir_.File("meta"));
  fs_->MendDisk();
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(store->CommitAndWait(TwoFamilies(3)).ok());
  EXPECT_EQ(store->reader().Get(Family::kSegments, "0001").status().code(),
            absl::StatusCode::kUnavailable);
  std::filesystem::rename(dir_.File("meta"), dir_.File("other"));
  std::filesystem::rename(dir_.File("aside"), dir_.File("meta"));
  EXPECT_TRUE(store->CommitAndWait(TwoFamilies(4)).ok());
  EXPECT_TRUE(AllRows(*store, Family::kSegments).contains("0001"));
}

}  // namespace
}  // namespace cairn::kv
