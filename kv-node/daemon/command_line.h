// The few flags of cairn-kv-node; everything else is in the configuration file. Pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "common/base/status.h"

namespace cairn::kv {

struct CommandLine {
  enum class Action : std::uint8_t { kRun, kPrintConfig, kPrintDefaultConfig, kVersion, kHelp };
  Action action = Action::kRun;
  std::optional<std::string> config_path;
  std::optional<std::string> data_dir;
  std::optional<std::string> socket_path;
  std::optional<std::string> log_level;
};

// `arguments` without the program's name: "--name value" or "--name=value". INVALID_ARGUMENT names
// the flag.
absl::StatusOr<CommandLine> ParseCommandLine(std::span<const char* const> arguments);

std::string HelpText();
std::string VersionText();

}  // namespace cairn::kv
