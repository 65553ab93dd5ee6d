// An extent file that grows and shrinks, and the power that goes off between any two steps of it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "common/io/aligned_buffer.h"
#include "common/log/log.h"
#include "kv-node/layout/extent_file.h"
#include "kv-node/layout/file_calls.h"
#include "tests/tools/says.h"
#include "tests/tools/seed.h"
#include "tests/tools/temp_dir.h"
#include "tests/tools/volatile_file.h"

namespace cairn::kv {
namespace {

namespace fs = std::filesystem;
using test::Says;

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
constexpr std::int64_t kSmall = kMebibyte;
constexpr std::int64_t kLarge = 3 * kMebibyte;

class ExtentFileResize : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(InitLogging("extent_file_resize_test", "error").ok()); }

  using FileOr = absl::StatusOr<std::unique_ptr<ExtentFile>>;

  FileOr Open() const { return ExtentFile::Open({.directory = dir_.path()}); }
  // As the kernel names it.
  std::string Path() const { return fs::canonical(dir_.path()).string() + "/" + kExtentFileName; }
  std::int64_t Length() const { return static_cast<std::int64_t>(fs::file_size(Path())); }

  // Every data page says which it is.
  void Create(std::int64_t size_bytes) {
    fs::remove(Path());
    auto file = ExtentFile::Create({.directory = dir_.path()},
                                   {.size_bytes = size_bytes, .prefill = false});
    ASSERT_TRUE(file.ok()) << file.status();
    const AlignedBuffer pages = PagesTo(size_bytes);
    const auto data = pages.span().subspan(kFirstDataPage * kPageBytes);
    ASSERT_TRUE(WriteWhole((*file)->fd(), data, kFirstDataPage * kPageBytes, Path()).ok());
  }
  static AlignedBuffer PagesTo(std::int64_t size_bytes) {
    AlignedBuffer pages(size_bytes);
    for (std::int64_t page = 0; page < size_bytes / kPageBytes; ++page) {
      pages.data()[page * kPageBytes + page % kPageBytes] = static_cast<std::byte>(1 + page % 200);
    }
    return pages;
  }
  static void ExpectPages(const ExtentFile& file, std::int64_t size_bytes) {
    const AlignedBuffer expected = PagesTo(size_bytes);
    AlignedBuffer pages(size_bytes);
    ASSERT_TRUE(ReadWhole(file.fd(), pages.span(), 0, file.path()).ok());
    const auto first = static_cast<std::size_t>(kFirstDataPage * kPageBytes);
    EXPECT_TRUE(std::equal(pages.span().begin() + first, pages.span().end(),
                           expected.span().begin() + first));
  }
  // What each copy of the superblock says.
  std::vector<std::int64_t> SizesInCopies() const {
    std::vector<std::int64_t> sizes;
    std::vector<char> page(kPageBytes);
    std::ifstream file(Path(), std::ios::binary);
    for (int copy = 0; copy < kSuperblockCopyCount; ++copy) {
      file.read(page.data(), std::ssize(page));
      const auto decoded = DecodeSuperblock(std::as_bytes(std::span(page)), copy);
      EXPECT_TRUE(decoded.ok()) << decoded.status();
      if (decoded.ok()) sizes.push_back(decoded->page_count * kPageBytes);
    }
    return sizes;
  }

  using Change = std::function<absl::Status(ExtentFile&)>;
  static absl::Status ResizeTo(ExtentFile& file, std::int64_t size_bytes, bool prefill) {
    if (file.size_bytes() < size_bytes) {
      return file.Grow({.size_bytes = size_bytes, .prefill = prefill});
    }
    return file.size_bytes() > size_bytes ? file.Shrink(size_bytes / kPageBytes) : absl::OkStatus();
  }

  // The file dies behind its first step, its second, ... Whatever it looks like then, it is a store
  // of one size or the other with all its pages, and can be made one of the other size.
  void CutAtEveryStep(std::int64_t from, std::int64_t to, bool prefill, bool power_cut,
                      std::uint64_t seed) {
    int step = 0;
    for (bool done = false; !done; ++step) {
      SCOPED_TRACE(fmt::format("step {} of {} to {} bytes", step, from, to));
      ASSERT_NO_FATAL_FAILURE(Create(from));
      test::VolatileFile disk(Path(), seed + static_cast<std::uint64_t>(step));
      {
        auto file = Open();
        ASSERT_TRUE(file.ok()) << file.status();
        disk.DieAfter(step);
        const absl::Status status = ResizeTo(**file, to, prefill);
        EXPECT_TRUE(status.ok() || disk.died()) << status;
        done = !disk.died();
        EXPECT_TRUE((*file)->size_bytes() == to || !status.ok()) << status;
      }
      if (power_cut) disk.PowerCut();
      disk.DieAfter(-1);
      auto file = Open();
      ASSERT_TRUE(file.ok()) << file.status();
      const std::int64_t size_bytes = (*file)->size_bytes();
      EXPECT_TRUE(size_bytes == to || (size_bytes == from && !done)) << size_bytes;
      EXPECT_GE(Length(), size_bytes);
      EXPECT_EQ(SizesInCopies(), (std::vector{size_bytes, size_bytes}));
      ASSERT_NO_FATAL_FAILURE(ExpectPages(**file, std::min(from, to)));
      const absl::Status resized = ResizeTo(**file, to, prefill);
      ASSERT_TRUE(resized.ok()) << resized;
      (*file)->CutBehindEnd();
      EXPECT_EQ(Length(), to);
      EXPECT_EQ(SizesInCopies(), (std::vector{to, to}));
      ASSERT_NO_FATAL_FAILURE(ExpectPages(**file, std::min(from, to)));
    }
    std::cout << step << " steps\n";
    EXPECT_GT(step, 4);
  }

