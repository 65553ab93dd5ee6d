#include "clients/cairn/interrupts.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "clients/cairn/terminal_guard.h"

namespace cairn::cli {
namespace {

CancelToken& InterruptToken() {
  static CancelToken token;
  return token;
}

void OnInterrupt(int number) {
  if (InterruptToken().cancelled()) {
    RestoreTerminal();
    ::signal(number, SIG_DFL);
    ::raise(number);
    return;
  }
  InterruptToken().Cancel();
  Wake();
}

}  // namespace

InterruptCancels::InterruptCancels() {
  Reset();
  struct sigaction action {};
  action.sa_handler = OnInterrupt;
  // Not restarting makes a waiting read return.
  sigaction(SIGINT, &action, &before_);
}

InterruptCancels::~InterruptCancels() { sigaction(SIGINT, &before_, nullptr); }

void InterruptCancels::Reset() {
  InterruptToken().Reset();
  ClearWake();  // also makes what the handler writes to
}

void InterruptCancels::Cancel() { InterruptToken().Cancel(); }

const CancelToken* InterruptCancels::token() const { return &InterruptToken(); }

int WakeFd() {
  static const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return fd;
}

void ClearWake() {
  std::uint64_t ignored = 0;
  [[maybe_unused]] const auto read = ::read(WakeFd(), &ignored, sizeof(ignored));
}

void Wake() {
  const int before = errno;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(WakeFd(), &one, sizeof(one));
  errno = before;
}

}  // namespace cairn::cli
