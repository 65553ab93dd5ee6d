#include "common/daemon/program.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/log/log.h"
#include "tests/tools/file_bytes.h"
#include "tests/tools/temp_dir.h"

namespace cairn {
namespace {

// Runs `read` with this standard error; returns the exit code.
int RunWithErrorsTo(int fd, absl::StatusOr<Action> (*read)(Arguments)) {
  const int before = ::dup(STDERR_FILENO);
  EXPECT_EQ(::dup2(fd, STDERR_FILENO), STDERR_FILENO);
  const std::array<const char*, 1> argv = {"program"};
  const int code = RunProgram("program", 1, argv.data(), read);
  EXPECT_EQ(::dup2(before, STDERR_FILENO), STDERR_FILENO);
  ::close(before);
  return code;
}

absl::StatusOr<Action> Refuse(Arguments) { return InvalidArgument("no flag {}", "--x"); }
absl::StatusOr<Action> Fail(Arguments) {
  return [] { return NotFound("no {}", "\x1b[1mstore\nor file"); };
}

// What `read` makes a program say on standard error, and its exit code.
std::pair<int, std::string> RunOf(absl::StatusOr<Action> (*read)(Arguments)) {
  std::array<int, 2> ends = {};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const int code = RunWithErrorsTo(ends[1], read);
  ::close(ends[1]);
  std::string text(4096, '\0');
  text.resize(static_cast<std::size_t>(::read(ends[0], text.data(), text.size())));
  ::close(ends[0]);
  return {code, text};
}

TEST(ProgramTest, SaysWhyItCannotStart) {
  EXPECT_EQ(RunOf(Fail),
            std::pair(1, std::string("program cannot start: no \\u001b[1mstore\nor file\n")));
  EXPECT_EQ(RunOf(Refuse), std::pair(2, std::string("program cannot start: no flag --x\n")));
  EXPECT_EQ(
      RunOf([](Arguments) -> absl::StatusOr<Action> { return [] { return absl::OkStatus(); }; }),
      std::pair(0, std::string()));
}

TEST(ProgramTest, EndsAsUsualWhereNobodyReadsItsErrors) {
  std::signal(SIGPIPE, SIG_IGN);  // as daemons have it
  std::array<int, 2> ends = {};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  ::close(ends[0]);
  EXPECT_EQ(RunWithErrorsTo(ends[1], Fail), 1);
  ::close(ends[1]);
}

// Each test of logging ends with the log on standard error, where others expect it.
class LoggingTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(InitLogging("test", "info").ok()); }

  const test::TempDir directory_;
  const Environment environment_{directory_.path(), "", "", false};
};

TEST_F(LoggingTest, FileGetsTheLogAndStandardErrorItsName) {
  const std::string path = directory_.File("a/b/node.log");
  testing::internal::CaptureStderr();
  ASSERT_TRUE(StartLogging("node", "info", path, environment_).ok());
  LogInfo("checkpoint bytes={}", 5);
  LogDebug("not this");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "node: the log is " + path + "\n");
  EXPECT_THAT(test::BytesOfFile(path), testing::EndsWith(" info node: checkpoint bytes=5\n"));
  // Behind what is there.
  ASSERT_TRUE(StartLogging("node", "info", path, environment_).ok());
  LogInfo("again");
  EXPECT_THAT(test::BytesOfFile(path), testing::HasSubstr("bytes=5\n"));
  EXPECT_THAT(test::BytesOfFile(path), testing::EndsWith("again\n"));
  EXPECT_EQ(std::filesystem::status(path).permissions() & std::filesystem::perms(0077),
            std::filesystem::perms::none);
}

TEST_F(LoggingTest, LogFilesAreBounded) {
  const std::string path = directory_.File("node.log");
  ASSERT_TRUE(StartLogging("node", "info", path, environment_).ok());
  const std::string line(1 << 20, 'x');
  for (std::int64_t bytes = 0; bytes < 3 * kLogFileBytesMax; bytes += std::ssize(line)) {
    LogInfo("{}", line);
  }
  EXPECT_LE(std::filesystem::file_size(path), kLogFileBytesMax);
  EXPECT_LE(std::filesystem::file_size(directory_.File("node.1.log")), kLogFileBytesMax);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_.path()), {}), 2);
}

TEST_F(LoggingTest, FileThatCannotBeWrittenIsAnErrorIfItWasAskedFor) {
  std::ofstream(directory_.File("file")) << "x";
  const std::string path = directory_.File("file/node.log");
  EXPECT_THAT(Message(StartLogging("node", "info", path, environment_)),
              testing::HasSubstr(directory_.File("file") + " (directory of log_path)"));
  EXPECT_THAT(Message(StartLogging("node", "info", directory_.path(), environment_)),
              testing::HasSubstr("open log " + directory_.path()));
}

}  // namespace
}  // namespace cairn
