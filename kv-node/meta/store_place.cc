#include "kv-node/meta/store_place.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace cairn::kv {

void StorePlace::Remember(const std::vector<std::string>& paths) {
  files_.clear();
  for (const std::string& path : paths) {
    struct stat file {};
    if (::stat(path.c_str(), &file) == 0) files_.push_back({path, file.st_dev, file.st_ino});
  }
}

absl::Status StorePlace::Check() const {
  for (const File& file : files_) {
    struct stat now {};
    const bool found = ::stat(file.path.c_str(), &now) == 0;
    if (found && now.st_ino == file.inode && now.st_dev == file.device) continue;
    // A disk that does not answer has not lost it.
    if (!found && errno != ENOENT && errno != ENOTDIR) {
      return ErrnoStatus(errno, fmt::format("look for the store's {}", file.path));
    }
    return Internal(
        "{} was {} while cairn-kv-node uses it, and nothing is stored any more: put the right one "
        "back; as long as cairn-kv-node runs, what it has open can be copied from /proc/{}/fd",
        file.path, found ? "replaced" : "deleted or moved", ::getpid());
  }
  return absl::OkStatus();
}

absl::Status CheckLength(const std::string& path, std::int64_t bytes_min) {
  struct stat now {};
  if (::stat(path.c_str(), &now) != 0 || now.st_size >= bytes_min) return absl::OkStatus();
  return Internal(
      "{} was cut from {} to {} bytes while cairn-kv-node uses it, and nothing is stored any more: "
      "stop cairn-kv-node and put a copy of the whole store back; conversations that lie in front "
      "of the cut can still be read",
      path, bytes_min, now.st_size);
}

}  // namespace cairn::kv
