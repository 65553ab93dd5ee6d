// The few flags of cairn-kv-node; everything else is in the configuration file. Pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "common/base/status.h"
#include "common/daemon/flags.h"

namespace cairn::kv {

struct CommandLine : DaemonFlags {
  std::optional<std::string> data_dir;
};

// `arguments` without the program's name. INVALID_ARGUMENT names the flag.
absl::StatusOr<CommandLine> ParseCommandLine(std::span<const char* const> arguments);

std::string HelpText();
std::string VersionText();

}  // namespace cairn::kv
