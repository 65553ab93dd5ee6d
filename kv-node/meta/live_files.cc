#include "kv-node/meta/live_files.h"

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cairn::kv {
namespace {

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

absl::Status CheckLiveFiles(rocksdb::DB& db) {
  std::string missing = FirstMissing(db);
  // It may have been replaced, by the database itself, since it was listed.
  for (int again = 0; again < 3 && !missing.empty(); ++again) {
    const std::string before = std::move(missing);
    missing = FirstMissing(db);
    if (missing == before) {
      return Internal(
          "{} was deleted or moved while cairn-kv-node uses it, and nothing is stored any more: "
          "put the right one back; as long as cairn-kv-node runs, what it has open can be copied "
          "from /proc/{}/fd",
          missing, ::getpid());
    }
  }
  return absl::OkStatus();
}

}  // namespace cairn::kv
