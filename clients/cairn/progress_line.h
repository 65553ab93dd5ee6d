// How far something is, on standard error: one line that is written over on a terminal, a line for
// each tenth otherwise; with how fast it goes and how long it will still take.
//
// Threading:  one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn::cli {

struct ProgressNumbers {
  std::int64_t done = 0;
  std::int64_t total = 0;
  std::int64_t done_at_start = 0;  // when `time` began
  std::chrono::nanoseconds time{0};
};

// "1024/12757 tokens, 512/s, 23 s left"; the latter two once they can be told.
std::string ProgressText(const ProgressNumbers& numbers, std::string_view unit);

class ProgressLine {
 public:
  enum class Show { kIfTerminal, kAlways };
  explicit ProgressLine(Show show);
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Update(std::string_view what, std::int64_t done, std::int64_t total, std::string_view unit);
  // A text in the line's place, which is less wide than a terminal.
  void Say(std::string_view text);
  // Removes the line from a terminal.
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;

  const bool terminal_;
  const bool shown_;
  bool dirty_ = false;
  std::string what_;
  Clock::time_point start_;
  std::int64_t done_at_start_ = 0;
  std::int64_t told_tenths_ = -1;
};

// That a conversation is computed again: a note with the reason, where there is one, then how far
// it is.
void ShowRecomputing(ProgressLine& progress, std::int64_t done, std::int64_t total,
                     std::string_view reason);

}  // namespace cairn::cli