  test::TempDir dir_;
};

TEST_F(ExtentFileResize, AtEveryStepOfGrowingAndShrinkingThePowerMayGoOff) {
  const std::uint64_t seed = test::TestSeed();
  for (const bool power_cut : {false, true}) {
    for (const bool prefill : {false, true}) {
      ASSERT_NO_FATAL_FAILURE(CutAtEveryStep(kSmall, kLarge, prefill, power_cut, seed));
    }
    ASSERT_NO_FATAL_FAILURE(CutAtEveryStep(kLarge, kSmall, false, power_cut, seed));
  }
}

TEST_F(ExtentFileResize, GrowingWritesWhatIsNewAndTellsProgress) {
  ASSERT_NO_FATAL_FAILURE(Create(kSmall));
  std::vector<std::int64_t> seen;
  {
    const auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    const absl::Status grown = (*file)->Grow(
        {.size_bytes = kLarge + 17, .progress = [&](std::int64_t done, std::int64_t total) {
           EXPECT_EQ(total, kLarge - kSmall);
           seen.push_back(done);
           return absl::OkStatus();
         }});
    ASSERT_TRUE(grown.ok()) << grown;
    EXPECT_EQ((*file)->size_bytes(), kLarge);
    EXPECT_FALSE(FirstUnwritten((*file)->fd(), kSmall, kLarge).value_or(kLarge) < kLarge);
  }
  EXPECT_EQ(seen, (std::vector{kMebibyte, 2 * kMebibyte}));
  EXPECT_EQ((*Open())->size_bytes(), kLarge);
}

TEST_F(ExtentFileResize, GrowingThatIsStoppedKeepsTheOldSizeAndGoesOnNextTime) {
  ASSERT_NO_FATAL_FAILURE(Create(kSmall));
  const auto file = Open();
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::Status stopped =
      (*file)->Grow({.size_bytes = 9 * kMebibyte, .progress = [&](std::int64_t done, std::int64_t) {
                       return done < 5 * kMebibyte ? absl::OkStatus() : Cancelled("enough");
                     }});
  EXPECT_EQ(stopped.code(), absl::StatusCode::kCancelled) << stopped;
  EXPECT_EQ((*file)->size_bytes(), kSmall);
  EXPECT_EQ(SizesInCopies(), (std::vector{kSmall, kSmall}));
  ASSERT_EQ(Length(), 9 * kMebibyte);
  const bool known = FirstUnwritten((*file)->fd(), 0, 9 * kMebibyte) != std::nullopt;
  std::vector<std::int64_t> seen;
  const absl::Status grown =
      (*file)->Grow({.size_bytes = 9 * kMebibyte, .progress = [&](std::int64_t done, std::int64_t) {
                       seen.push_back(done);
                       return absl::OkStatus();
                     }});
  ASSERT_TRUE(grown.ok()) << grown;
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.front(), known ? 6 * kMebibyte : kMebibyte);
  EXPECT_EQ(seen.back(), 8 * kMebibyte);
}

TEST_F(ExtentFileResize, GrowingBeyondTheDiskIsRefusedAndLeavesTheFileAsItWas) {
  ASSERT_NO_FATAL_FAILURE(Create(kSmall));
  const auto file = Open();
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::Status status = (*file)->Grow({.size_bytes = std::int64_t{1} << 46});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(Says(status, "70368744177664 bytes large: 70368743129088 bytes are needed"))
      << status;
  EXPECT_TRUE(Says(status, "extent_file_bytes")) << status;
  EXPECT_EQ(Length(), kSmall);
  EXPECT_EQ((*file)->size_bytes(), kSmall);
  ASSERT_NO_FATAL_FAILURE(ExpectPages(**file, kSmall));
}

// Between the two updates of the superblock nobody has used the new size.
TEST_F(ExtentFileResize, AReaderOfAHalfRecordedSizeTakesTheNewerAndWritesNothing) {
  ASSERT_NO_FATAL_FAILURE(Create(kLarge));
  test::VolatileFile disk(Path(), 1);
  {
    const auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    disk.DieAfter(2);  // the first copy, and its flush
    EXPECT_FALSE((*file)->Shrink(kSmall / kPageBytes).ok());
    disk.DieAfter(-1);
  }
  ASSERT_EQ(SizesInCopies(), (std::vector{kLarge, kSmall}));
  EXPECT_EQ((*ExtentFile::Open({.directory = dir_.path(), .read_only = true}))->size_bytes(),
            kSmall);
  EXPECT_EQ(SizesInCopies(), (std::vector{kLarge, kSmall}));
  EXPECT_EQ((*Open())->size_bytes(), kSmall);
  EXPECT_EQ(SizesInCopies(), (std::vector{kSmall, kSmall}));
}

}  // namespace
}  // namespace cairn::kv
