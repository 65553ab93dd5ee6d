// cairn-kv-node: the daemon that keeps keys and values on flash. Flags, signals and exit code; what
// it does is in kv-node/daemon.
#include <sys/stat.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/daemon/memory_tuning.h"
#include "common/daemon/sd_notify.h"
#include "common/daemon/signals.h"
#include "common/log/log.h"
#include "kv-node/daemon/command_line.h"
#include "kv-node/daemon/config.h"
#include "kv-node/daemon/kv_daemon.h"

namespace cairn::kv {
namespace {

constexpr int kExitOk = 0;
constexpr int kExitCannotStart = 1;

int Print(const std::string& text) {
  return std::fputs(text.c_str(), stdout) >= 0 ? kExitOk : kExitCannotStart;
}

int CannotStart(const absl::Status& status) {
  std::fputs(fmt::format("cairn-kv-node cannot start: {}\n", Message(status)).c_str(), stderr);
  return kExitCannotStart;
}

int Serve(const KvNodeConfig& config) {
  const absl::Status logging = InitLogging("cairn-kv-node", config.log_level());
  if (!logging.ok()) return CannotStart(logging);
  // Before any other thread: threads inherit the blocked signals.
  StopSignals signals;
  absl::StatusOr<std::unique_ptr<KvDaemon>> daemon = KvDaemon::Start(config);
  if (!daemon.ok()) return CannotStart(daemon.status());
  SdNotify("READY=1");
  LogInfo("ready socket={} io_engine={}", config.socket_path(), (*daemon)->io_engine());
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
  const Environment environment = ProcessEnvironment();
  switch (command_line->action) {
    case CommandLine::Action::kHelp:
      return Print(HelpText());
    case CommandLine::Action::kVersion:
      return Print(VersionText());
    case CommandLine::Action::kPrintDefaultConfig:
      return Print(ConfigText(DefaultConfig(environment), Comments::kYes));
    default:
      break;
  }
  const absl::StatusOr<KvNodeConfig> config = MakeConfig(*command_line, environment);
  if (!config.ok()) return CannotStart(config.status());
  if (command_line->action == CommandLine::Action::kPrintConfig) {
    return Print(ConfigText(*config, Comments::kNo));
  }
  return Serve(*config);
}

}  // namespace
}  // namespace cairn::kv

int main(int argc, char** argv) {
  try {
    cairn::TuneMemory();
    // Nobody else may read what the daemon writes; sockets get their own mode.
    ::umask(0077);
    return cairn::kv::Run({argv + 1, static_cast<std::size_t>(argc) - 1});
  } catch (const std::exception& error) {
    std::fputs("cairn-kv-node: ", stderr);
    std::fputs(error.what(), stderr);
    std::fputs("\n", stderr);
    return 1;
  }
}
