// cairn-kv-node: the daemon that keeps keys and values on flash. What it does is in kv-node/daemon.
#include <memory>

#include "common/base/status.h"
#include "common/daemon/memory_tuning.h"
#include "common/daemon/program.h"
#include "common/daemon/signals.h"
#include "common/log/log.h"
#include "common/rpc/grpc_runtime.h"
#include "kv-node/daemon/command_line.h"
#include "kv-node/daemon/config.h"
#include "kv-node/daemon/kv_daemon.h"

namespace cairn::kv {
namespace {

constexpr char kName[] = "cairn-kv-node";

absl::Status Serve(const KvNodeConfig& config) {
  TuneMemory({});
  rpc::ChoosePolling();
  CAIRN_RETURN_IF_ERROR(InitLogging(kName, config.log_level()));
  // Before any other thread: threads inherit the blocked signals.
  StopSignals signals;
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<KvDaemon> daemon, KvDaemon::Start(config));
  ServeUntilSignal(signals,
                   fmt::format("socket={} io_engine={}", config.socket_path(), daemon->io_engine()),
                   [&daemon] { daemon->Stop(); });
  return absl::OkStatus();
}

absl::Status Run(Arguments arguments) {
  CAIRN_ASSIGN_OR_RETURN(const CommandLine command_line, ParseCommandLine(arguments));
  const Environment environment = ProcessEnvironment();
  if (command_line.help) return PrintText(HelpText());
  if (command_line.version) return PrintText(VersionText());
  if (command_line.print_default_config) {
    return PrintText(ConfigText(DefaultConfig(environment), Comments::kYes));
  }
  CAIRN_ASSIGN_OR_RETURN(const KvNodeConfig config, MakeConfig(command_line, environment));
  if (command_line.print_config) return PrintText(ConfigText(config, Comments::kNo));
  return Serve(config);
}

}  // namespace
}  // namespace cairn::kv

int main(int argc, char** argv) {
  return cairn::RunProgram(cairn::kv::kName, argc, argv, cairn::kv::Run);
}
