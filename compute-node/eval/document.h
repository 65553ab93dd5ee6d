// The text that policies are compared on: a file, or a document of a tasks file (JSON lines with a
// "context", docs/cairn-bench.md).
//
// Threading:  functions on the file system.
// Errors:     INVALID_ARGUMENT naming file and line; those of opening and reading.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace cairn::eval {

inline constexpr std::int64_t kTextBytesMax = std::int64_t{64} << 20;
inline constexpr std::int64_t kTasksBytesMax = std::int64_t{256} << 20;

absl::StatusOr<std::string> ReadText(const std::string& path);
// The context of the document in line `document`, counted from 0.
absl::StatusOr<std::string> ReadTasksDocument(const std::string& path, std::int64_t document);

}  // namespace cairn::eval
