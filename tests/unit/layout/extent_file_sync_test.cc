// When an extent file is synced: before its name says that it is whole, and before anybody counts
// on what its superblock says.
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kv-node/layout/extent_file.h"
#include "tests/tools/recorded_syncs.h"
#include "tests/tools/temp_dir.h"

namespace cairn::kv {
namespace {

namespace fs = std::filesystem;

class ExtentFileSync : public testing::Test {
 protected:
  // As the kernel names it.
  std::string Directory() const { return fs::canonical(dir_.path()).string(); }
  std::string Path() const { return Directory() + "/" + kExtentFileName; }
  absl::StatusOr<std::unique_ptr<ExtentFile>> Create() const {
    return ExtentFile::Create({.directory = dir_.path()},
                              {.size_bytes = std::int64_t{1} << 20, .prefill = false});
  }
  // What a start would make of the copies that are in the file.
  static absl::StatusOr<SuperblockChoice> CopiesIn(const std::string& path) {
    std::vector<char> pages(2 * kPageBytes);
    std::ifstream(path, std::ios::binary).read(pages.data(), std::ssize(pages));
    const auto bytes = std::as_bytes(std::span(pages));
    return ChooseSuperblock(bytes.first(kPageBytes), bytes.subspan(kPageBytes));
  }

  const test::TempDir dir_;
};

TEST_F(ExtentFileSync, ACreationSyncsTheWholeFileBeforeItsNameAndThenTheDirectory) {
  std::vector<std::string> order;
  const test::RecordedSyncs syncs([&](const std::string& path) {
    if (path == Path() + ".new" && CopiesIn(path).ok()) order.emplace_back("whole file");
    if (path == Path()) order.emplace_back("too late");
    if (path == Directory()) order.emplace_back(fs::exists(Path()) ? "name" : "too early");
  });
  const auto file = Create();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(order, (std::vector<std::string>{"whole file", "name"}));
}

TEST_F(ExtentFileSync, ASuperblockIsSyncedBeforeItsUpdateEnds) {
  const auto file = Create();
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::uint64_t> synced;
  const test::RecordedSyncs syncs([&](const std::string& path) {
    const auto copies = CopiesIn(path);
    ASSERT_TRUE(copies.ok()) << path << copies.status();
    EXPECT_EQ(path, Path());
    synced.push_back(copies->superblock.metadata_sequence);
  });
  for (const std::uint64_t sequence : {17U, 90U}) {
    ASSERT_TRUE((*file)->RecordMetadataSequence(sequence).ok());
    ASSERT_FALSE(synced.empty());
    EXPECT_EQ(synced.back(), sequence);
  }
  EXPECT_EQ(synced.size(), 2U);
}

}  // namespace
}  // namespace cairn::kv
