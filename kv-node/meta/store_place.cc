#include "kv-node/meta/store_place.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string_view>

#include <rocksdb/db.h>

namespace cairn::kv {
namespace {

absl::Status Lost(const std::string& path, std::string_view how) {
  return Internal(
      "{} was {} while cairn-kv-node uses it, and nothing is stored any more: put the right one "
      "back; as long as cairn-kv-node runs, what it has open can be copied from /proc/{}/fd",
      path, how, ::getpid());
}

std::vector<std::string> LiveFiles(rocksdb::DB& db) {
  std::vector<std::string> files;
  std::uint64_t manifest_bytes = 0;
  // A database that cannot say it has a fault of its own, which others tell.
  if (!db.GetLiveFiles(files, &manifest_bytes, false).ok()) files.clear();
  return files;
}

std::string FirstMissing(rocksdb::DB& db) {
  for (const std::string& file : LiveFiles(db)) {
    std::string path = db.GetName() + file;
    if (db.GetEnv()->FileExists(path).IsNotFound()) return path;
  }
  // It looks at the file itself.
  std::unique_ptr<rocksdb::LogFile> log;
  if (db.GetCurrentWalFile(&log).IsPathNotFound()) return db.GetName() + "'s newest log";
  return "";
}

}  // namespace

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
    return Lost(file.path, found ? "replaced" : "deleted or moved");
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

absl::Status CheckLiveFiles(rocksdb::DB& db) {
  std::string missing = FirstMissing(db);
  // It may have been replaced, by the database itself, since it was listed.
  for (int again = 0; again < 3 && !missing.empty(); ++again) {
    const std::string before = std::move(missing);
    missing = FirstMissing(db);
    if (missing == before) return Lost(missing, "deleted or moved");
  }
  return absl::OkStatus();
}

}  // namespace cairn::kv
