// cairn-compute-node: the daemon that runs a model and serves text generation. Flags, signals and
// exit code; what it does is in compute-node/daemon.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <string>

#include "common/base/status.h"
#include "common/daemon/memory_tuning.h"
#include "common/daemon/sd_notify.h"
#include "common/daemon/signals.h"
#include "common/log/log.h"
#include "compute-node/daemon/compute_daemon.h"
#include "compute-node/daemon/config.h"

namespace cairn::compute {
namespace {

constexpr int kExitOk = 0;
constexpr int kExitCannotStart = 1;

int Print(const std::string& text) {
  return std::fputs(text.c_str(), stdout) >= 0 ? kExitOk : kExitCannotStart;
}

int CannotStart(const absl::Status& status) {
  std::fputs(fmt::format("cairn-compute-node cannot start: {}\n", Message(status)).c_str(), stderr);
  return kExitCannotStart;
}

int Serve(const ComputeNodeConfig& config) {
  const absl::Status logging = InitLogging("cairn-compute-node", config.log_level());
  if (!logging.ok()) return CannotStart(logging);
  // Before any other thread: threads inherit the blocked signals.
  StopSignals signals;
  absl::StatusOr<std::unique_ptr<ComputeDaemon>> daemon = ComputeDaemon::Start(config);
  if (!daemon.ok()) return CannotStart(daemon.status());
  const absl::Status ready = (*daemon)->WaitUntilReady(signals.number());
  if (signals.requested()) {
    LogInfo("stopped while loading signal={}", signals.number().load());
    (*daemon)->Stop();
    // A load in progress cannot be interrupted; nothing that it does needs to be finished.
    ::_exit(kExitOk);
  }
  if (!ready.ok()) return CannotStart(ready);
  SdNotify("READY=1");
  LogInfo("ready {}", (*daemon)->Description());
  const int number = signals.Wait();
  LogInfo("stopping signal={}", number);
  SdNotify("STOPPING=1");
  (*daemon)->Stop();
  LogInfo("stopped");
  return kExitOk;
}

int Run(std::span<const char* const> arguments) {
  const absl::StatusOr<CommandLine> command_line = ParseCommandLine(arguments);
  if (!command_line.ok()) return CannotStart(command_line.status());
  if (command_line->help) return Print(HelpText());
  if (command_line->version) return Print("cairn-compute-node " CAIRN_VERSION "\n");
  if (command_line->print_default_config) return Print(ConfigText(DefaultConfig(), true));
  const absl::StatusOr<ComputeNodeConfig> config = MakeConfig(*command_line);
  if (!config.ok()) return CannotStart(config.status());
  if (command_line->print_config) return Print(ConfigText(*config, false));
  return Serve(*config);
}

}  // namespace
}  // namespace cairn::compute

int main(int argc, char** argv) {
  try {
    // Nobody else may read what the daemon writes; the socket gets its own mode.
    ::umask(0077);
    cairn::TuneMemory();
    return cairn::compute::Run({argv + 1, static_cast<std::size_t>(argc) - 1});
  } catch (const std::exception& error) {
    std::fputs("cairn-compute-node: ", stderr);
    std::fputs(error.what(), stderr);
    std::fputs("\n", stderr);
    return 1;
  }
}
