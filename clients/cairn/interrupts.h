// What signals do to a command: InterruptCancels turns Ctrl-C into a cancellation; Wake tells who
// waits for input that a signal came.
//
// Threading:  make and destroy them on the main thread; signals may come on any.
#pragma once

#include <signal.h>

#include "clients/cpp/cairn_client.h"

namespace cairn::cli {

// Turns Ctrl-C into a cancellation for as long as it lives; a second Ctrl-C ends the process as
// usual. One at a time.
class InterruptCancels {
 public:
  InterruptCancels();
  ~InterruptCancels();
  InterruptCancels(const InterruptCancels&) = delete;
  InterruptCancels& operator=(const InterruptCancels&) = delete;

  // As if Ctrl-C had been pressed.
  void Cancel();
  // As if it had not been: for what comes next.
  void Reset();
  const CancelToken* token() const;
  bool interrupted() const { return token()->cancelled(); }

 private:
  struct sigaction before_ {};
};

// A descriptor that can be read from when a signal came since ClearWake(), whichever thread took
// it: a signal that comes just before a read would not end the read. -1: there is none.
int WakeFd();
void ClearWake();
// Async-signal-safe.
void Wake();

}  // namespace cairn::cli
