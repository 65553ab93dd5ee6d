// Where daemons keep things, and where daemons and clients meet, when nobody says otherwise.
//
// Threading:  pure functions, but for ProcessEnvironment, what connects and what makes directories.
// Errors:     name the path and the key that it came from.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace cairn {

inline constexpr mode_t kSocketModeMax = 0777;

// What defaults depend on.
struct Environment {
  std::string home;
  std::string xdg_state_home;
  std::string xdg_runtime_dir;
  bool is_root = false;
};
// Reads the process's environment: call before threads start.
Environment ProcessEnvironment();

// /var/lib/cairn for root; else $XDG_STATE_HOME/cairn, without that ~/.local/state/cairn.
std::string DefaultStateDir(const Environment& environment);

// $XDG_RUNTIME_DIR/cairn/NAME; without that variable /run/cairn/NAME for root, else NAME in
// DefaultStateDir: whatever else is configured, so that the programs find each other.
std::string DefaultSocketPath(const Environment& environment, std::string_view name);

// Where a daemon serves NAME that was started in another environment than `environment`, and not at
// `socket_path`; empty: nowhere that is known.
std::string ServedElsewhere(const Environment& environment, const std::string& socket_path,
                            std::string_view name);

// The values of the key `log_path` that are no file.
inline constexpr std::string_view kLogAuto = "auto";
inline constexpr std::string_view kLogToStderr = "stderr";

// The file that a daemon logs to as its key `log_path` says; empty: standard error. "auto":
// standard error too, but where that is a terminal, which then is left to what the user does there,
// NAME.log in /var/log/cairn for root, else in DefaultStateDir.
std::string LogFile(std::string_view log_path, std::string_view name, bool stderr_is_terminal,
                    const Environment& environment);

// The keys `socket_path` and `socket_mode`. INVALID_ARGUMENT names the key.
absl::Status CheckSocketKeys(const std::string& socket_path, mode_t socket_mode);

// The keys `log_path` and `log_level`. INVALID_ARGUMENT names the key.
absl::Status CheckLogKeys(const std::string& log_path, const std::string& log_level);

// Makes a directory with those above it; OK when it is there. `key` says what it is for.
absl::Status MakeDirectory(const std::string& path, std::string_view key);
// A directory or file whose contents only this user may change; OK when it is not there.
// FAILED_PRECONDITION: it is another user's, or others may write to it. That others may read a file
// is logged.
absl::Status CheckPrivate(const std::string& path);
// MakeDirectory for the directory of a socket.
absl::Status MakeSocketDirectory(const std::string& socket_path);

}  // namespace cairn
