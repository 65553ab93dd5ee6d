// Process starts a program and watches its output, for tests of the real daemons. Waiting is on
// pipes and on the process itself, never for a guessed time.
//
// Threading:  one thread.
// Ownership:  a process that still runs is killed by the destructor.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace cairn::test {

// No step of a test takes this long unless something is broken.
inline constexpr std::chrono::milliseconds kProcessTimeMax{180000};

class Process {
 public:
  // argv[0] is the program's path. Its stdout and stderr are read together. `environment` is added
  // to this process's ("NAME=value").
  explicit Process(const std::vector<std::string>& argv,
                   const std::vector<std::string>& environment = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Reads output until a line holds `text` and returns that line; DEADLINE_EXCEEDED or UNAVAILABLE
  // (the process ended first) with all output.
  absl::StatusOr<std::string> WaitForLine(const std::string& text);
  void Signal(int number) const;
  // SIGSTOP, and waits until none of its threads goes on.
  void Hang() const;
  // SIGKILL, and waits for its end.
  void Kill();
  // Waits for the end: the exit code, or minus the signal's number. DEADLINE_EXCEEDED kills it.
  absl::StatusOr<int> Wait();
  bool running() const { return pid_ > 0; }
  pid_t pid() const { return pid_; }
  // What it has printed as far as it was read: all of it after Wait.
  const std::string& output() const { return output_; }

 private:
  // False at the end of the output.
  absl::StatusOr<bool> ReadSome(std::chrono::steady_clock::time_point deadline);
  int Reap();

  pid_t pid_ = -1;
  int pipe_ = -1;
  std::string output_;
};

// A program of this build.
std::string BinaryPath(const std::string& name);

}  // namespace cairn::test
