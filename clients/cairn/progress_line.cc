#include "clients/cairn/progress_line.h"

#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include "clients/cairn/output.h"

namespace cairn::cli {
namespace {

// "45 s", "3 min 20 s", "2 h 5 min".
std::string InWords(std::int64_t seconds) {
  constexpr std::int64_t kMinute = 60;
  constexpr std::int64_t kHour = 60 * kMinute;
  if (seconds < kMinute) return fmt::format("{} s", seconds);
  if (seconds < kHour) return fmt::format("{} min {} s", seconds / kMinute, seconds % kMinute);
  return fmt::format("{} h {} min", seconds / kHour, seconds % kHour / kMinute);
}

}  // namespace

std::string ProgressText(const ProgressNumbers& numbers, std::string_view unit) {
  std::string text = fmt::format("{}/{} {}", numbers.done, numbers.total, unit);
  constexpr std::chrono::seconds kToldFrom{1};  // before that it means nothing
  const double seconds = std::chrono::duration<double>(numbers.time).count();
  const double rate = static_cast<double>(numbers.done - numbers.done_at_start) / seconds;
  if (numbers.time < kToldFrom || !(rate > 0)) return text;
  text += fmt::format(", {:.{}f}/s", rate, rate < 10 ? 1 : 0);
  const auto left = static_cast<std::int64_t>(
      std::min(1e9, static_cast<double>(numbers.total - numbers.done) / rate + 0.5));
  return left > 0 ? text + fmt::format(", {} left", InWords(left)) : text;
}

ProgressLine::ProgressLine(Show show)
    : terminal_(::isatty(STDERR_FILENO) == 1), shown_(terminal_ || show == Show::kAlways) {}

void ProgressLine::Update(std::string_view what, std::int64_t done, std::int64_t total,
                          std::string_view unit) {
  if (!shown_ || total <= 0) return;
  const Clock::time_point now = Clock::now();
  if (what != what_) {
    what_ = what;
    start_ = now;
    done_at_start_ = done;
    told_tenths_ = -1;
  }
  const std::string text = ProgressText({done, total, done_at_start_, now - start_}, unit);
  if (terminal_) {
    constexpr std::int64_t kBarWidth = 12;
    const auto filled = static_cast<std::size_t>(done * kBarWidth / total);
    WriteNote(fmt::format("\r{} [{:<12}] {}\x1b[K", what, std::string(filled, '#'), text));
    dirty_ = true;
    return;
  }
  const std::int64_t tenths = done * 10 / total;
  if (tenths == told_tenths_) return;
  told_tenths_ = tenths;
  WriteNote(fmt::format("{} {}\n", what, text));
}

void ProgressLine::Say(std::string_view text) {
  if (!shown_) return;
  WriteNote(terminal_ ? fmt::format("\r{}\x1b[K", text) : fmt::format("{}\n", text));
  dirty_ = terminal_;
}

void ProgressLine::Clear() {
  if (!dirty_) return;
  WriteNote("\r\x1b[K");
  dirty_ = false;
}

void ShowRecomputing(ProgressLine& progress, std::int64_t done, std::int64_t total,
                     std::string_view reason) {
  if (!reason.empty()) {
    progress.Clear();
    WriteProblem("cairn", fmt::format("stored keys and values of this conversation are damaged, so "
                                      "its {} tokens are computed again before it goes on: {}",
                                      total, reason));
  }
  progress.Update("computing again", done, total, "tokens");
}

}  // namespace cairn::cli
