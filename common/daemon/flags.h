// The few flags of a daemon: "--name value" or "--name=value", and "--name" alone for actions.
//
// Threading:  pure function.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace cairn {

struct ValueFlag {
  std::string_view name;  // with its dashes
  std::optional<std::string>* value;
};

struct SwitchFlag {
  std::string_view name;
  bool* value;
};

// The flags that every daemon has.
struct DaemonFlags {
  std::optional<std::string> config_path;
  std::optional<std::string> socket_path;
  std::optional<std::string> log_path;
  std::optional<std::string> log_level;
  bool print_config = false;
  bool print_default_config = false;
  bool version = false;
  bool help = false;
};

// `arguments` without the program's name. INVALID_ARGUMENT names the flag that is unknown, empty or
// given twice.
absl::Status ParseFlags(std::span<const char* const> arguments, std::span<const ValueFlag> values,
                        std::span<const SwitchFlag> switches);

// As ParseFlags, for the flags that every daemon has and for the daemon's `own`.
absl::Status ParseDaemonFlags(std::span<const char* const> arguments,
                              std::span<const ValueFlag> own, DaemonFlags& flags);

}  // namespace cairn
