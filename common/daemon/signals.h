// StopSignals receives SIGINT and SIGTERM for a daemon: the first one asks it to end in order, a
// second one ends the process at once.
//
// Threading:  make it first thing in main, before any other thread starts: it blocks both signals,
//             and threads inherit that. The rest is safe from any thread.
#pragma once

#include <atomic>
#include <thread>

#include "common/base/mutex.h"

namespace cairn {

// As shells report a death by SIGINT.
inline constexpr int kExitAborted = 130;

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Waits for the first signal (or Request) and returns its number.
  int Wait();
  // As if SIGTERM came, unless a signal did.
  void Request();
  // True once a signal came.
  bool requested() const { return number_.load(std::memory_order_relaxed) != 0; }
  const std::atomic<int>& number() const { return number_; }

 private:
  void Watch();

  std::atomic<int> number_{0};
  Mutex mutex_;
  CondVar came_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace cairn
