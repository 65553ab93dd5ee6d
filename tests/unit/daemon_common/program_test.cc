#include "common/daemon/program.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include <gtest/gtest.h>

namespace cairn {
namespace {

// Runs `run` with this standard error; returns the exit code.
int RunWithErrorsTo(int fd, absl::Status (*run)(Arguments)) {
  const int before = ::dup(STDERR_FILENO);
  EXPECT_EQ(::dup2(fd, STDERR_FILENO), STDERR_FILENO);
  const std::array<const char*, 1> argv = {"program"};
  const int code = RunProgram("program", 1, argv.data(), run);
  EXPECT_EQ(::dup2(before, STDERR_FILENO), STDERR_FILENO);
  ::close(before);
  return code;
}

TEST(ProgramTest, SaysWhyItCannotStart) {
  std::array<int, 2> ends = {};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  EXPECT_EQ(
      RunWithErrorsTo(ends[1],
                      [](Arguments) { return InvalidArgument("no {}", "\x1b[1mstore\nor file"); }),
      1);
  std::array<char, 100> text = {};
  ASSERT_GT(::read(ends[0], text.data(), text.size() - 1), 0);
  EXPECT_STREQ(text.data(), "program cannot start: no \\u001b[1mstore\nor file\n");
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(ProgramTest, EndsAsUsualWhereNobodyReadsItsErrors) {
  std::signal(SIGPIPE, SIG_IGN);  // as daemons have it
  std::array<int, 2> ends = {};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  ::close(ends[0]);
  EXPECT_EQ(RunWithErrorsTo(ends[1], [](Arguments) { return InvalidArgument("no store"); }), 1);
  ::close(ends[1]);
}

}  // namespace
}  // namespace cairn
