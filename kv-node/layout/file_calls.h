// System calls that opening and creating an extent file share.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
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

// Whether the file system says that a part of the file's first `size_bytes` was never written: it
// reads as zeros without the device. False also where the file system does not say.
bool HasUnwrittenSpace(int fd, std::int64_t size_bytes);

}  // namespace cairn::kv
