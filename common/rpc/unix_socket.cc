#include "common/rpc/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace cairn::rpc {
namespace {

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(),
              std::min(path.size(), static_cast<std::size_t>(kSocketPathBytesMax)));
  return address;
}

// The socket interface wants the general type.
const sockaddr* General(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

absl::Status CheckLength(const std::string& path) {
  if (path.empty()) return InvalidArgument("the socket path is empty");
  const auto size = static_cast<std::int64_t>(path.size());
  if (size <= kSocketPathBytesMax) return absl::OkStatus();
  return InvalidArgument(
      "socket path {} has {} bytes, more than the {} that a Unix socket address holds: choose a "
      "shorter directory",
      path, size, kSocketPathBytesMax);
}

absl::Status SocketIsTaken(const std::string& path) {
  return AlreadyExists(
      "socket {} is taken: a running process serves it; stop that one or choose another socket "
      "path",
      path);
}

}  // namespace

absl::Status CheckSocketPath(const std::string& path) {
  if (path.empty()) return InvalidArgument("the socket path is empty");
  if (path.front() != '/') {
    return InvalidArgument("socket path {} is relative: give an absolute path", path);
  }
  constexpr auto kSuffixBytes = static_cast<std::int64_t>(sizeof(kHandshakeSuffix)) - 1;
  const auto size = static_cast<std::int64_t>(path.size());
  if (size + kSuffixBytes <= kSocketPathBytesMax) return absl::OkStatus();
  return InvalidArgument(
      "socket path {} has {} bytes, more than {} (a Unix socket address holds {}, and \"{}\" is "
      "put behind it): choose a shorter directory, such as /run/cairn",
      path, size, kSocketPathBytesMax - kSuffixBytes, kSocketPathBytesMax, kHandshakeSuffix);
}

absl::Status ClaimSocketPath(const std::string& path) {
  CAIRN_RETURN_IF_ERROR(CheckLength(path));
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return ErrnoStatus(errno, fmt::format("look at socket path {}", path));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return AlreadyExists(
        "{} exists and is not a socket: it is left alone; choose another socket path", path);
  }
  absl::StatusOr<UniqueFd> connection = ConnectToSocket(path, std::chrono::milliseconds(0));
  if (connection.ok() || connection.status().code() == absl::StatusCode::kResourceExhausted) {
    return SocketIsTaken(path);
  }
  if (connection.status().code() != absl::StatusCode::kUnavailable &&
      connection.status().code() != absl::StatusCode::kNotFound) {
    return connection.status();
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, fmt::format("remove the stale socket {}", path));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> ListenOnSocket(const std::string& path, mode_t mode) {
  CAIRN_RETURN_IF_ERROR(CheckLength(path));
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "create a Unix socket");
  const sockaddr_un address = AddressOf(path);
  if (::bind(fd.get(), General(address), sizeof(address)) != 0) {
    if (errno == EADDRINUSE) return SocketIsTaken(path);
    return ErrnoStatus(errno, fmt::format("bind socket {}", path));
  }
  // Before listen nobody can connect, so the mode is in force from the first connection on.
  if (::chmod(path.c_str(), mode) != 0) {
    return ErrnoStatus(errno, fmt::format("set mode {:o} of socket {}", mode, path));
  }
  if (::listen(fd.get(), kListenBacklog) != 0) {
    return ErrnoStatus(errno, fmt::format("listen on socket {}", path));
  }
  return fd;
}

absl::StatusOr<UniqueFd> ConnectToSocket(const std::string& path,
                                         std::chrono::milliseconds time_max) {
  CAIRN_RETURN_IF_ERROR(CheckLength(path));
  const int flags = SOCK_STREAM | SOCK_CLOEXEC | (time_max.count() == 0 ? SOCK_NONBLOCK : 0);
  UniqueFd fd(::socket(AF_UNIX, flags, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "create a Unix socket");
  // Bounds the wait for room in the server's backlog; zero would mean for ever, hence the flag.
  constexpr std::int64_t kMillisPerSecond = 1000;
  const timeval timeout{time_max.count() / kMillisPerSecond,
                        time_max.count() % kMillisPerSecond * kMillisPerSecond};
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) != 0) {
    return ErrnoStatus(errno, "set the time limit of a socket");
  }
  const sockaddr_un address = AddressOf(path);
  if (::connect(fd.get(), General(address), sizeof(address)) == 0) return fd;
  if (errno == ECONNREFUSED) return Unavailable("connect to socket {}: nobody serves it", path);
  // The backlog is full: somebody serves it, but slowly.
  if (errno == EAGAIN) return ResourceExhausted("connect to socket {}: its server is busy", path);
  return ErrnoStatus(errno, fmt::format("connect to socket {}", path));
}

}  // namespace cairn::rpc
