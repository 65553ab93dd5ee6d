#include "clients/cairn/terminal_guard.h"

#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <string_view>

#include "clients/cairn/interrupts.h"

namespace cairn::cli {
namespace {

constexpr std::string_view kMarkPastes = "\x1b[?2004h";
constexpr std::string_view kDoNotMarkPastes = "\x1b[?2004l";
constexpr std::array kDeadly = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

// What handlers need. Written while no handler is installed, but for `wanted`, of which there are
// two: a handler takes the one that is not being written.
struct State {
  int fd = -1;
  termios found{};
  std::array<termios, 2> wanted{};
  std::atomic<int> current{0};
  std::atomic<bool> active{false};
  std::atomic<bool> resized{false};
  std::atomic<bool> resumed{false};
};

State& Terminal() {
  static State state;
  return state;
}

void Write(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(Terminal().fd, text.data(), text.size());
}

void OnDeath(int number) {
  RestoreTerminal();
  ::raise(number);  // the handler is for one use, so this is the default when it returns
}

void OnResize(int) {
  Terminal().resized.store(true);
  Wake();
}

void OnContinue(int) {
  const int before = errno;
  State& terminal = Terminal();
  ::tcsetattr(terminal.fd, TCSANOW, &terminal.wanted[static_cast<unsigned>(terminal.current)]);
  Write(kMarkPastes);
  terminal.resumed.store(true);
  Wake();
  errno = before;
}

void OnStop(int number);

void Handle(int number, void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigaction(number, &action, nullptr);
}

void HandleStop() {
  // For one use and not blocked meanwhile: raising it again stops the process there.
  Handle(SIGTSTP, OnStop, static_cast<int>(SA_RESETHAND) | SA_NODEFER | SA_RESTART);
}

void OnStop(int number) {
  const int before = errno;
  RestoreTerminal();
  ::raise(number);
  HandleStop();
  errno = before;
}

// Signals that the process was started to ignore, as by nohup, stay so.
bool IsIgnored(int number) {
  struct sigaction action {};
  sigaction(number, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

}  // namespace

TerminalGuard::TerminalGuard(int fd) {
  State& terminal = Terminal();
  terminal.fd = fd;
  ::tcgetattr(fd, &terminal.found);
  ClearWake();
  Keep();
  terminal.active.store(true);
  for (const int number : kDeadly) {
    if (!IsIgnored(number)) Handle(number, OnDeath, static_cast<int>(SA_RESETHAND));
  }
  Handle(SIGWINCH, OnResize, SA_RESTART);
  Handle(SIGCONT, OnContinue, SA_RESTART);
  HandleStop();
  Write(kMarkPastes);
}

TerminalGuard::~TerminalGuard() {
  for (const int number : kDeadly) {
    if (!IsIgnored(number)) ::signal(number, SIG_DFL);
  }
  for (const int number : {SIGWINCH, SIGCONT, SIGTSTP}) ::signal(number, SIG_DFL);
  RestoreTerminal();
  Terminal().active.store(false);
}

void TerminalGuard::Keep() {
  State& terminal = Terminal();
  const int other = 1 - terminal.current.load();
  if (::tcgetattr(terminal.fd, &terminal.wanted[static_cast<unsigned>(other)]) == 0) {
    terminal.current.store(other);
  }
}

bool TerminalGuard::TakeResized() { return Terminal().resized.exchange(false); }
bool TerminalGuard::TakeResumed() { return Terminal().resumed.exchange(false); }

void RestoreTerminal() {
  State& terminal = Terminal();
  if (!terminal.active.load()) return;
  const int before = errno;
  Write(kDoNotMarkPastes);
  ::tcsetattr(terminal.fd, TCSANOW, &terminal.found);
  errno = before;
}

}  // namespace cairn::cli
