#include "kv-node/daemon/start_progress.h"

#include "common/daemon/sd_notify.h"
#include "common/log/log.h"

namespace cairn::kv {
namespace {

using std::chrono::steady_clock;

constexpr std::int64_t kTenths = 10;

void AskForMoreTime(const std::string& step, std::int64_t percent) {
  const auto more = std::chrono::microseconds(kExtendTimeout);
  SdNotify(fmt::format("EXTEND_TIMEOUT_USEC={}\nSTATUS={} {} %", more.count(), step, percent));
}

std::string Shown(const std::string& step, std::int64_t done_bytes, std::int64_t total_bytes) {
  constexpr int kMibBits = 20;
  return fmt::format("{} its store, {} of {} MiB", step == kPrefillStep ? "writing" : "moving",
                     done_bytes >> kMibBits, total_bytes >> kMibBits);
}

}  // namespace

StartProgress::Tell StartProgress::Of(const std::string& step, const std::string& path) const {
  constexpr std::int64_t kPercent = 100;
  return [&stop_signal = stop_signal_, show = show_, show_each = show_each_, step, path,
          told_tenth = std::int64_t{0}, told_time = steady_clock::now(),
          shown_time = steady_clock::now(), asked_time = steady_clock::time_point()](
             std::int64_t done_bytes, std::int64_t total_bytes) mutable -> absl::Status {
    const steady_clock::time_point now = steady_clock::now();
    const std::int64_t percent = done_bytes / (total_bytes / kPercent + 1);
    if (now - asked_time >= std::chrono::seconds(1)) {
      asked_time = now;
      AskForMoreTime(step, percent);
    }
    const std::int64_t tenth = percent / kTenths;
    if (tenth != told_tenth || now - told_time >= kProgressLinesEach || done_bytes == total_bytes) {
      told_tenth = tenth;
      told_time = now;
      LogInfo("{} file={} done_bytes={} total_bytes={}", step, path, done_bytes, total_bytes);
    }
    if (now - shown_time >= show_each) {
      shown_time = now;
      show(Shown(step, done_bytes, total_bytes));
    }
    const int signal = stop_signal.load(std::memory_order_relaxed);
    if (signal == 0) return absl::OkStatus();
    return Cancelled("signal {} came while {} of {} was at {} of {} bytes", signal, step, path,
                     done_bytes, total_bytes);
  };
}

}  // namespace cairn::kv
