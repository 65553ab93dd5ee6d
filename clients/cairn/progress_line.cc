#include "clients/cairn/progress_line.h"

#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include "common/command/output.h"

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

void ProgressPace::Note(std::int64_t done, std::chrono::nanoseconds time) {
  const Sample sample{static_cast<double>(done), std::chrono::duration<double>(time).count()};
  // What was done twice as often lies twice as far apart: so the middle is found, and few are kept.
  constexpr std::size_t kSamplesMax = 256;
  if (samples_.size() == kSamplesMax) {
    for (std::size_t i = 1; i < kSamplesMax / 2; ++i) samples_[i] = samples_[2 * i];
    samples_.resize(kSamplesMax / 2);
  }
  samples_.push_back(sample);
}

const ProgressPace::Sample& ProgressPace::Middle() const {
  const double half = (samples_.front().done + samples_.back().done) / 2;
  const auto behind =
      std::upper_bound(samples_.begin(), samples_.end(), half,
                       [](double done, const Sample& sample) { return done < sample.done; });
  return *(behind - 1);
}

// As if `n` units took a * n + b * n * n seconds, which the middle and the end give. Not less than
// the pace so far: b is no less than 0.
double ProgressPace::SecondsLeft(double total) const {
  const Sample& first = samples_.front();
  const Sample& last = samples_.back();
  const Sample& middle = Middle();
  const double n1 = middle.done - first.done;
  const double n2 = last.done - first.done;
  const double t1 = middle.seconds - first.seconds;
  const double t2 = last.seconds - first.seconds;
  const double rest = total - last.done;
  double b = n1 > 0 && n1 < n2 ? (t2 / n2 - t1 / n1) / (n2 - n1) : 0;
  b = std::clamp(b, 0.0, t2 / (n2 * n2));
  const double a = t2 / n2 - b * n2;
  return a * rest + b * rest * (2 * n2 + rest);
}

std::string ProgressPace::Text(std::int64_t total, std::string_view unit) const {
  const Sample& last = samples_.back();
  std::string text = fmt::format("{:.0f}/{} {}", last.done, total, unit);
  constexpr double kToldFromSeconds = 1;  // before that it means nothing
  const double seconds = last.seconds - samples_.front().seconds;
  if (seconds < kToldFromSeconds || last.done <= samples_.front().done) return text;
  const Sample& middle = Middle();
  const double rate = (last.done - middle.done) / std::max(last.seconds - middle.seconds, 1e-9);
  text += fmt::format(", {:.{}f}/s", rate, rate < 10 ? 1 : 0);
  const auto left =
      static_cast<std::int64_t>(std::min(1e9, SecondsLeft(static_cast<double>(total)) + 0.5));
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
    pace_ = ProgressPace();
    told_tenths_ = -1;
  }
  pace_.Note(done, now - start_);
  const std::string text = pace_.Text(total, unit);
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
