// The wall clock, for what is kept in rows. Intervals are measured with std::chrono::steady_clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace cairn {

inline std::int64_t UnixMicroseconds() {
  using std::chrono::microseconds;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<microseconds>(now).count();
}

}  // namespace cairn
