// StartProgress tells how far a long step of the start is: the log, at each tenth and each few
// seconds, who looks on at a terminal, and systemd, which otherwise ends a daemon that is not ready
// in time. A signal to stop ends the step.
//
// Threading:  main's thread.
// Errors:     CANCELLED a signal to stop came.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/daemon/program.h"

namespace cairn::kv {

inline constexpr std::chrono::seconds kProgressLinesEach{10};
// On a terminal; a step that is done sooner is not worth a line.
inline constexpr std::chrono::seconds kProgressShownEach{3};
// Sent to systemd about each second: that much longer from now.
inline constexpr std::chrono::seconds kExtendTimeout{30};

// As the log and systemd know them.
inline constexpr char kPrefillStep[] = "prefill";
inline constexpr char kMoveStep[] = "move";

class StartProgress {
 public:
  using Tell = std::function<absl::Status(std::int64_t done_bytes, std::int64_t total_bytes)>;

  using Show = std::function<void(const std::string& text)>;

  // `stop_signal` is not 0 once a signal came; it outlives what Of() returns. `show`: at a
  // terminal.
  explicit StartProgress(const std::atomic<int>& stop_signal, Show show = ShowStart,
                         std::chrono::milliseconds show_each = kProgressShownEach)
      : stop_signal_(stop_signal), show_(std::move(show)), show_each_(show_each) {}

  // Of one step: kPrefillStep, kMoveStep.
  Tell Of(const std::string& step, const std::string& path) const;

 private:
  const std::atomic<int>& stop_signal_;
  const Show show_;
  const std::chrono::milliseconds show_each_;
};

}  // namespace cairn::kv
