#include "common/daemon/paths.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "common/log/log.h"
#include "common/rpc/unix_socket.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before threads start
  return value != nullptr ? value : "";
}

}  // namespace

Environment ProcessEnvironment() {
  return {Variable("HOME"), Variable("XDG_STATE_HOME"), Variable("XDG_RUNTIME_DIR"),
          ::geteuid() == 0};
}

std::string DefaultStateDir(const Environment& environment) {
  if (environment.is_root) return "/var/lib/cairn";
  if (!environment.xdg_state_home.empty()) return environment.xdg_state_home + "/cairn";
  return environment.home + "/.local/state/cairn";
}

std::string DefaultSocketPath(const Environment& environment, std::string_view name) {
  if (!environment.xdg_runtime_dir.empty()) {
    return fmt::format("{}/cairn/{}", environment.xdg_runtime_dir, name);
  }
  return fmt::format("{}/{}", environment.is_root ? "/run/cairn" : DefaultStateDir(environment),
                     name);
}

std::string ServedElsewhere(const Environment& environment, const std::string& socket_path,
                            std::string_view name) {
  Environment other = environment;
  other.xdg_runtime_dir.clear();
  for (const std::string& path :
       {fmt::format("/run/user/{}/cairn/{}", ::geteuid(), name), DefaultSocketPath(other, name),
        fmt::format("/run/cairn/{}", name)}) {
    // A socket stays when its daemon is killed.
    const bool is_served = rpc::ConnectToSocket(path, std::chrono::milliseconds(0)).ok();
    if (is_served && path != socket_path) return path;
  }
  return "";
}

std::string LogFile(std::string_view log_path, std::string_view name, bool stderr_is_terminal,
                    const Environment& environment) {
  if (log_path == kLogToStderr) return "";
  if (log_path != kLogAuto) return std::string(log_path);
  if (!stderr_is_terminal) return "";
  return fmt::format("{}/{}.log",
                     environment.is_root ? "/var/log/cairn" : DefaultStateDir(environment), name);
}

absl::Status CheckSocketKeys(const std::string& socket_path, mode_t socket_mode) {
  CAIRN_RETURN_IF_ERROR(Annotate(rpc::CheckSocketPath(socket_path), "socket_path"));
  if (socket_mode <= kSocketModeMax) return absl::OkStatus();
  return InvalidArgument("socket_mode is 0{:o}: it must be 0 to 0{:o}, with the 0 in front",
                         socket_mode, kSocketModeMax);
}

absl::Status CheckLogKeys(const std::string& log_path, const std::string& log_level) {
  CAIRN_RETURN_IF_ERROR(CheckLogLevel(log_level));
  if (!log_path.empty()) return absl::OkStatus();
  return InvalidArgument("log_path is empty: it must be a file, {} or {}", kLogToStderr, kLogAuto);
}

absl::Status MakeDirectory(const std::string& path, std::string_view key) {
  std::error_code error;
  fs::create_directories(path, error);
  // An existing file in its place is no error to create_directories.
  if (!error && fs::is_directory(path, error)) return absl::OkStatus();
  return ErrnoStatus(error ? error.value() : ENOTDIR,
                     fmt::format("make directory {} ({})", path, key));
}

absl::Status CheckPrivate(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return ErrnoStatus(errno, fmt::format("look at {}", path));
  }
  if (info.st_uid != ::geteuid()) {
    return FailedPrecondition(
        "{} belongs to user {}, and this process runs as user {}: its owner could change what is "
        "stored. Give it to this user (`chown -R {} {}`), or start as that one",
        path, info.st_uid, ::geteuid(), ::geteuid(), path);
  }
  const mode_t mode = info.st_mode & 0777;
  if ((mode & (S_IWGRP | S_IWOTH)) != 0) {
    return FailedPrecondition(
        "{} has mode {:04o}: other users could change what is stored. Take that from them with "
        "`chmod go-w {}`",
        path, mode, path);
  }
  if (S_ISREG(info.st_mode) && (mode & (S_IRGRP | S_IROTH)) != 0) {
    LogWarning("{} has mode {:04o}: other users may read what is stored; `chmod go= {}`", path,
               mode, path);
  }
  return absl::OkStatus();
}

absl::Status MakeSocketDirectory(const std::string& socket_path) {
  return MakeDirectory(fs::path(socket_path).parent_path().string(), "directory of socket_path");
}

}  // namespace cairn
