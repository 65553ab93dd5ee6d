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

struct ExtentFileSize {
  std::int64_t size_bytes = 0;  // rounded down to whole pages
  // Writes what is new of the file in full with zeros. Otherwise the space is only reserved.
  bool prefill = true;
  // Optional. How much of what is new is written; an error ends the work, with that error.
  std::function<absl::Status(std::int64_t done_bytes, std::int64_t total_bytes)> progress = nullptr;
};

// Makes the file at least that long; what lies before `begin` stays as it is. What an earlier call
// has written of the space behind it, as far as the file system knows, is not written again. Not
// durable yet. REQUIRES: size_bytes are whole pages.
absl::Status FillSpace(int fd, const std::string& path, std::int64_t begin,
                       const ExtentFileSize& size);

}  // namespace cairn::kv
