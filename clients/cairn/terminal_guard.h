// TerminalGuard remembers how a terminal was found and puts it back: at its own end, when a signal
// ends the process, and for as long as Ctrl-Z stops it. It also asks the terminal to mark what is
// pasted ("bracketed paste"), so that a pasted text is not taken for lines that were typed.
//
// Threading:  make, use and destroy it on the main thread; its signals may come on any.
#pragma once

namespace cairn::cli {

class TerminalGuard {
 public:
  // Of the terminal `fd`. One at a time.
  explicit TerminalGuard(int fd);
  ~TerminalGuard();
  TerminalGuard(const TerminalGuard&) = delete;
  TerminalGuard& operator=(const TerminalGuard&) = delete;

  // The terminal's settings of now are those that it gets again after a stop.
  void Keep();
  // Whether the window has another size, or the process goes on after a stop, since this was asked
  // last. Both wake (see Wake()).
  bool TakeResized();
  bool TakeResumed();
};

// As the guard found it, if there is one. Async-signal-safe.
void RestoreTerminal();

}  // namespace cairn::cli
