// What signals do to a command: InterruptCancels turns Ctrl-C into a cancellation; Wake tells who
// waits for input that a signal came.
//
// Threading:  make and destroy them on the main thread; signals may come on any.
#pragma once

#include <signal.h>

#include <cstdint>
#include <forward_list>
#include <string>

#include "clients/cpp/cairn_client.h"

namespace cairn::cli {

// Turns Ctrl-C into a cancellation for as long as it lives. One at a time.
class InterruptCancels {
 public:
  // What another Ctrl-C does before the first was answered: what is waited for may never end, or
  // the one who reads the presses takes them one by one.
  enum class Second : std::uint8_t { kEndsTheProcess, kWaits };

  explicit InterruptCancels(Second second = Second::kEndsTheProcess);
  ~InterruptCancels();
  InterruptCancels(const InterruptCancels&) = delete;
  InterruptCancels& operator=(const InterruptCancels&) = delete;

  // As if Ctrl-C had been pressed.
  void Cancel();
  // One Ctrl-C was answered. Cancelled again at once if another one waits.
  void TakeOne();
  // All were answered: for what comes next.
  void Reset();
  void SetSecond(Second second);
  // What a Ctrl-C that ends the process writes to standard error before. Empty: nothing.
  void SetLastWords(std::string words);
  const CancelToken* token() const;
  bool interrupted() const { return token()->cancelled(); }

 private:
  struct sigaction before_ {};
  // All that were set, for a handler may read any of them.
  std::forward_list<std::string> last_words_;
};

// A descriptor that can be read from when a signal came since ClearWake(), whichever thread took
// it: a signal that comes just before a read would not end the read. -1: there is none.
int WakeFd();
void ClearWake();
// Async-signal-safe.
void Wake();

}  // namespace cairn::cli
