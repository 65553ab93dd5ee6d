// What a closed store leaves on the disk, and that an older, damaged or missing one is refused by
// its sequence number before anything is written.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/tools/file_bytes.h"
#include "tests/tools/recorded_syncs.h"
#include "tests/tools/seed.h"
#include "tests/tools/temp_dir.h"
#include "tests/unit/meta/meta_testing.h"

namespace cairn::kv {
namespace {

namespace fs = std::filesystem;

constexpr int kRowCount = 40;

// Names and contents.
std::map<std::string, std::string> FilesIn(const std::string& directory) {
  std::map<std::string, std::string> files;
  if (!fs::exists(directory)) return files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    files[entry.path().filename().string()] = test::BytesOfFile(entry.path());
  }
  return files;
}

class MetaSequence : public testing::Test {
 protected:
  MetaOptions Options(std::uint64_t sequence_min = 0) {
    return {.path = Path(),
            .sequence_min = sequence_min,
            .extent_path = "/data/extents",
            .on_clean_close = [this](std::uint64_t sequence) { closed_ = sequence; }};
  }
  std::string Path() const { return dir_.File("meta"); }

  static void Fill(MetaStore& store) {
    ASSERT_TRUE(CheckStoreId(store, std::string(16, 'i'), "/data/extents").ok());
    for (int i = 0; i < kRowCount; ++i) {
      const auto family = static_cast<Family>(i % kFamilyCount);
      ASSERT_TRUE(
          store.CommitAndWait(PutOne(family, fmt::format("row {}", i), std::string(300, 'v')))
              .ok());
    }
  }
  static bool HasAll(MetaStore& store) {
    for (int i = 0; i < kRowCount; ++i) {
      const auto row =
          store.reader().Get(static_cast<Family>(i % kFamilyCount), fmt::format("row {}", i));
      if (!row.ok() || !row->has_value()) return false;
    }
    return true;
  }
  void MakeClosed() {
    Fill(*OpenOrFail(Options()));
    ASSERT_GT(closed_, 0U);
    files_ = FilesIn(Path());
  }
  // What a killed process leaves: files as they are while the store is open.
  void MakeKilled() {
    const auto store = OpenOrFail(Options());
    Fill(*store);
    files_ = FilesIn(Path());
  }
  void Restore() {
    fs::remove_all(Path());
    fs::create_directory(Path());
    for (const auto& [name, bytes] : files_) std::ofstream(Path() + "/" + name) << bytes;
  }
  std::string NameOf(const std::string& part) const {
    for (const auto& [name, bytes] : files_) {
      if (name.find(part) != std::string::npos) return name;
    }
    ADD_FAILURE() << "no file " << part;
    return "";
  }
  void RemoveLogs() {
    for (const auto& [name, bytes] : files_) {
      if (name.ends_with(".log")) fs::remove(Path() + "/" + name);
    }
  }
  void ExpectRefused(std::uint64_t sequence_min) {
    const auto before = FilesIn(Path());
    const bool there = fs::exists(Path());
    const absl::Status status = MetaStore::Open(Options(sequence_min)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    for (const std::string& text :
         {Path(), std::string("/data/extents"), std::string("restore both from the same backup")}) {
      EXPECT_NE(ToStd(status.message()).find(text), std::string_view::npos) << status;
    }
    EXPECT_EQ(fs::exists(Path()), there);
    EXPECT_EQ(FilesIn(Path()), before) << "a refused open changed files";
  }

  test::TempDir dir_;
  std::uint64_t closed_ = 0;
  std::map<std::string, std::string> files_;
};

// A directory that cannot be looked into may have all that belongs there.
TEST_F(MetaSequence, WhatCannotBeLookedAtIsNotMissing) {
  MakeClosed();
  const std::string aside = dir_.File("aside");
  fs::rename(Path(), aside);
  fs::create_symlink(Path(), Path());  // as a directory without permission, for root too
  const absl::Status status = MetaStore::Open(Options(closed_)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_EQ(Message(status).find("missing"), std::string::npos) << status;
  EXPECT_EQ(Message(status).find("backup"), std::string::npos) << status;
  fs::remove(Path());
  fs::rename(aside, Path());
  EXPECT_TRUE(MetaStore::Open(Options(closed_)).ok());
}

TEST_F(MetaSequence, AClosedStoreNeedsNoLog) {
  MakeClosed();
  for (const auto& [name, bytes] : files_) {
    if (name.ends_with(".log")) {
      EXPECT_EQ(bytes, "") << name;
    }
  }
  RemoveLogs();
  const auto store = OpenOrFail(Options(closed_));
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(HasAll(*store));
  EXPECT_EQ(store->latest_sequence(), closed_);
}

// Otherwise a power cut takes the directory away, with all that was committed in it.
TEST_F(MetaSequence, ANewStoresDirectoryIsSyncedBeforeAnythingIsCommitted) {
  const fs::path parent = fs::canonical(dir_.path());
  bool synced = false;
  const test::RecordedSyncs syncs([&](const std::string& path) {
    synced = synced || (path == parent && fs::exists(Path() + "/CURRENT"));
  });
  const auto store = OpenOrFail(Options());
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(synced);
}

TEST_F(MetaSequence, GarbageInTheLogOfAClosedStoreIsHarmless) {
  MakeClosed();
  std::ofstream(Path() + "/" + NameOf(".log")) << std::string(5000, 'g');
  const auto store = OpenOrFail(Options(closed_));
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(HasAll(*store));
}

TEST_F(MetaSequence, TheSequenceGrowsOverManyOpensAndCloses) {
  MakeClosed();
  std::uint64_t last = closed_;
  for (int i = 0; i < 4; ++i) {
    auto store = OpenOrFail(Options(last));
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(store->latest_sequence(), last);
    store.reset();
    EXPECT_GT(closed_, last);
    last = closed_;
  }
}

TEST_F(MetaSequence, AStoreThatWasNeverWrittenStaysNew) {
  OpenOrFail(Options()).reset();
  EXPECT_EQ(closed_, 0U);
  const auto store = OpenOrFail(Options());
  EXPECT_EQ(store->latest_sequence(), 0U);
  EXPECT_TRUE(CheckStoreId(*store, std::string(16, 'i'), "/data/extents").ok());
}

TEST_F(MetaSequence, MissingMetadataIsRefusedAndNotMade) {
  ExpectRefused(1);
  fs::create_directory(Path());
  ExpectRefused(1);
}

TEST_F(MetaSequence, AStoreWithoutTheFileThatNamesItsManifestIsRefused) {
  MakeClosed();
  fs::remove(Path() + "/CURRENT");
  ExpectRefused(closed_);
}

TEST_F(MetaSequence, AStoreThatLacksAnyOfItsFilesIsRefusedOrWhole) {
  MakeClosed();
  const std::uint64_t sequence = closed_;  // each open and close moves it on
  for (const auto& [name, bytes] : files_) {
    SCOPED_TRACE(name);
    Restore();
    fs::remove(Path() + "/" + name);
    if (name.ends_with(".sst") || name.starts_with("MANIFEST") || name == "CURRENT") {
      ExpectRefused(sequence);
    } else {
      const auto store = OpenOrFail(Options(sequence));
      EXPECT_TRUE(store != nullptr && HasAll(*store));
    }
  }
}

TEST_F(MetaSequence, AnOlderCopyIsRefusedWithBothNumbers) {
  MakeClosed();
  const std::uint64_t old_sequence = closed_;
  ASSERT_TRUE(OpenOrFail(Options())->CommitAndWait(PutOne(Family::kRuns, "k", "v")).ok());
  ASSERT_GT(closed_, old_sequence);
  Restore();
  ExpectRefused(closed_);
  const std::string message(ToStd(MetaStore::Open(Options(closed_)).status().message()));
  EXPECT_NE(message.find(fmt::format("ends with change {}", old_sequence)), std::string::npos);
  EXPECT_NE(message.find(fmt::format("up to change {}", closed_)), std::string::npos) << message;
  EXPECT_NE(OpenOrFail(Options(old_sequence)), nullptr);
}

// A shorter manifest names fewer tables and families, and reads as one whose last write was torn.
TEST_F(MetaSequence, NoBeginningOfTheManifestPassesForTheWhole) {
  MakeClosed();
  const std::string manifest = NameOf("MANIFEST");
  for (std::size_t length = 0; length < files_[manifest].size(); length += 7) {
    SCOPED_TRACE(length);
    Restore();
    fs::resize_file(Path() + "/" + manifest, length);
    ExpectRefused(closed_);
  }
  Restore();
  fs::resize_file(Path() + "/" + manifest, files_[manifest].size() - 1);
  ExpectRefused(closed_);
}

TEST_F(MetaSequence, AFlippedBitOfTheManifestIsNeverTakenForLess) {
  MakeClosed();
  const std::uint64_t sequence = closed_;
  std::mt19937_64 random(test::TestSeed());
  const std::string manifest = NameOf("MANIFEST");
  for (int i = 0; i < 100; ++i) {
    std::string bytes = files_[manifest];
    const std::size_t at = random() % bytes.size();
    bytes[at] = static_cast<char>(bytes[at] ^ 1 << random() % 8);
    SCOPED_TRACE(at);
    Restore();
    std::ofstream(Path() + "/" + manifest) << bytes;
    const auto store = MetaStore::Open(Options(sequence));
    if (store.ok()) {
      EXPECT_TRUE(HasAll(**store));
    } else {
      EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss) << store.status();
    }
  }
}

TEST_F(MetaSequence, AKilledStoreOpensWithAllThatWasAcknowledged) {
  MakeKilled();
  Restore();
  const auto store = OpenOrFail(Options(1 + kRowCount));
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(HasAll(*store));
}

TEST_F(MetaSequence, AKilledStoreWithoutItsLogOrWithDamageBeforeTheSequenceIsRefused) {
  MakeKilled();
  Restore();
  RemoveLogs();
  ExpectRefused(1);
  Restore();
  const std::string log = NameOf(".log");
  ASSERT_GT(files_[log].size(), 1000U);
  std::string bytes = files_[log];
  bytes[bytes.size() / 4] ^= 4;
  std::ofstream(Path() + "/" + log) << bytes;
  ExpectRefused(1 + kRowCount / 2);
}

TEST_F(MetaSequence, AStoreWithRowsAndNoIdIsNotTakenForANewOne) {
  const auto store = OpenOrFail(Options());
  ASSERT_TRUE(store->CommitAndWait(PutOne(Family::kSessions, "k", "v")).ok());
  const absl::Status status = CheckStoreId(*store, std::string(16, 'i'), "/data/extents");
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_EQ(*store->reader().Get(Family::kConfig, "store_id"), std::nullopt);
}

}  // namespace
}  // namespace cairn::kv
