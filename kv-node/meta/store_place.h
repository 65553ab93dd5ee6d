// StorePlace knows which files a store has been opened from. Who has them open does not notice that
// they were deleted or replaced: it goes on with files that nobody finds again.
//
// Threading:  one thread.
// Blocking:   looks at some files.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace cairn::kv {

class StorePlace {
 public:
  // As they are now. Those that are not there do not count.
  void Remember(const std::vector<std::string>& paths);
  // INTERNAL: names the first that is gone or another one.
  absl::Status Check() const;

 private:
  struct File {
    std::string path;
    dev_t device = 0;
    ino_t inode = 0;
  };
  std::vector<File> files_;
};

// INTERNAL: the file is there and shorter than that. Who has it open does not notice before it
// reads behind the cut.
absl::Status CheckLength(const std::string& path, std::int64_t bytes_min);

}  // namespace cairn::kv
