#include "kv-node/layout/extent_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "common/io/aligned_buffer.h"
#include "kv-node/device/file_device.h"
#include "tests/tools/says.h"
#include "tests/tools/temp_dir.h"

namespace cairn::kv {
namespace {

using test::Says;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

class ExtentFileTest : public testing::Test {
 protected:
  ExtentFileOptions Options() const {
    return {.directory = dir_.path(), .lock_wait = std::chrono::milliseconds(0)};
  }
  std::string Path() const { return dir_.File(kExtentFileName); }

  // Creates a file of 3 MiB and closes it.
  StoreId MakeStore(bool prefill = true) {
    auto file = ExtentFile::Create(Options(), {.size_bytes = 3 * kMiB, .prefill = prefill});
    EXPECT_TRUE(file.ok()) << file.status();
    return (*file)->store_id();
  }
  // Whatever the byte was, which may be one of a random id.
  void Damage(std::int64_t offset) {
    const int fd = open(Path().c_str(), O_RDWR | O_CLOEXEC);
    char value = 0;
    EXPECT_EQ(pread(fd, &value, 1, offset), 1);
    value = static_cast<char>(value ^ 0x21);
    EXPECT_EQ(pwrite(fd, &value, 1, offset), 1);
    EXPECT_EQ(close(fd), 0);
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  test::TempDir dir_;
};

TEST_F(ExtentFileTest, OpensWhatWasCreated) {
  const StoreId id = MakeStore();
  const auto file = ExtentFile::Open(Options());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->store_id(), id);
  EXPECT_EQ((*file)->size_bytes(), 3 * kMiB);
  EXPECT_EQ((*file)->page_count(), 3 * kMiB / kPageBytes);
  EXPECT_GT((*file)->superblock().create_time_unix_seconds, 1'700'000'000);
  EXPECT_EQ(Names(), std::vector<std::string>{kExtentFileName});
}

TEST_F(ExtentFileTest, CreationWritesTheFileInFullAndTellsProgress) {
  std::vector<std::int64_t> seen;
  const auto progress = [&](std::int64_t done, std::int64_t total) {
    EXPECT_EQ(total, 5 * kMiB / 2);
    seen.push_back(done);
    return absl::OkStatus();
  };
  const auto file =
      ExtentFile::Create(Options(), {.size_bytes = 5 * kMiB / 2 + 17, .progress = progress});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(seen, (std::vector<std::int64_t>{kMiB, 2 * kMiB, 5 * kMiB / 2}));
  struct stat on_disk {};
  ASSERT_EQ(stat(Path().c_str(), &on_disk), 0);
  EXPECT_EQ(on_disk.st_size, 5 * kMiB / 2);
  EXPECT_GE(on_disk.st_blocks * 512, 5 * kMiB / 2);
}

TEST_F(ExtentFileTest, CreationWithoutPrefillReservesTheSpace) {
  MakeStore(false);
  struct stat on_disk {};
  ASSERT_EQ(stat(Path().c_str(), &on_disk), 0);
  EXPECT_GE(on_disk.st_blocks * 512, 3 * kMiB);
  EXPECT_TRUE(ExtentFile::Open(Options()).ok());
}

TEST_F(ExtentFileTest, PagesWrittenThroughADeviceAreThereAfterReopening) {
  MakeStore();
  AlignedBuffer page(kPageBytes);
  page.data()[7] = std::byte{42};
  {
    const auto file = ExtentFile::Open(Options());
    auto device = OpenFileDevice((*file)->fd(), {.size_bytes = (*file)->size_bytes()});
    ASSERT_TRUE(device.ok()) << device.status();
    absl::Status written = absl::UnknownError("no callback");
    (*device)->SubmitWrite(DeviceOffset((*file)->size_bytes() - kPageBytes), page.span(),
                           [&](const absl::Status& status) { written = status; });
    while ((*device)->in_flight_count() > 0) (*device)->Poll(std::chrono::seconds(1));
    ASSERT_TRUE(written.ok()) << written;
  }
  const auto file = ExtentFile::Open(Options());
  ASSERT_TRUE(file.ok()) << file.status();
  AlignedBuffer out(kPageBytes);
  ASSERT_EQ(pread((*file)->fd(), out.data(), kPageBytes, (*file)->size_bytes() - kPageBytes),
            kPageBytes);
  EXPECT_EQ(out.data()[7], std::byte{42});
}

TEST_F(ExtentFileTest, AMissingFileIsNotFound) {
  const absl::Status status = ExtentFile::Open(Options()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Says(status, Path())) << status;
}

TEST_F(ExtentFileTest, CreationOverAStoreIsRefused) {
  const StoreId id = MakeStore();
  const absl::Status status = ExtentFile::Create(Options(), {.size_bytes = 4 * kMiB}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ((*ExtentFile::Open(Options()))->store_id(), id);
}

TEST_F(ExtentFileTest, SizesOutOfRangeAreRefused) {
  for (const std::int64_t size : {std::int64_t{-1}, std::int64_t{0}, kPageBytes * 15,
                                  (kStorePageCountMax + 1) * kPageBytes}) {
    EXPECT_EQ(ExtentFile::Create(Options(), {.size_bytes = size}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << size;
  }
  EXPECT_TRUE(Names().empty());
}

TEST_F(ExtentFileTest, ADirectoryInUseIsUnavailable) {
  MakeStore();
  auto first = ExtentFile::Open(Options());
  ASSERT_TRUE(first.ok());
  const absl::Status second = ExtentFile::Open(Options()).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Says(second, "another cairn-kv-node uses " + dir_.path())) << second;
  first->reset();
  EXPECT_TRUE(ExtentFile::Open(Options()).ok());
}

TEST_F(ExtentFileTest, WhoUsesADirectoryIsNamed) {
  MakeStore();
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto held = ExtentFile::Open(Options());
    const bool told = write(pipe_ends[1], "x", 1) == 1;
    while (held.ok() && told) pause();
    _exit(1);
  }
  char byte = 0;
  EXPECT_EQ(read(pipe_ends[0], &byte, 1), 1);
  const absl::Status status = ExtentFile::Open(Options()).status();
  EXPECT_TRUE(Says(status, fmt::format("process {} (", child))) << status;
  EXPECT_EQ(kill(child, SIGKILL), 0);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  for (const int end : pipe_ends) close(end);
}

TEST_F(ExtentFileTest, AFileJustCreatedIsLockedToo) {
  const auto file = ExtentFile::Create(Options(), {.size_bytes = kMiB});
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(ExtentFile::Open(Options()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ExtentFileTest, TheLockOutlivesOtherDescriptorsOfTheFile) {
  MakeStore();
  const auto file = ExtentFile::Open(Options());
  close(open(Path().c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(ExtentFile::Open(Options()).status().code(), absl::StatusCode::kUnavailable);
}

// As an io_uring that is being taken apart does.
TEST_F(ExtentFileTest, AClosedStoreIsFreeThoughItsFileIsStillOpen) {
  MakeStore();
  auto first = ExtentFile::Open(Options());
  ASSERT_TRUE(first.ok());
  const int kept = dup((*first)->fd());
  first->reset();
  EXPECT_TRUE(ExtentFile::Open(Options()).ok());
  close(kept);
}

TEST_F(ExtentFileTest, AStoreClosedMeanwhileIsWaitedFor) {
  MakeStore();
  auto first = ExtentFile::Open(Options());
  ASSERT_TRUE(first.ok());
  auto patient = Options();
  patient.lock_wait = std::chrono::seconds(30);
  std::thread closer([&] { first->reset(); });
  EXPECT_TRUE(ExtentFile::Open(patient).ok());
  closer.join();
}

TEST_F(ExtentFileTest, TwoCreatorsAtOnceMakeOneStore) {
  absl::StatusOr<std::unique_ptr<ExtentFile>> inner = absl::UnknownError("not tried");
  const auto outer = ExtentFile::Create(
      Options(), {.size_bytes = kMiB, .progress = [&](std::int64_t, std::int64_t) {
                    inner = ExtentFile::Create(Options(), {.size_bytes = kMiB});
                    return absl::OkStatus();
                  }});
  EXPECT_TRUE(outer.ok()) << outer.status();
  EXPECT_EQ(inner.status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ExtentFileTest, ATruncatedFileNamesBothSizes) {
  MakeStore();
  ASSERT_EQ(truncate(Path().c_str(), 2 * kMiB), 0);
  const absl::Status status = ExtentFile::Open(Options()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Says(status, "truncated: 2097152 bytes, its superblock says 3145728")) << status;
  ASSERT_EQ(truncate(Path().c_str(), 100), 0);
  const absl::Status tiny = ExtentFile::Open(Options()).status();
  EXPECT_EQ(tiny.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Says(tiny, "truncated: 100 bytes")) << tiny;
}

TEST_F(ExtentFileTest, ADamagedSuperblockIsRepairedFromTheOther) {
  for (const std::int64_t copy : {0, 1, 0}) {
    std::filesystem::remove(Path());
    const StoreId id = MakeStore();
    Damage(copy * kPageBytes + 30);
    {
      const auto file = ExtentFile::Open(Options());
      ASSERT_TRUE(file.ok()) << file.status();
      EXPECT_EQ((*file)->store_id(), id);
    }
    // The repaired copy alone is enough now.
    Damage((1 - copy) * kPageBytes + 30);
    const auto file = ExtentFile::Open(Options());
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->store_id(), id);
  }
}

TEST_F(ExtentFileTest, TwoDamagedSuperblocksAreDataLossAndLeftAlone) {
  MakeStore();
  Damage(30);
  Damage(kPageBytes + 30);
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = ExtentFile::Open(Options()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_TRUE(Says(status, Path()) && Says(status, "backup")) << status;
  }
}

TEST_F(ExtentFileTest, AFileThatIsNoExtentFileIsRefused) {
  const int fd = open(Path().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(ftruncate(fd, kMiB), 0);
  close(fd);
  const absl::Status status = ExtentFile::Open(Options()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Says(status, "magic")) << status;
}

TEST_F(ExtentFileTest, UpdatesAlternateBetweenTheCopies) {
  MakeStore();
  {
    const auto file = ExtentFile::Open(Options());
    ASSERT_TRUE(file.ok());
    for (std::uint64_t sequence = 3; sequence < 8; ++sequence) {
      ASSERT_TRUE((*file)->UpdateSuperblock((*file)->superblock()).ok());
      EXPECT_EQ((*file)->superblock().sequence, sequence);
    }
  }
  Damage(kPageBytes + 30);  // 7 is there; 6 is left
  const auto file = ExtentFile::Open(Options());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->superblock().sequence, 7U);  // repaired
}

TEST_F(ExtentFileTest, TheMetadataSequenceIsRememberedAndOneDamagedCopyLosesOneStepAtMost) {
  MakeStore();
  {
    const auto file = ExtentFile::Open(Options());
    ASSERT_TRUE(file.ok());
    EXPECT_EQ((*file)->superblock().metadata_sequence, 0U);
    ASSERT_TRUE((*file)->RecordMetadataSequence(17).ok());
    ASSERT_TRUE((*file)->RecordMetadataSequence(17).ok());
    EXPECT_EQ((*file)->superblock().sequence, 3U) << "nothing new was written";
    ASSERT_TRUE((*file)->RecordMetadataSequence(90).ok());
  }
  EXPECT_EQ((*ExtentFile::Open(Options()))->superblock().metadata_sequence, 90U);
  Damage(56);  // 4 is there; 3 is left
  const auto file = ExtentFile::Open(Options());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->superblock().metadata_sequence, 17U);
}

TEST_F(ExtentFileTest, WhatACrashLeftOfACreationIsTakenOver) {
  const int fd = open((Path() + ".new").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(ftruncate(fd, 7 * kMiB), 0);
  close(fd);
  MakeStore();
  EXPECT_EQ(Names(), std::vector<std::string>{kExtentFileName});
  EXPECT_EQ((*ExtentFile::Open(Options()))->size_bytes(), 3 * kMiB);
}

TEST_F(ExtentFileTest, AKillDuringCreationLeavesNoExtentFile) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto kill_in_the_middle = [](std::int64_t done, std::int64_t) {
    if (done > kMiB) std::raise(SIGKILL);
    return absl::OkStatus();
  };
  EXPECT_EXIT(
      ExtentFile::Create(Options(), {.size_bytes = 3 * kMiB, .progress = kill_in_the_middle})
          .status()
          .IgnoreError(),  // never returns
      testing::KilledBySignal(SIGKILL), "");
}

TEST_F(ExtentFileTest, MoreThanTheDiskHoldsIsRefusedAtOnce) {
  const absl::Status status =
      ExtentFile::Create(Options(), {.size_bytes = std::int64_t{1} << 46}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Says(status, "70368744177664 bytes large: 70368744173568 bytes are needed"))
      << status;
  EXPECT_TRUE(Names().empty());
}

// In a child, because the limit cannot be raised again by everybody.
TEST_F(ExtentFileTest, AFileSizeLimitFailsTheCreationAndLeavesNothing) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit{static_cast<rlim_t>(kMiB), static_cast<rlim_t>(kMiB)};
    setrlimit(RLIMIT_FSIZE, &limit);
    std::signal(SIGXFSZ, SIG_IGN);
    const absl::Status status = ExtentFile::Create(Options(), {.size_bytes = 3 * kMiB}).status();
    std::_Exit(status.code() == absl::StatusCode::kResourceExhausted && Names().empty() ? 0 : 1);
  }
  int wait_status = 0;
  ASSERT_EQ(waitpid(child, &wait_status, 0), child);
  EXPECT_TRUE(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) << wait_status;
}

// A small file system of its own; needs the right to mount.
class SmallFileSystem : public ExtentFileTest {
 protected:
  void SetUp() override {
    if (mount("none", dir_.path().c_str(), "tmpfs", 0, "size=4m") != 0) {
      GTEST_SKIP() << ErrnoStatus(errno, "mount a tmpfs");
    }
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) {
      EXPECT_EQ(umount(dir_.path().c_str()), 0);
    }
  }
  bool mounted_ = false;
};

TEST_F(SmallFileSystem, AFullDiskSaysWhatIsNeededAndFreeAndLeavesNothing) {
  const absl::Status status = ExtentFile::Create(Options(), {.size_bytes = 8 * kMiB}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Says(status, "8388608 bytes large: 8384512 bytes are needed, 4")) << status;
  EXPECT_TRUE(Names().empty());
}

TEST_F(SmallFileSystem, AWriterThatFillsTheDiskMeanwhileDoesNotHurtACreation) {
  std::FILE* other = std::fopen(dir_.File("other").c_str(), "w");
  ASSERT_NE(other, nullptr);
  const auto take_the_rest = [&](std::int64_t, std::int64_t) {
    const std::vector<char> bytes(static_cast<std::size_t>(kMiB));
    while (std::fwrite(bytes.data(), 1, bytes.size(), other) == bytes.size() &&
           std::fflush(other) == 0) {
    }
    return absl::OkStatus();
  };
  const auto file =
      ExtentFile::Create(Options(), {.size_bytes = 3 * kMiB, .progress = take_the_rest});
  EXPECT_TRUE(file.ok()) << file.status();
  std::fclose(other);
}

TEST_F(SmallFileSystem, CachedDirectIoIsNoticed) {
  auto options = Options();
  const auto file = ExtentFile::Create(options, {.size_bytes = kMiB});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE((*file)->direct()) << (*file)->direct_reason();
  options.directory = dir_.File("strict");
  ASSERT_TRUE(std::filesystem::create_directory(options.directory));
  options.require_direct = true;
  const absl::Status status = ExtentFile::Create(options, {.size_bytes = kMiB}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(std::filesystem::is_empty(options.directory));
}

TEST_F(ExtentFileTest, DirectIoIsVerifiedWhereTheFileSystemHasIt) {
  const auto file = ExtentFile::Create(Options(), {.size_bytes = kMiB});
  ASSERT_TRUE(file.ok()) << file.status();
  const bool opened_direct = (fcntl((*file)->fd(), F_GETFL) & O_DIRECT) != 0;
  if (!opened_direct) GTEST_SKIP() << "TMPDIR has no O_DIRECT: " << (*file)->direct_reason();
  EXPECT_FALSE((*file)->direct_reason().empty());
  std::printf("direct=%d reason: %s\n", (*file)->direct(), (*file)->direct_reason().c_str());
}

// As behind a copy: pages of the file are in the page cache, and not all of them go when asked to.
TEST_F(ExtentFileTest, WhatTheCacheHeldBeforeSaysNothingOfDirectIo) {
  MakeStore();
  if (!(*ExtentFile::Open(Options()))->direct()) GTEST_SKIP() << "TMPDIR has no O_DIRECT";
  const int fd = open(Path().c_str(), O_RDONLY | O_CLOEXEC);
  void* const memory = mmap(nullptr, kPageBytes, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(mlock(memory, kPageBytes), 0);  // used elsewhere
  const auto file = ExtentFile::Open(Options());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->direct()) << (*file)->direct_reason();
  munmap(memory, kPageBytes);
  close(fd);
}

}  // namespace
}  // namespace cairn::kv
