// cairn-compute-node: the daemon that runs a model and serves text generation. What it does is in
// compute-node/daemon.
#include <unistd.h>

#include <memory>

#include "common/base/status.h"
#include "common/daemon/program.h"
#include "common/daemon/signals.h"
#include "common/io/open_files.h"
#include "common/log/log.h"
#include "common/rpc/grpc_runtime.h"
#include "common/timeline/timeline.h"
#include "compute-node/daemon/compute_daemon.h"
#include "compute-node/daemon/config.h"

namespace cairn::compute {
namespace {

constexpr char kName[] = "cairn-compute-node";
// Messages pass through blocks of 64 KiB and more of gRPC and protobuf; mapping each of them anew
// cost half of a decoding step's processor time. What is larger, as a layer's part of an index,
// would leave holes in the heap.
constexpr MemoryTuning kMemoryTuning{.mmap_threshold_bytes = 256 << 10,
                                     .trim_threshold_bytes = 1 << 20};

// Tokens that clients have seen are not stored, or the daemon could not go on. The log says what.
constexpr int kExitFailed = 1;

void EndTimeline() {
  const absl::Status status = StopTimeline();
  if (!status.ok()) LogWarning("{}", Message(status));
}

absl::Status Serve(const ComputeNodeConfig& config, const Environment& environment) {
  TuneMemory(kMemoryTuning);
  rpc::ChoosePolling();
  CAIRN_RETURN_IF_ERROR(RaiseOpenFilesLimit());
  CAIRN_RETURN_IF_ERROR(StartLogging(kName, config.log_level(), config.log_path(), environment));
  if (!config.trace_path().empty()) {
    CAIRN_RETURN_IF_ERROR(Annotate(StartTimeline(config.trace_path()), "trace_path"));
  }
  // Before any other thread: threads inherit the blocked signals.
  StopSignals signals;
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<ComputeDaemon> daemon, ComputeDaemon::Start(config));
  const absl::Status ready = daemon->WaitUntilReady(signals.number());
  if (signals.requested()) {
    LogInfo("stopped while loading signal={}", signals.number().load());
    daemon->Stop();
    daemon->AwaitUnopened();
    // A load in progress cannot be interrupted; nothing that it does needs to be finished.
    ::_exit(0);
  }
  CAIRN_RETURN_IF_ERROR(ready);
  daemon->SetOnFatal([&signals] { signals.Request(); });
  ServeUntilSignal(signals, daemon->Description(), [&daemon] {
    const ComputeDaemon::Stopped stopped = daemon->Stop();
    if (!daemon->fatal().ok()) LogError("stopped: {}", Message(daemon->fatal()));
    const bool failed = stopped == ComputeDaemon::Stopped::kLost || !daemon->fatal().ok();
    if (stopped == ComputeDaemon::Stopped::kAll && !failed) return;
    EndTimeline();
    ::_exit(failed ? kExitFailed : 0);
  });
  daemon.reset();
  EndTimeline();
  return absl::OkStatus();
}

absl::StatusOr<Action> Read(Arguments arguments) {
  CAIRN_ASSIGN_OR_RETURN(const CommandLine command_line, ParseCommandLine(arguments));
  const Environment environment = ProcessEnvironment();
  if (command_line.help) return Print(HelpText());
  if (command_line.version) return Print("cairn-compute-node " CAIRN_VERSION "\n");
  if (command_line.print_default_config) return Print(DefaultConfigText(environment));
  CAIRN_ASSIGN_OR_RETURN(const ComputeNodeConfig config, MakeConfig(command_line, environment));
  if (command_line.print_config) return Print(PrintConfig(config));
  if (config.model_path().empty()) {
    return InvalidArgument("no model: give --model FILE.gguf, or model_path in the configuration");
  }
  return [config, environment] { return Serve(config, environment); };
}

}  // namespace
}  // namespace cairn::compute

int main(int argc, char** argv) {
  return cairn::RunProgram(cairn::compute::kName, argc, argv, cairn::compute::Read);
}
