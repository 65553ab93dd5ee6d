// How far something is, on standard error: one line that is written over on a terminal, a line for
// each tenth otherwise; with how fast it goes and how long it will still take.
//
// Threading:  one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::cli {

// How fast something goes, and how long it will still take, when each further unit may take longer
// than the one before: reading a token takes as long as what is in front of it is.
class ProgressPace {
 public:
  // So much was done after so much time. REQUIRES: neither is less than the last time.
  void Note(std::int64_t done, std::chrono::nanoseconds time);

  // "1024/12757 tokens, 512/s, 23 s left"; the latter two once they can be told. REQUIRES: Note.
  std::string Text(std::int64_t total, std::string_view unit) const;

 private:
  struct Sample {
    double done = 0;
    double seconds = 0;
  };
  // The last one that has at most half of what was done since the first.
  const Sample& Middle() const;
  // By what the first and the second half took.
  double SecondsLeft(double total) const;

  std::vector<Sample> samples_;
};

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
  ProgressPace pace_;
  std::int64_t told_tenths_ = -1;
};

// That a conversation is computed again: a note with the reason, where there is one, then how far
// it is.
void ShowRecomputing(ProgressLine& progress, std::int64_t done, std::int64_t total,
                     std::string_view reason);

}  // namespace cairn::cli
