// The digest that identifies a model: SHA-256 of its whole file, or, of a split model, of the
// digests of its parts. Hashing gigabytes takes seconds,
// so that the result is kept in a small file under $XDG_CACHE_HOME/cairn (or ~/.cache/cairn), found
// by device, inode, size and the times of modification and of change (which, unlike the former, a
// copy cannot bring along). A cache that is missing, damaged or cannot be
// written only costs the time.
//
// Blocking:   reads the whole files when the cache does not know them.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"

namespace cairn::compute {

inline constexpr std::size_t kModelDigestBytes = 32;

// 32 bytes. `paths`: the file, or the parts of a split model in order.
//
// Errors:     what opening and reading the files answers.
absl::StatusOr<std::string> ModelDigest(const std::vector<std::string>& paths);

// The same with the cache in `cache_directory`; empty means no cache.
absl::StatusOr<std::string> ModelDigestWithCache(const std::vector<std::string>& paths,
                                                 const std::string& cache_directory);

// $XDG_CACHE_HOME/cairn or ~/.cache/cairn; empty if the environment names neither.
std::string DefaultCacheDirectory();

}  // namespace cairn::compute
