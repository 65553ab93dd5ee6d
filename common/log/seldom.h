// Seldom says when to log of something that goes on for a while: when it begins, and once a minute
// from then on.
//
// Threading:  one thread.
#pragma once

#include <chrono>
#include <optional>

namespace cairn {

inline constexpr std::chrono::seconds kSeldomInterval{60};

class Seldom {
 public:
  using Clock = std::chrono::steady_clock;

  // It happened: whether to log that.
  bool IsDue(Clock::time_point now = Clock::now()) {
    if (told_ && now - *told_ < kSeldomInterval) return false;
    told_ = now;
    return true;
  }

 private:
  std::optional<Clock::time_point> told_;
};

}  // namespace cairn
