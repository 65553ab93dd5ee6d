#include "clients/cairn/interrupts.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "clients/cairn/terminal_guard.h"

namespace cairn::cli {
namespace {

CancelToken& InterruptToken() {
  static CancelToken token;
  return token;
}

// For the handler, of which there is one.
struct Presses {
  std::atomic<int> waiting{0};
  std::atomic<bool> second_ends{true};
  std::atomic<const std::string*> last_words{nullptr};
};

Presses& InterruptPresses() {
  static Presses presses;
  return presses;
}

void OnInterrupt(int number) {
  Presses& presses = InterruptPresses();
  if (presses.waiting.fetch_add(1) > 0 && presses.second_ends.load()) {
    RestoreTerminal();
    if (const std::string* words = presses.last_words.load(); words != nullptr) {
      [[maybe_unused]] const auto written = ::write(STDERR_FILENO, words->data(), words->size());
    }
    ::signal(number, SIG_DFL);
    ::raise(number);
    return;
  }
  InterruptToken().Cancel();
  Wake();
}

}  // namespace

InterruptCancels::InterruptCancels(Second second) {
  Reset();
  SetSecond(second);
  struct sigaction action {};
  action.sa_handler = OnInterrupt;
  // Not restarting makes a waiting read return.
  sigaction(SIGINT, &action, &before_);
}

InterruptCancels::~InterruptCancels() {
  sigaction(SIGINT, &before_, nullptr);
  InterruptPresses().last_words.store(nullptr);
}

void InterruptCancels::TakeOne() {
  Presses& presses = InterruptPresses();
  if (presses.waiting.load() == 0) return Reset();
  // What comes between these lines is counted, and so not lost.
  InterruptToken().Reset();
  ClearWake();
  if (presses.waiting.fetch_sub(1) > 1) {
    InterruptToken().Cancel();
    Wake();
  }
}

void InterruptCancels::Reset() {
  InterruptPresses().waiting.store(0);
  InterruptToken().Reset();
  ClearWake();  // also makes what the handler writes to
}

void InterruptCancels::SetSecond(Second second) {
  InterruptPresses().second_ends.store(second == Second::kEndsTheProcess);
}

void InterruptCancels::SetLastWords(std::string words) {
  // Turns of one conversation have the same.
  if (last_words_.empty() || last_words_.front() != words) last_words_.push_front(std::move(words));
  InterruptPresses().last_words.store(&last_words_.front());
}

void InterruptCancels::Cancel() {
  InterruptPresses().waiting.fetch_add(1);
  InterruptToken().Cancel();
}

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
