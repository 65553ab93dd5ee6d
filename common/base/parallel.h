// Work on a range of numbers in several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/base/status.h"

namespace cairn {

// Calls fn(begin, end) for ranges that cover [0, count) and are about equally long, at most
// `thread_count` of them, all at once: the first on the calling thread, the others on threads of
// their own that carry `name` (see StartThread). Waits for all.
//
// Errors: that of the first range that has one.
absl::Status ForEachRange(
    const std::string& name, std::int64_t count, std::int64_t thread_count,
    const std::function<absl::Status(std::int64_t begin, std::int64_t end)>& fn);

}  // namespace cairn
