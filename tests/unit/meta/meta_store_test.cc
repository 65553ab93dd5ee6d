#include "kv-node/meta/meta_store.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include <rocksdb/db.h>

#include "tests/tools/seed.h"
#include "tests/tools/temp_dir.h"
#include "tests/unit/meta/meta_testing.h"

namespace cairn::kv {
namespace {

// The same promises on disk and in memory.
class MetaStoreTest : public testing::TestWithParam<bool> {
 protected:
  MetaOptions Options() const { return {.path = dir_.File("meta"), .in_memory = GetParam()}; }

  test::TempDir dir_;
  std::unique_ptr<MetaStore> store_ = OpenOrFail(Options());
};

TEST_P(MetaStoreTest, ReadsWhatWasCommitted) {
  ASSERT_TRUE(store_->CommitAndWait(PutOne(Family::kSessions, "s1", "one")).ok());
  const auto found = store_->reader().Get(Family::kSessions, "s1");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, "one");
  EXPECT_EQ(*store_->reader().Get(Family::kSessions, "s2"), std::nullopt);
}

TEST_P(MetaStoreTest, FamiliesAreSeparate) {
  for (int i = 0; i < kFamilyCount; ++i) {
    const auto family = static_cast<Family>(i);
    ASSERT_TRUE(store_->CommitAndWait(PutOne(family, "k", std::string(FamilyName(family)))).ok());
  }
  for (int i = 0; i < kFamilyCount; ++i) {
    const auto family = static_cast<Family>(i);
    EXPECT_EQ(AllRows(*store_, family), (Rows{{"k", std::string(FamilyName(family))}}));
  }
}

TEST_P(MetaStoreTest, KeysAndValuesMayHoldAnyBytes) {
  const std::string key("\0\xff\n", 3);
  const std::string value("\xff\0", 2);
  ASSERT_TRUE(store_->CommitAndWait(PutOne(Family::kRuns, key, value)).ok());
  EXPECT_EQ(*store_->reader().Get(Family::kRuns, key), value);
}

TEST_P(MetaStoreTest, ChangesOfABatchApplyInTheirOrder) {
  ASSERT_TRUE(store_->CommitAndWait(PutOne(Family::kPools, "a/old", "1")).ok());
  MetaBatch batch;
  batch.Put(Family::kPools, "a/first", "1");
  batch.DeletePrefix(Family::kPools, "a/");
  batch.Put(Family::kPools, "a/last", "2");
  batch.Put(Family::kPools, "b", "3");
  batch.Delete(Family::kPools, "b");
  ASSERT_TRUE(store_->CommitAndWait(std::move(batch)).ok());
  EXPECT_EQ(AllRows(*store_, Family::kPools), (Rows{{"a/last", "2"}}));
}

TEST_P(MetaStoreTest, PrefixesEndWhereTheyShould) {
  MetaBatch batch;
  const std::vector<std::string> keys = {"a", "a\xff", "a\xff\xff", std::string("a\xff\xff") + "b",
                                         "b", "\xff",  "\xff\xff"};
  for (const std::string& key : keys) batch.Put(Family::kIndex, key, "");
  ASSERT_TRUE(store_->CommitAndWait(std::move(batch)).ok());
  EXPECT_EQ(AllRows(*store_, Family::kIndex).size(), keys.size());
  EXPECT_EQ(AllRows(*store_, Family::kIndex, "a\xff").size(), 3U);
  EXPECT_EQ(AllRows(*store_, Family::kIndex, "\xff").size(), 2U);
  EXPECT_EQ(AllRows(*store_, Family::kIndex, "c").size(), 0U);
  MetaBatch deletion;
  deletion.DeletePrefix(Family::kIndex, "a\xff");
  ASSERT_TRUE(store_->CommitAndWait(std::move(deletion)).ok());
  EXPECT_EQ(AllRows(*store_, Family::kIndex),
            (Rows{{"a", ""}, {"b", ""}, {"\xff", ""}, {"\xff\xff", ""}}));
}

TEST_P(MetaStoreTest, AScanStopsAtTheVisitorsError) {
  MetaBatch batch;
  for (const char* key : {"a", "b", "c"}) batch.Put(Family::kApps, key, "");
  ASSERT_TRUE(store_->CommitAndWait(std::move(batch)).ok());
  std::string seen;
  const absl::Status status =
      store_->reader().Scan(Family::kApps, "", [&](std::string_view key, std::string_view) {
        seen += key;
        return key == "b" ? Cancelled("enough") : absl::OkStatus();
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(seen, "ab");
}

TEST_P(MetaStoreTest, RowsThatAreReadAreCountedWithTheirKeys) {
  MetaBatch batch;
  batch.Put(Family::kApps, "a", "12");
  batch.Put(Family::kApps, "b", "345");
  batch.Put(Family::kRuns, "a", "6");
  ASSERT_TRUE(store_->CommitAndWait(std::move(batch)).ok());
  const std::int64_t before = store_->read_bytes();
  EXPECT_EQ(*store_->reader().Get(Family::kApps, "none"), std::nullopt);
  EXPECT_EQ(store_->read_bytes(), before);
  EXPECT_EQ(*store_->reader().Get(Family::kApps, "b"), "345");
  EXPECT_EQ(store_->read_bytes(), before + 4);
  EXPECT_EQ(AllRows(*store_, Family::kApps).size(), 2U);
  EXPECT_EQ(store_->read_bytes(), before + 4 + 3 + 4);
}

TEST_P(MetaStoreTest, CallbacksAndTasksRunInOrderOnTheMetadataThread) {
  std::vector<int> order;
  std::thread::id metadata_thread;
  {
    const HeldThread held(*store_);
    for (int i = 0; i < 30; ++i) {
      const auto note = [&order, i] { order.push_back(i); };
      if (i % 7 == 3) {
        ASSERT_TRUE(
            store_
                ->Run([&, i, note](MetaReader& reader) {
                  note();
                  metadata_thread = std::this_thread::get_id();
                  // The batch before is visible, the one behind is not.
                  EXPECT_NE(*reader.Get(Family::kRuns, std::to_string(i - 1)), std::nullopt);
                  EXPECT_EQ(*reader.Get(Family::kRuns, std::to_string(i + 1)), std::nullopt);
                })
                .ok());
      } else {
        ASSERT_TRUE(store_
                        ->Commit(PutOne(Family::kRuns, std::to_string(i), "x"),
                                 [note](const absl::Status& status) {
                                   EXPECT_TRUE(status.ok()) << status;
                                   note();
                                 })
                        .ok());
      }
    }
    EXPECT_TRUE(order.empty());
  }
  Settle(*store_);
  ASSERT_EQ(order.size(), 30U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_NE(metadata_thread, std::this_thread::get_id());
}

TEST_P(MetaStoreTest, QueuedBatchesAreWrittenTogether) {
  const std::int64_t before = store_->stats().group_count;
  {
    const HeldThread held(*store_);
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(store_
                      ->Commit(PutOne(Family::kRuns, std::to_string(i), "x"),
                               [](const absl::Status& status) { EXPECT_TRUE(status.ok()); })
                      .ok());
    }
    EXPECT_EQ(store_->stats().queued_count, 100);
  }
  Settle(*store_);
  EXPECT_EQ(store_->stats().group_count - before, 1);
  EXPECT_EQ(store_->stats().batch_count, 100);
  EXPECT_EQ(AllRows(*store_, Family::kRuns).size(), 100U);
}

TEST_P(MetaStoreTest, AFullQueueAnswersUnavailable) {
  std::atomic<int> done = 0;
  const auto count = [&](const absl::Status&) { ++done; };
  int taken = 0;
  {
    const HeldThread held(*store_);
    while (store_->Commit(PutOne(Family::kRuns, std::to_string(taken), "x"), count).ok()) ++taken;
    EXPECT_EQ(taken, kMetaQueueCountMax);
    EXPECT_EQ(store_->Commit({}, count).code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(store_->Run([](MetaReader&) {}).code(), absl::StatusCode::kUnavailable);
  }
  while (!store_->Run([](MetaReader&) {}).ok()) std::this_thread::yield();
  Settle(*store_);
  EXPECT_EQ(done, taken);
  EXPECT_EQ(static_cast<int>(AllRows(*store_, Family::kRuns).size()), taken);
}

TEST_P(MetaStoreTest, TheQueueIsBoundedInBytesToo) {
  std::int64_t queued_bytes = 0;
  const HeldThread held(*store_);
  for (;;) {
    MetaBatch batch = PutOne(Family::kRuns, "k", std::string(300'000, 'x'));
    const std::int64_t size = batch.size_bytes();
    if (!store_->Commit(std::move(batch), [](const absl::Status&) {}).ok()) break;
    queued_bytes += size;
    ASSERT_LT(queued_bytes, 2 * kMetaQueueBytesMax);
  }
  EXPECT_GE(queued_bytes, kMetaQueueBytesMax);
}

TEST_P(MetaStoreTest, ClosingFinishesWhatIsQueued) {
  int done = 0;
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(store_
                    ->Commit(PutOne(Family::kRuns, std::to_string(i), "x"),
                             [&](const absl::Status& status) { done += status.ok() ? 1 : 0; })
                    .ok());
  }
  store_.reset();
  EXPECT_EQ(done, 50);
}

TEST_P(MetaStoreTest, TheStoreIdIsSetOnceAndChecked) {
  const std::string id(16, '\x01');
  ASSERT_TRUE(CheckStoreId(*store_, id, "/data/extents").ok());
  EXPECT_TRUE(CheckStoreId(*store_, id, "/data/extents").ok());
  const absl::Status other = CheckStoreId(*store_, std::string(16, '\x02'), "/data/extents");
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(ToStd(other.message()).find("/data/extents belongs to another store"),
            std::string_view::npos)
      << other;
  EXPECT_EQ(*store_->reader().Get(Family::kConfig, "store_id"), id);
}

TEST_P(MetaStoreTest, RandomBatchesAgreeWithAModel) {
  std::mt19937_64 random(test::TestSeed());
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::vector<Rows> model(kFamilyCount);
  for (int i = 0; i < 150; ++i) {
    MetaBatch batch;
    for (std::size_t change = 0; change < 1 + below(10); ++change) {
      const auto family = static_cast<Family>(below(kFamilyCount));
      Rows& rows = model[static_cast<std::size_t>(family)];
      const std::string key = fmt::format("{}/{}", below(5), below(20));
      if (below(8) == 0) {
        const std::string prefix = key.substr(0, 2);
        batch.DeletePrefix(family, prefix);
        std::erase_if(rows, [&](const auto& row) { return row.first.starts_with(prefix); });
      } else if (below(4) == 0) {
        batch.Delete(family, key);
        rows.erase(key);
      } else {
        rows[key] = std::string(below(2000), static_cast<char>('a' + below(26)));
        batch.Put(family, key, rows[key]);
      }
    }
    ASSERT_TRUE(store_->CommitAndWait(std::move(batch)).ok());
    if (!GetParam() && below(30) == 0) {
      store_.reset();
      store_ = OpenOrFail(Options());
    }
  }
  for (int i = 0; i < kFamilyCount; ++i) {
    EXPECT_EQ(AllRows(*store_, static_cast<Family>(i)), model[static_cast<std::size_t>(i)])
        << FamilyName(static_cast<Family>(i));
  }
}

INSTANTIATE_TEST_SUITE_P(Places, MetaStoreTest, testing::Values(false, true),
                         [](const auto& test) { return test.param ? "Memory" : "Disk"; });

TEST(MetaBatchDeathTest, APrefixThatHasNoEndIsAProgrammersError) {
  MetaBatch batch;
  EXPECT_DEATH(batch.DeletePrefix(Family::kRuns, ""), "prefix");
  EXPECT_DEATH(batch.DeletePrefix(Family::kRuns, "\xff\xff"), "prefix");
}

TEST(MetaFamilies, KeepTheirNames) {
  std::string names;
  for (int i = 0; i < kFamilyCount; ++i) {
    names += fmt::format("{} ", FamilyName(static_cast<Family>(i)));
  }
  EXPECT_EQ(names, "apps sessions segments clusters pools runs index adapters coretrieval config ");
}

TEST(MetaStoreInMemory, LeavesNothingBehind) {
  const test::TempDir dir;
  OpenOrFail({.path = dir.File("meta"), .in_memory = true});
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(MetaStoreOnDisk, ASecondOpenIsUnavailable) {
  const test::TempDir dir;
  const auto store = OpenOrFail({.path = dir.File("meta")});
  const absl::Status status = MetaStore::Open({.path = dir.File("meta")}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(ToStd(status.message()).find(dir.File("meta")), std::string_view::npos) << status;
}

TEST(MetaStoreOnDisk, DamagedFilesAreDataLoss) {
  const test::TempDir dir;
  OpenOrFail({.path = dir.File("meta")});
  for (const auto& entry : std::filesystem::directory_iterator(dir.File("meta"))) {
    if (!entry.path().filename().string().starts_with("MANIFEST")) continue;
    std::fstream manifest(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    manifest.seekp(20);
    manifest.put('!');
  }
  const absl::Status status = MetaStore::Open({.path = dir.File("meta")}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

TEST(MetaStoreOnDisk, AnUnusableDirectoryIsAnError) {
  const test::TempDir dir;
  std::ofstream(dir.File("meta")) << "a file";
  const absl::Status status = MetaStore::Open({.path = dir.File("meta")}).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(ToStd(status.message()).find(dir.File("meta")), std::string_view::npos) << status;
}

// Its own share of the DRAM budget: it may not grow with what it stores.
TEST(MetaStoreOnDisk, MemoryStaysBoundedWhileRowsGrow) {
  const test::TempDir dir;
  const auto store = OpenOrFail({.path = dir.File("meta")});
  std::mt19937_64 random(test::TestSeed());
  std::int64_t most = 0;
  for (int i = 0; i < 400; ++i) {
    MetaBatch batch;
    for (int row = 0; row < 100; ++row) {
      std::string value(1000, '\0');
      for (char& byte : value) byte = static_cast<char>(random());
      const auto family = static_cast<Family>(random() % kFamilyCount);
      batch.Put(family, fmt::format("{:016x}", random()), std::move(value));
    }
    ASSERT_TRUE(store->CommitAndWait(std::move(batch)).ok());
    store->reader().Get(Family::kPools, fmt::format("{:016x}", random())).status().IgnoreError();
    const MetaStats stats = store->stats();
    most =
        std::max(most, stats.block_cache_bytes + stats.memtable_bytes + stats.table_reader_bytes);
  }
  std::cout << "most memory: " << most << " bytes for 40 MB of rows\n";
  EXPECT_LE(most, std::int64_t{4} << 20);
  // All of it went through the log, and most of it has left the memtables.
  const MetaWriteStats written = store->write_stats();
  EXPECT_GT(written.log_bytes, std::int64_t{40} * 1000 * 1000);
  EXPECT_GT(written.table_bytes, std::int64_t{30} * 1000 * 1000);
}

// Rows of each family, in many tables of two levels, as RocksDB's default compaction leaves them.
void WriteWithLevels(const std::string& path, int table_count) {
  rocksdb::DBOptions options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  families.reserve(kFamilyCount + 1);
  for (int i = 0; i < kFamilyCount; ++i) {
    families.emplace_back(std::string(FamilyName(static_cast<Family>(i))),
                          rocksdb::ColumnFamilyOptions());
  }
  families.emplace_back(rocksdb::kDefaultColumnFamilyName, rocksdb::ColumnFamilyOptions());
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* opened = nullptr;
  ASSERT_TRUE(rocksdb::DB::Open(options, path, families, &handles, &opened).ok());
  const std::unique_ptr<rocksdb::DB> db(opened);
  for (int table = 0; table < table_count; ++table) {
    for (std::size_t i = 0; i < kFamilyCount; ++i) {
      ASSERT_TRUE(db->Put({}, handles[i], fmt::format("{:06}", table), "of a level").ok());
      ASSERT_TRUE(db->Flush({}, handles[i]).ok());
    }
  }
  for (rocksdb::ColumnFamilyHandle* const handle : handles) {
    ASSERT_TRUE(db->DestroyColumnFamilyHandle(handle).ok());
  }
  ASSERT_TRUE(db->Close().ok());
}

TEST(MetaStoreOnDisk, AStoreOfLevelsGoesOn) {
  const test::TempDir dir;
  constexpr int kTables = 12;
  WriteWithLevels(dir.File("meta"), kTables);
  Rows expected;
  for (int table = 0; table < kTables; ++table)
    expected[fmt::format("{:06}", table)] = "of a level";
  for (int day = 0; day < 6; ++day) {
    const auto store = OpenOrFail({.path = dir.File("meta")});
    EXPECT_EQ(AllRows(*store, Family::kClusters), expected) << "on day " << day;
    const std::string key = fmt::format("{:06}", day);
    MetaBatch batch;
    batch.DeletePrefix(Family::kClusters, key);
    batch.Put(Family::kClusters, "new" + key, "of today");
    ASSERT_TRUE(store->CommitAndWait(std::move(batch)).ok());
    expected.erase(key);
    expected["new" + key] = "of today";
    EXPECT_EQ(AllRows(*store, Family::kClusters), expected) << "on day " << day;
  }
}

std::int64_t TableCount(const std::string& path) {
  std::int64_t count = 0;
  for (const auto& file : std::filesystem::directory_iterator(path)) {
    if (file.path().extension() == ".sst") ++count;
  }
  return count;
}

// Each close leaves a table of each family that was written. What is being merged at a close is
// given up, so that there must be later ones, too.
TEST(MetaStoreOnDisk, TablesOfADailyUseAreMerged) {
  const test::TempDir dir;
  constexpr int kDays = 30;
  constexpr int kDaysMax = 300;
  constexpr std::int64_t kTablesMax = std::int64_t{8} * kFamilyCount;
  int day = 0;
  for (; day < kDaysMax; ++day) {
    if (day >= kDays && TableCount(dir.File("meta")) <= kTablesMax) break;
    const auto store = OpenOrFail({.path = dir.File("meta")});
    MetaBatch batch;
    for (int i = 0; i < kFamilyCount; ++i) {
      batch.Put(static_cast<Family>(i), fmt::format("{:06}", day), "a new conversation's row");
    }
    ASSERT_TRUE(store->CommitAndWait(std::move(batch)).ok());
  }
  std::cout << TableCount(dir.File("meta")) << " tables after " << day << " days\n";
  EXPECT_LE(TableCount(dir.File("meta")), kTablesMax);
  const auto store = OpenOrFail({.path = dir.File("meta")});
  EXPECT_EQ(std::ssize(AllRows(*store, Family::kRuns)), day);
}

// Nor about one in a directory that is not there yet.
TEST(MetaStoreLogTest, NewStoresHaveNothingToComplainAbout) {
  const test::TempDir directory;
  for (const bool in_memory : {true, false}) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const auto store = MetaStore::Open(
        {.path = in_memory ? "/cairn-ram" : directory.File("meta"), .in_memory = in_memory});
    const std::string said =
        testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
    EXPECT_TRUE(store.ok()) << store.status();
    EXPECT_EQ(said.find("metadata store says"), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace cairn::kv
