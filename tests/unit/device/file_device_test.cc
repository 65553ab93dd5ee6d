// Which device a file gets, and what file devices make of a file that changes under them.
#include "kv-node/device/file_device.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "kv-node/device/uring_probe.h"
#include "tests/tools/temp_dir.h"
#include "tests/unit/device/device_testing.h"

namespace cairn::kv {
namespace {

// Makes io_uring_setup do what `action` says, in this process and its children.
void FilterUring(unsigned action) {
  std::array<sock_filter, 4> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),  // the system call's number
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, action),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    std::fprintf(stderr, "no seccomp here");
    std::_Exit(77);
  }
}

class FileDevice : public testing::TestWithParam<IoEngine> {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const UringProbe probe = ProbeUring();
    if (GetParam() == IoEngine::kIoUring && !probe.available) {
      GTEST_SKIP() << "io_uring is refused: " << probe.reason;
    }
    fd_ = open(dir_.File("device").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_EQ(ftruncate(fd_, 16 * kPage), 0);
  }
  void TearDown() override {
    if (fd_ >= 0) close(fd_);
  }

  test::TempDir dir_;
  int fd_ = -1;
};

TEST_P(FileDevice, TakesItsSizeFromTheFile) {
  const auto device = OpenFileDevice(fd_, {.engine = GetParam()});
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->size_bytes(), 16 * kPage);
}

TEST_P(FileDevice, RefusesASizeBeyondTheFile) {
  const auto device = OpenFileDevice(fd_, {.engine = GetParam(), .size_bytes = 17 * kPage});
  EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(FileDevice, RefusesQueueDepthsOutOfRange) {
  for (const int depth : {0, -1, kQueueDepthMax + 1}) {
    const auto device = OpenFileDevice(fd_, {.engine = GetParam(), .queue_depth = depth});
    EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument) << depth;
  }
}

TEST_P(FileDevice, AFileTruncatedUnderItIsAnErrorAndNotZeros) {
  auto device = OpenFileDevice(fd_, {.engine = GetParam()});
  ASSERT_TRUE(device.ok()) << device.status();
  ASSERT_EQ(ftruncate(fd_, 4 * kPage), 0);
  AlignedBuffer out(4 * kPage);
  EXPECT_TRUE(ReadNow(**device, 0, out).ok());
  for (const std::int64_t page : {2, 3, 4, 8}) {  // across the end, and behind it
    const absl::Status status = ReadNow(**device, page * kPage, out);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << page;
    EXPECT_NE(ToStd(status.message()).find(fmt::format("offset {}", page * kPage)),
              std::string_view::npos)
        << status;
  }
  EXPECT_EQ((*device)->stats().error_count, 4);
}

TEST_P(FileDevice, AReadOnlyDescriptorFailsWritesWithTheReason) {
  const int read_only = open(dir_.File("device").c_str(), O_RDONLY | O_CLOEXEC);
  auto device = OpenFileDevice(read_only, {.engine = GetParam()});
  ASSERT_TRUE(device.ok()) << device.status();
  const absl::Status status = WriteNow(**device, kPage, Pattern(kPage, 1));
  EXPECT_FALSE(status.ok());
  const std::string what = "write 4096 bytes at offset 4096 of " + dir_.File("device");
  EXPECT_NE(ToStd(status.message()).find(what), std::string_view::npos) << status;
  device->reset();
  close(read_only);
}

// Only the kernel knows that a pipe cannot be synced: a flush that does not ask it would succeed.
TEST_P(FileDevice, AFlushIsTheKernelsAnswer) {
  std::array<int, 2> pipe_fds{};
  ASSERT_EQ(pipe2(pipe_fds.data(), O_CLOEXEC), 0);
  auto device = OpenFileDevice(pipe_fds[1], {.engine = GetParam()});
  ASSERT_TRUE(device.ok()) << device.status();
  const absl::Status status = FlushNow(**device);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(ToStd(status.message()).find("flush pipe:"), std::string_view::npos) << status;
  device->reset();
  for (const int fd : pipe_fds) close(fd);
}

INSTANTIATE_TEST_SUITE_P(Engines, FileDevice,
                         testing::Values(IoEngine::kThreads, IoEngine::kIoUring),
                         [](const auto& test) {
                           return test.param == IoEngine::kThreads ? "threads" : "io_uring";
                         });

TEST(IoEngine, IsParsedFromItsName) {
  EXPECT_EQ(*ParseIoEngine("auto"), IoEngine::kAuto);
  EXPECT_EQ(*ParseIoEngine("io_uring"), IoEngine::kIoUring);
  EXPECT_EQ(*ParseIoEngine("threads"), IoEngine::kThreads);
  EXPECT_EQ(ParseIoEngine("uring").status().code(), absl::StatusCode::kInvalidArgument);
}

// Prints what each engine choice gives under a filter, and exits with 0 when that is right.
void ExitWithChoices(unsigned action, const std::string& path) {
  FilterUring(action);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (ftruncate(fd, 16 * kPage) != 0) std::_Exit(1);
  const auto demanded = OpenFileDevice(fd, {.engine = IoEngine::kIoUring});
  const auto automatic = OpenFileDevice(fd, {.engine = IoEngine::kAuto});
  std::fprintf(stderr, "%s\n", demanded.status().ToString().c_str());
  const bool refused = demanded.status().code() == absl::StatusCode::kFailedPrecondition;
  const bool fell_back = automatic.ok() && (*automatic)->name() == "threads";
  std::_Exit(refused && fell_back ? 0 : 2);
}

TEST(UringProbeDeathTest, ASeccompFilterThatKillsIsSurvivedAndNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  test::TempDir dir;
  EXPECT_EXIT(ExitWithChoices(SECCOMP_RET_KILL_PROCESS, dir.File("device")),
              testing::ExitedWithCode(0), "killed by signal 31.*seccomp");
}

TEST(UringProbeDeathTest, ASeccompFilterThatRefusesIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  test::TempDir dir;
  EXPECT_EXIT(ExitWithChoices(SECCOMP_RET_ERRNO | EPERM, dir.File("device")),
              testing::ExitedWithCode(0), "Operation not permitted.*seccomp");
}

}  // namespace
}  // namespace cairn::kv
