#include "common/base/range.h"

namespace cairn {

absl::Status CheckBetween(std::string_view name, std::int64_t value, std::int64_t min,
                          std::int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return InvalidArgument("{} is {}: it must be {} to {}", name, value, min, max);
}

}  // namespace cairn
