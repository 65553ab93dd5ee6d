// Whether what a store has been opened from is still there. Who has files open does not notice that
// they were deleted, replaced or cut: it goes on with what nobody finds again.
//
// Threading:  StorePlace is for one thread, the functions for any.
// Blocking:   looks at some dozens of files.
// Errors:     INTERNAL: names the first file that is gone, another one, or too short.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace rocksdb {
class DB;
}  // namespace rocksdb

namespace cairn::kv {

class StorePlace {
 public:
  // As they are now. Those that are not there do not count.
  void Remember(const std::vector<std::string>& paths);
  absl::Status Check() const;

 private:
  struct File {
    std::string path;
    dev_t device = 0;
    ino_t inode = 0;
  };
  std::vector<File> files_;
};

// Of a file that is there.
absl::Status CheckLength(const std::string& path, std::int64_t bytes_min);

// What a database needs of its folder when it is opened again: tables, logs, the list of tables.
// While it has them open they stay readable, and their rows are gone at the next start.
absl::Status CheckLiveFiles(rocksdb::DB& db);

}  // namespace cairn::kv
