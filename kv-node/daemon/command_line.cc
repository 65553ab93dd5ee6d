#include "kv-node/daemon/command_line.h"

#include <array>

#include "kv-node/layout/superblock.h"
#include "kv-node/service/node_identity.h"

namespace cairn::kv {
absl::StatusOr<CommandLine> ParseCommandLine(std::span<const char* const> arguments) {
  CommandLine out;
  const std::array own = {ValueFlag{"--data-dir", &out.data_dir}};
  CAIRN_RETURN_IF_ERROR(ParseDaemonFlags(arguments, own, out));
  return out;
}

std::string HelpText() {
  return
      R"(cairn-kv-node keeps the KV cache of language models on flash and serves it to
compute nodes.

usage: cairn-kv-node [flags]
  --config FILE            configuration file (protobuf text format)
  --data-dir DIR           directory of the store; overrides the file
  --socket PATH            Unix socket to serve; overrides the file
  --log FILE               file for the log, or stderr; without the flag standard error, but where
                           that is a terminal a file, which is named there
  --log-level LEVEL        trace, debug, info, warn or error; overrides the file
  --print-config           print the configuration that would be used, and end
  --print-default-config   print a configuration file with every key and its default, and end
  --version                print the version, and end
  --help                   print this, and end

SIGTERM or SIGINT: ends in order, exit code 0. A second one: ends at once, exit code 130.
Exit code 1: it could not start, 2: the command line or the configuration is wrong; the last line
on stderr says why.

examples:
  cairn-kv-node &
  cairn-kv-node --data-dir /mnt/flash/cairn &
  cairn-kv-node --print-default-config > kv.conf       to be edited for --config kv.conf
)";
}

std::string VersionText() {
  return fmt::format("cairn-kv-node {} (protocol {}, store format {})\n", CAIRN_VERSION,
                     kProtocolVersion, kFormatVersion);
}

}  // namespace cairn::kv
