// StartProgress tells how far a long step of the start is: the log, at each tenth and each few
// seconds, and systemd, which otherwise ends a daemon that is not ready in time. A signal to stop
// ends the step.
//
// Threading:  main's thread.
// Errors:     CANCELLED a signal to stop came.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "common/base/status.h"

namespace cairn::kv {

inline constexpr std::chrono::seconds kProgressLinesEach{10};
// Sent to systemd about each second: that much longer from now.
inline constexpr std::chrono::seconds kExtendTimeout{30};

class StartProgress {
 public:
  using Tell = std::function<absl::Status(std::int64_t done_bytes, std::int64_t total_bytes)>;

  // `stop_signal` is not 0 once a signal came; it outlives what Of() returns.
  explicit StartProgress(const std::atomic<int>& stop_signal) : stop_signal_(stop_signal) {}

  // Of one step: "prefill", "move".
  Tell Of(const std::string& step, const std::string& path) const;

 private:
  const std::atomic<int>& stop_signal_;
};

}  // namespace cairn::kv
