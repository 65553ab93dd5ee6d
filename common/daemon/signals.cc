#include "common/daemon/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <ctime>

#include "common/base/thread.h"

namespace cairn {
namespace {

sigset_t StopSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t set = StopSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // A client that went away is an error of a write, not of the process.
  ::signal(SIGPIPE, SIG_IGN);
  // So is a file that becomes longer than `ulimit -f` allows.
  ::signal(SIGXFSZ, SIG_IGN);
  thread_ = StartThread("signals", [this] { Watch(); });
}

StopSignals::~StopSignals() {
  ending_.store(true, std::memory_order_relaxed);
  thread_.join();
}

int StopSignals::Wait() {
  const MutexLock lock(mutex_);
  while (!requested()) came_.Wait(mutex_);
  return number_.load(std::memory_order_relaxed);
}

void StopSignals::Request() {
  const MutexLock lock(mutex_);
  int none = 0;
  number_.compare_exchange_strong(none, SIGTERM);
  came_.NotifyAll();
}

void StopSignals::Watch() {
  const sigset_t set = StopSet();
  // The wait ends now and then so that the destructor is noticed. It looks once more behind that: a
  // second signal that came before the end counts, however soon the end was.
  const timespec interval{.tv_sec = 0, .tv_nsec = 100'000'000};
  for (bool ends = false; !ends;) {
    ends = ending_.load(std::memory_order_relaxed);
    const timespec none{};
    const int number = sigtimedwait(&set, nullptr, ends ? &none : &interval);
    if (number <= 0) continue;
    if (requested()) {
      // Nothing more is promised to anybody: what is on disk is consistent at every moment.
      ::_exit(kExitAborted);
    }
    const MutexLock lock(mutex_);
    number_.store(number, std::memory_order_relaxed);
    came_.NotifyAll();
  }
}

}  // namespace cairn
