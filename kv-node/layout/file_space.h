// The space of an extent file: reserved, and written in full where that is wanted, so that later
// writes never allocate and flushes cost less. Used when a file is made and when it grows.
//
// Units:      bytes from the start of the file.
// Blocking:   as long as writing takes.
// Errors:     RESOURCE_EXHAUSTED the disk is full, or a limit forbids a file of that size; what
//             `progress` answers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/base/status.h"

namespace cairn::kv {

struct FileSpace {
  std::int64_t begin = 0;  // what lies before stays as it is
  std::int64_t end = 0;
  // Writes all of it with zeros; otherwise the space is only reserved.
  bool prefill = true;
  // Optional. How much of it is written; an error ends the work, with that error.
  std::function<absl::Status(std::int64_t done_bytes, std::int64_t total_bytes)> progress = nullptr;
};

// Makes the file at least `space.end` long. What an earlier call has written of that space, as far
// as the file system knows, is not written again. Not durable yet.
absl::Status FillSpace(int fd, const std::string& path, const FileSpace& space);

}  // namespace cairn::kv
