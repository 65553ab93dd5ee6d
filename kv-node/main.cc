// cairn-kv-node: the daemon that keeps keys and values on flash. What it does is in kv-node/daemon.
#include <memory>

#include "common/base/status.h"
#include "common/daemon/program.h"
#include "common/daemon/signals.h"
#include "common/io/open_files.h"
#include "common/log/log.h"
#include "common/rpc/grpc_runtime.h"
#include "kv-node/daemon/command_line.h"
#include "kv-node/daemon/config.h"
#include "kv-node/daemon/kv_daemon.h"

namespace cairn::kv {
namespace {

constexpr char kName[] = "cairn-kv-node";

absl::Status Serve(const KvNodeConfig& config, const Environment& environment) {
  TuneMemory({});
  rpc::ChoosePolling();
  CAIRN_RETURN_IF_ERROR(RaiseOpenFilesLimit());
  CAIRN_RETURN_IF_ERROR(StartLogging(kName, config.log_level(), config.log_path(), environment));
  // Before any other thread: threads inherit the blocked signals.
  StopSignals signals;
  const absl::StatusOr<std::unique_ptr<KvDaemon>> started =
      KvDaemon::Start(config, signals.number());
  if (absl::IsCancelled(started.status()) && signals.requested()) {
    LogInfo("stopped while starting reason=\"{}\"", Message(started.status()));
    return absl::OkStatus();
  }
  CAIRN_RETURN_IF_ERROR(started.status());
  const std::unique_ptr<KvDaemon>& daemon = *started;
  ServeUntilSignal(signals,
                   fmt::format("socket={} io_engine={}", config.socket_path(), daemon->io_engine()),
                   [&daemon] { daemon->Stop(); });
  return absl::OkStatus();
}

absl::StatusOr<Action> Read(Arguments arguments) {
  CAIRN_ASSIGN_OR_RETURN(const CommandLine command_line, ParseCommandLine(arguments));
  const Environment environment = ProcessEnvironment();
  if (command_line.help) return Print(HelpText());
  if (command_line.version) return Print(VersionText());
  if (command_line.print_default_config) return Print(DefaultConfigText(environment));
  CAIRN_ASSIGN_OR_RETURN(const KvNodeConfig config, MakeConfig(command_line, environment));
  if (command_line.print_config) return Print(PrintConfig(config));
  return [config, environment] { return Serve(config, environment); };
}

}  // namespace
}  // namespace cairn::kv

int main(int argc, char** argv) {
  return cairn::RunProgram(cairn::kv::kName, argc, argv, cairn::kv::Read);
}
