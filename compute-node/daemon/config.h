// From defaults, configuration file and flags to what the daemon runs with; and back to text.
//
// Threading:  pure functions; MakeConfig reads the file.
// Errors:     INVALID_ARGUMENT naming file, line and key, or the key and its range; NOT_FOUND no
//             such file.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cairn/config/v1/compute_node.pb.h"
#include "common/base/status.h"
#include "common/daemon/config_file.h"
#include "common/daemon/flags.h"
#include "common/daemon/paths.h"
#include "compute-node/session/options.h"

namespace cairn::compute {

using config::v1::ComputeNodeConfig;

// chat_template's value for a daemon that takes no messages.
inline constexpr std::string_view kNoChatTemplate = "none";

// The flags; everything else is in the configuration file.
struct CommandLine : DaemonFlags {
  std::optional<std::string> model_path;
  std::optional<std::string> kv;
  std::optional<std::string> kv_socket_path;
  std::optional<std::string> threads;
  std::optional<std::string> chat_template;
  std::optional<std::string> http_listen;
  std::optional<std::string> trace_path;
};

// `arguments` without the program's name.
absl::StatusOr<CommandLine> ParseCommandLine(std::span<const char* const> arguments);
std::string HelpText();

// Every field set.
ComputeNodeConfig DefaultConfig(const Environment& environment);
// That as a file that MakeConfig reads, with what each key means.
std::string DefaultConfigText(const Environment& environment);
// Defaults, then the file, then the flags. Every field within its range; the model is not opened.
absl::StatusOr<ComputeNodeConfig> MakeConfig(const CommandLine& command_line,
                                             const Environment& environment);
// REQUIRES: `config` comes from MakeConfig.
SessionOptions ToSessionOptions(const ComputeNodeConfig& config);

}  // namespace cairn::compute
