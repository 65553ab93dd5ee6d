#include "tests/tools/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/base/check.h"

namespace cairn::test {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

Process::Process(const std::vector<std::string>& argv,
                 const std::vector<std::string>& environment) {
  int ends[2];
  CAIRN_CHECK_EQ(::pipe2(ends, O_CLOEXEC), 0);
  pipe_ = ends[0];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::vector<std::string> arguments = argv;
  std::vector<std::string> variables = environment;
  for (char** variable = environ; *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  const int error = ::posix_spawn(&pid_, argv[0].c_str(), &actions, nullptr,
                                  Pointers(arguments).data(), Pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  CAIRN_CHECK_EQ(error, 0);
}

Process::~Process() {
  if (running()) Kill();
  ::close(pipe_);
}

absl::StatusOr<bool> Process::ReadSome(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  pollfd event{pipe_, POLLIN, 0};
  const int ready = ::poll(&event, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
  if (ready < 0 && errno == EINTR) return true;
  if (ready == 0) return DeadlineExceeded("nothing more came; output so far:\n{}", output_);
  char bytes[4096];
  const ssize_t count = ::read(pipe_, bytes, sizeof(bytes));
  if (count <= 0) return false;
  output_.append(bytes, static_cast<std::size_t>(count));
  return true;
}

absl::StatusOr<std::string> Process::WaitForLine(const std::string& text) {
  const auto deadline = std::chrono::steady_clock::now() + kProcessTimeMax;
  while (true) {
    const std::size_t found = output_.find(text);
    const std::size_t end = found == std::string::npos ? found : output_.find('\n', found);
    if (end != std::string::npos) {
      const std::size_t before = output_.rfind('\n', found);
      const std::size_t begin = before == std::string::npos ? 0 : before + 1;
      return output_.substr(begin, end - begin);
    }
    CAIRN_ASSIGN_OR_RETURN(const bool more, ReadSome(deadline));
    if (!more) return Unavailable("the process ended without \"{}\":\n{}", text, output_);
  }
}

void Process::Signal(int number) const {
  // kill() with -1 would signal every process of this user.
  CAIRN_CHECK(running());
  CAIRN_CHECK_EQ(::kill(pid_, number), 0);
}

void Process::Hang() const {
  Signal(SIGSTOP);
  siginfo_t stopped{};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED | WEXITED | WNOWAIT) < 0) {
    CAIRN_CHECK_EQ(errno, EINTR);
  }
}

int Process::Reap() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0) CAIRN_CHECK_EQ(errno, EINTR);
  pid_ = -1;
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

void Process::Kill() {
  Signal(SIGKILL);
  Reap();
}

absl::StatusOr<int> Process::Wait() {
  const auto deadline = std::chrono::steady_clock::now() + kProcessTimeMax;
  // The end of its output is the end of the process: nobody else holds the pipe.
  absl::StatusOr<bool> more = true;
  while (more.ok() && *more) more = ReadSome(deadline);
  if (!more.ok()) {
    Kill();
    return more.status();
  }
  return Reap();
}

std::string BinaryPath(const std::string& name) { return std::string(CAIRN_BIN_DIR "/") + name; }

}  // namespace cairn::test
