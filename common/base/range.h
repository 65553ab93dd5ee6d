// A number from outside is checked before use. Pure function.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/status.h"

namespace cairn {

// INVALID_ARGUMENT "NAME is VALUE: it must be MIN to MAX" unless min <= value <= max.
inline absl::Status CheckBetween(std::string_view name, std::int64_t value, std::int64_t min,
                                 std::int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return InvalidArgument("{} is {}: it must be {} to {}", name, value, min, max);
}

}  // namespace cairn
