// System calls that opening and creating an extent file share.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/base/status.h"

namespace cairn::kv {

// kShared: several may look, while nobody has it exclusively.
enum class LockKind : std::uint8_t { kExclusive, kShared };

// Locks the open file description, until it is unlocked or its last descriptor is closed.
// UNAVAILABLE when another one holds the lock for `wait`.
absl::Status LockExtentFile(int fd, const std::string& directory, std::chrono::milliseconds wait,
                            LockKind kind = LockKind::kExclusive);
void UnlockExtentFile(int fd);

// All of it or an error.
absl::Status ReadWhole(int fd, std::span<std::byte> buffer, std::int64_t offset_bytes,
                       const std::string& path);
absl::Status WriteWhole(int fd, std::span<const std::byte> buffer, std::int64_t offset_bytes,
                        const std::string& path);

// The first of the bytes [begin, end) that was never written, as the file system says: it reads as
// zero without the device. `end`: all were written. nullopt: the file system does not say.
std::optional<std::int64_t> FirstUnwritten(int fd, std::int64_t begin, std::int64_t end);
// Whether there is one in the file's first `size_bytes`; false also where nobody says.
bool HasUnwrittenSpace(int fd, std::int64_t size_bytes);

absl::StatusOr<std::int64_t> FileSize(int fd, const std::string& path);

}  // namespace cairn::kv
