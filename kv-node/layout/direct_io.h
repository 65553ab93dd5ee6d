// Whether I/O on a descriptor really bypasses the page cache. A file system may accept O_DIRECT and
// cache all the same, which would double the memory of a KV cache that was put on flash to save
// memory.
#pragma once

#include <string>

#include "common/base/status.h"

namespace cairn::kv {

struct DirectIo {
  bool direct = false;
  std::string reason;  // what was seen, for the log
};

// open() with O_DIRECT, and without it where the file system refuses that. Returns the descriptor.
absl::StatusOr<int> OpenPreferDirect(const std::string& path, int flags, unsigned mode);

// Reads a page of a file that holds at least one. `fd` is from OpenPreferDirect().
absl::StatusOr<DirectIo> VerifyDirect(int fd, const std::string& path);

}  // namespace cairn::kv
