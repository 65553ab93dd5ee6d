#pragma once

#include <cstdint>

namespace cairn {

// What a disk writes in full or not at all.
inline constexpr std::int64_t kSectorBytes = 512;

}  // namespace cairn
