#include "common/daemon/program.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <exception>

#include "common/base/printable.h"
#include "common/daemon/sd_notify.h"
#include "common/log/log.h"

namespace cairn {
namespace {

constexpr int kExitOk = 0;
constexpr int kExitCannotStart = 1;

}  // namespace

int RunProgram(std::string_view name, int argc, const char* const* argv,
               absl::Status (*run)(Arguments arguments)) {
  try {
    // Nobody else may read what a daemon writes; sockets get their own mode.
    ::umask(0077);
    const absl::Status status = run({argv + 1, static_cast<std::size_t>(argc) - 1});
    if (status.ok()) return kExitOk;
    PrintError(fmt::format("{} cannot start: {}\n", name, Message(status)));
  } catch (const std::exception& error) {
    PrintError(fmt::format("{}: {}\n", name, error.what()));
  }
  return kExitCannotStart;
}

// Not fmt::print, which throws where nobody reads.
void PrintError(const std::string& text) {
  std::fputs(EscapeControlsInLines(text).c_str(), stderr);
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
  const int number = signals.Wait();
  LogInfo("stopping signal={}", number);
  SdNotify("STOPPING=1");
  stop();
  LogInfo("stopped");
}

}  // namespace cairn
