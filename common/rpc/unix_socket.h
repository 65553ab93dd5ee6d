// Unix sockets of the daemons: paths that are checked before use, stale files told from live
// servers, modes set before anybody can connect.
//
// Threading:  pure functions on the file system; safe from any thread.
// Blocking:   connecting waits at most the given time; the rest does not wait.
// Errors:     every message names the path and says what to do.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace cairn::rpc {

// sun_path has 108 bytes, one of them the terminating zero.
inline constexpr std::int64_t kSocketPathBytesMax = 107;
// A path's directory keeps room for the second socket.
inline constexpr char kHandshakeSuffix[] = ".handshake";
// Only the owner may connect, unless the config says otherwise.
inline constexpr mode_t kSocketModeDefault = 0600;
inline constexpr int kListenBacklog = 64;

// INVALID_ARGUMENT unless the path, with the handshake suffix behind it, fits a socket address.
absl::Status CheckSocketPath(const std::string& path);

// Makes `path` free to bind: removes a socket that no process serves any more. ALREADY_EXISTS when
// a live server answers there, or when the path is something else than a socket.
absl::Status ClaimSocketPath(const std::string& path);

// A listening socket, non-blocking. REQUIRES: ClaimSocketPath succeeded.
absl::StatusOr<UniqueFd> ListenOnSocket(const std::string& path, mode_t mode);

// A connected socket, blocking. NOT_FOUND: nothing is there; UNAVAILABLE: nobody serves it;
// RESOURCE_EXHAUSTED: its server accepted nobody for `time_max` (0: does not wait).
absl::StatusOr<UniqueFd> ConnectToSocket(const std::string& path,
                                         std::chrono::milliseconds time_max);

}  // namespace cairn::rpc
