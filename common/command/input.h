// What commands read: whole files up to a limit.
//
// Threading:  pure functions on the file system.
// Errors:     name the file; INVALID_ARGUMENT above the limit.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "common/base/status.h"

namespace cairn::cli {

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using FileHandle = std::unique_ptr<std::FILE, FileCloser>;

// Everything up to the end of `file`, at most `bytes_max`. `name` is for messages.
absl::StatusOr<std::string> ReadAll(std::FILE* file, const std::string& name,
                                    std::int64_t bytes_max);

// The whole file.
absl::StatusOr<std::string> ReadFile(const std::string& path, std::int64_t bytes_max);

// How messages call `path`: "standard input" for "-".
std::string InputName(const std::string& path);

// As ReadFile, but "-" is standard input.
absl::StatusOr<std::string> ReadInput(const std::string& path, std::int64_t bytes_max);

}  // namespace cairn::cli
