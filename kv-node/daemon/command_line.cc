#include "kv-node/daemon/command_line.h"

#include <array>
#include <string_view>

#include "kv-node/layout/superblock.h"
#include "kv-node/service/node_identity.h"

namespace cairn::kv {
namespace {

struct ValueFlag {
  std::string_view name;
  std::optional<std::string> CommandLine::*target;
};
constexpr std::array kValueFlags = {
    ValueFlag{"--config", &CommandLine::config_path},
    ValueFlag{"--data-dir", &CommandLine::data_dir},
    ValueFlag{"--socket", &CommandLine::socket_path},
    ValueFlag{"--log-level", &CommandLine::log_level},
};

struct ActionFlag {
  std::string_view name;
  CommandLine::Action action;
};
constexpr std::array kActionFlags = {
    ActionFlag{"--print-config", CommandLine::Action::kPrintConfig},
    ActionFlag{"--print-default-config", CommandLine::Action::kPrintDefaultConfig},
    ActionFlag{"--version", CommandLine::Action::kVersion},
    ActionFlag{"--help", CommandLine::Action::kHelp},
};

bool TakeAction(std::string_view argument, CommandLine* out) {
  for (const ActionFlag& flag : kActionFlags) {
    if (argument != flag.name) continue;
    out->action = flag.action;
    return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(std::span<const char* const> arguments) {
  CommandLine out;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (TakeAction(argument, &out)) continue;
    const std::size_t equals = argument.find('=');
    const std::string_view name = argument.substr(0, equals);
    const ValueFlag* found = nullptr;
    for (const ValueFlag& flag : kValueFlags) {
      if (name == flag.name) found = &flag;
    }
    if (found == nullptr) {
      return InvalidArgument("unknown argument {}: --help shows the flags", argument);
    }
    std::string value;
    if (equals != std::string_view::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    } else {
      return InvalidArgument("flag {} needs a value", name);
    }
    if (value.empty()) return InvalidArgument("flag {} needs a value that is not empty", name);
    if ((out.*found->target).has_value()) return InvalidArgument("flag {} is given twice", name);
    out.*found->target = std::move(value);
  }
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
  --log-level LEVEL        trace, debug, info, warn or error; overrides the file
  --print-config           print the configuration that would be used, and end
  --print-default-config   print a configuration file with every key and its default, and end
  --version                print the version, and end
  --help                   print this, and end

SIGTERM or SIGINT: ends in order, exit code 0. A second one: ends at once, exit code 130.
Exit code 1: it could not start; the last line on stderr says why.
)";
}

std::string VersionText() {
  return fmt::format("cairn-kv-node {} (protocol {}, store format {})\n", CAIRN_VERSION,
                     kProtocolVersion, kFormatVersion);
}

}  // namespace cairn::kv
