#include "common/daemon/program.h"

#include <malloc.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <filesystem>

#include "common/base/check.h"
#include "common/base/printable.h"
#include "common/daemon/sd_notify.h"
#include "common/log/log.h"

namespace cairn {
namespace {

constexpr int kExitOk = 0;
constexpr int kExitCannotStart = 1;
constexpr int kExitUsage = 2;

// Who starts where a person sees it, while the log is a file; empty: nobody.
std::string& SeenStarting() {
  static std::string name;
  return name;
}

// Libraries abort without a word where memory is short. Only what a signal's handler may call.
void OnAbort(int /*number*/) {
  constexpr std::string_view kWords =
      "aborted; what is stored is whole. If no line above says why, there was too little memory: "
      "see "
      "ulimit -v, MemoryMax and the like\n";
  static_cast<void>(!::write(STDERR_FILENO, kWords.data(), kWords.size()));
  ::signal(SIGABRT, SIG_DFL);
  ::raise(SIGABRT);
}

int CannotStart(std::string_view name, const absl::Status& status, int exit_code) {
  PrintError(fmt::format("{} cannot start: {}\n", name, Message(status)));
  return exit_code;
}

absl::Status LogTo(const std::string& name, const std::string& log_level, const std::string& file) {
  const std::string folder = std::filesystem::path(file).parent_path().string();
  if (!folder.empty()) CAIRN_RETURN_IF_ERROR(MakeDirectory(folder, "directory of log_path"));
  return InitLogging(name, log_level, file);
}

}  // namespace

int RunProgram(std::string_view name, int argc, const char* const* argv,
               absl::StatusOr<Action> (*read)(Arguments arguments)) {
  try {
    ::signal(SIGABRT, OnAbort);
    // Nobody else may read what a daemon writes; sockets get their own mode.
    ::umask(0077);
    const absl::StatusOr<Action> action = read({argv + 1, static_cast<std::size_t>(argc) - 1});
    if (!action.ok()) return CannotStart(name, action.status(), kExitUsage);
    const absl::Status status = (*action)();
    return status.ok() ? kExitOk : CannotStart(name, status, kExitCannotStart);
  } catch (const std::exception& error) {
    PrintError(fmt::format("{}: {}\n", name, error.what()));
    return kExitCannotStart;
  }
}

void TuneMemory(const MemoryTuning& tuning) {
  // The defaults give each of gRPC's threads a heap of its own, and keep what was freed for later:
  // memory that counts against the budget for keys and values. So one heap, and what is free
  // at its end beyond a limit goes back.
  constexpr int kArenaCount = 1;
  constexpr int kTopPadBytes = 64 << 10;
  // NOLINTBEGIN(concurrency-mt-unsafe): called before threads start.
  CAIRN_CHECK(mallopt(M_ARENA_MAX, kArenaCount) == 1);
  CAIRN_CHECK(mallopt(M_MMAP_THRESHOLD, tuning.mmap_threshold_bytes) == 1);
  CAIRN_CHECK(mallopt(M_TRIM_THRESHOLD, tuning.trim_threshold_bytes) == 1);
  CAIRN_CHECK(mallopt(M_TOP_PAD, kTopPadBytes) == 1);
  // NOLINTEND(concurrency-mt-unsafe)
}

absl::Status StartLogging(const std::string& name, const std::string& log_level,
                          std::string_view log_path, const Environment& environment) {
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const std::string file = LogFile(log_path, name, terminal, environment);
  if (file.empty()) return InitLogging(name, log_level);
  absl::Status status = LogTo(name, log_level, file);
  if (status.ok()) {
    PrintError(fmt::format("{}: the log is {}\n", name, file));
    if (terminal) {
      SeenStarting() = name;
      ShowProblems(true);
    }
    return status;
  }
  if (log_path != kLogAuto) return status;
  PrintError(fmt::format("{}: {}: the log is shown here\n", name, Message(status)));
  return InitLogging(name, log_level);
}

// Not fmt::print, which throws where nobody reads.
void PrintError(const std::string& text) {
  std::fputs(EscapeControlsInLines(text).c_str(), stderr);
}

void ShowStart(const std::string& text) {
  if (!SeenStarting().empty()) PrintError(fmt::format("{}: {}\n", SeenStarting(), text));
}

absl::Status PrintText(const std::string& text) {
  if (std::fputs(EscapeControlsInLines(text).c_str(), stdout) >= 0 && std::fflush(stdout) == 0)
    return absl::OkStatus();
  return ErrnoStatus(errno, "write to standard output");
}

void ServeUntilSignal(StopSignals& signals, std::string_view description,
                      const std::function<void()>& stop) {
  SdNotify("READY=1");
  LogInfo("ready {}", description);
  if (!SeenStarting().empty()) {
    // From now on the terminal is for others.
    ShowProblems(false);
    ShowStart("ready");
  }
  const int number = signals.Wait();
  LogInfo("stopping signal={}", number);
  SdNotify("STOPPING=1");
  stop();
  LogInfo("stopped");
}

}  // namespace cairn
