// A store whose files are deleted, moved or replaced while it is open: nothing is acknowledged that
// nobody would find again.
#include "kv-node/meta/store_place.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/tools/says.h"
#include "tests/tools/temp_dir.h"
#include "tests/unit/meta/meta_testing.h"

namespace cairn::kv {
namespace {

namespace fs = std::filesystem;

class StorePlaceTest : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(extents_) << "pages";
    store_ = OpenOrFail({.path = meta_, .extent_path = extents_, .look_each = look_each_});
    ASSERT_TRUE(Commit().ok());
  }
  absl::Status Commit() { return store_->CommitAndWait(PutOne(Family::kSegments, "k", "v")); }
  void ExpectRefused(const std::string& path, const std::string& what,
                     const std::string& cure = "put the right one back") {
    for (int i = 0; i < 2; ++i) {
      const absl::Status status = Commit();
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
      EXPECT_TRUE(test::Says(status, fmt::format("{} was {}", path, what))) << status;
      EXPECT_TRUE(test::Says(status, cure)) << status;
    }
  }
  // Moves `path` away and back.
  void ExpectRefusedWithout(const std::string& path) {
    fs::rename(path, aside_);
    ExpectRefused(path, "deleted or moved");
    fs::rename(aside_, path);
    EXPECT_TRUE(Commit().ok());
  }

  cairn::test::TempDir dir_;
  const std::string meta_ = dir_.File("meta");
  const std::string extents_ = dir_.File("extents");
  const std::string aside_ = dir_.File("aside");
  std::chrono::milliseconds look_each_ = std::chrono::hours(1);
  std::unique_ptr<MetaStore> store_;
};

TEST_F(StorePlaceTest, WithoutAFileNothingIsCommittedUntilItIsBack) {
  ExpectRefusedWithout(extents_);
  ExpectRefusedWithout(meta_);
  ExpectRefusedWithout(meta_ + "/IDENTITY");
}

TEST_F(StorePlaceTest, AnotherFileIsNotTheStores) {
  fs::rename(extents_, aside_);
  fs::copy(aside_, extents_);
  ExpectRefused(extents_, "replaced");
  fs::rename(aside_, extents_);
  fs::rename(meta_, aside_);
  fs::copy(aside_, meta_);
  ExpectRefused(meta_, "replaced");
}

TEST_F(StorePlaceTest, AFileThatWasCutIsSaid) {
  store_->ExpectExtentBytes(5);
  EXPECT_TRUE(Commit().ok());
  fs::resize_file(extents_, 4);
  ExpectRefused(extents_, "cut from 5 to 4 bytes", "put a copy of the whole store back");
  std::ofstream(extents_) << "longer";
  EXPECT_TRUE(Commit().ok());
}

TEST_F(StorePlaceTest, WhatIsDeletedIsFoundOutByTheNextCommit) {
  fs::remove_all(meta_);
  ExpectRefused(meta_, "deleted or moved");
}

class IdleStorePlaceTest : public StorePlaceTest {
 protected:
  IdleStorePlaceTest() { look_each_ = std::chrono::milliseconds(1); }
  // Once more than before.
  void WaitUntilLost() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (store_->stats().lost_place_count == lost_count_) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    }
    lost_count_ = store_->stats().lost_place_count;
  }

 private:
  std::int64_t lost_count_ = 0;
};

TEST_F(IdleStorePlaceTest, EachFileOfTheMetadataIsMissedUntilItIsBack) {
  store_.reset();  // so that there are tables
  store_ = OpenOrFail({.path = meta_, .extent_path = extents_, .look_each = look_each_});
  ASSERT_TRUE(Commit().ok());
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(meta_)) {
    const std::string name = entry.path().filename();
    const bool is_needed = name == "CURRENT" || name.starts_with("MANIFEST") ||
                           name.ends_with(".sst") ||
                           (name.ends_with(".log") && entry.file_size() != 0);
    if (is_needed) files.push_back(entry.path());
  }
  ASSERT_GE(files.size(), 4U);
  for (const std::string& file : files) {
    fs::rename(file, aside_);
    WaitUntilLost();
    ExpectRefused(file.ends_with(".log") ? meta_ + "'s newest log" : file, "deleted or moved");
    fs::rename(aside_, file);
    EXPECT_TRUE(Commit().ok());
  }
}

TEST_F(IdleStorePlaceTest, WhatTheMetadataReplacesByItselfIsNoLoss) {
  store_.reset();
  constexpr std::int64_t kMemtableBytes = 64 << 10;
  store_ = OpenOrFail({.path = meta_,
                       .memtable_bytes = kMemtableBytes,
                       .extent_path = extents_,
                       .look_each = look_each_});
  const std::string value(20 << 10, 'v');
  for (int i = 0; i < 400; ++i) {  // 8 MB: a hundred tables, and what becomes of them
    const absl::Status status =
        store_->CommitAndWait(PutOne(Family::kSegments, fmt::format("k{}", i % 100), value));
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_GT(store_->write_stats().table_bytes, 10 * kMemtableBytes);
  EXPECT_EQ(store_->stats().lost_place_count, 0);
}

TEST_F(IdleStorePlaceTest, ItIsNoticedWithoutACommit) {
  fs::remove(extents_);
  WaitUntilLost();
  ExpectRefused(extents_, "deleted or moved");
  EXPECT_EQ(store_->stats().lost_place_count, 1);
}

}  // namespace
}  // namespace cairn::kv
