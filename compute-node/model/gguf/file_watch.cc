#include "compute-node/model/gguf/file_watch.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <utility>

namespace cairn::compute {
namespace {

// A mapping whose faults are expected. Written by whoever has `taken`, read by the signal handler.
struct Slot {
  std::atomic<bool> taken{false};
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};  // 0: nothing is mapped
  std::atomic<bool> faulted{false};
};

std::array<Slot, kFileWatchesMax>& Slots() {
  static std::array<Slot, kFileWatchesMax> slots;
  return slots;
}

struct sigaction earlier_handler;
std::uintptr_t page_bytes = 0;

// Puts zeros where the file has nothing any more. Only calls that a signal handler may make.
bool TakeFault(std::uintptr_t address) {
  for (Slot& slot : Slots()) {
    const std::uintptr_t end = slot.end.load();
    if (address < slot.begin.load() || address >= end) continue;
    slot.faulted.store(true);
    // All that is behind it: a file that was cut short has nothing there either.
    const std::uintptr_t page = address / page_bytes * page_bytes;
    return mmap(reinterpret_cast<void*>(page),  // NOLINT(performance-no-int-to-ptr): of the signal
                end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                0) != MAP_FAILED;
  }
  return false;
}

void OnBusError(int number, siginfo_t* info, void* context) {
  const int error = errno;
  const bool taken = TakeFault(reinterpret_cast<std::uintptr_t>(info->si_addr));
  errno = error;
  if (taken) return;
  if ((earlier_handler.sa_flags & SA_SIGINFO) != 0) {
    earlier_handler.sa_sigaction(number, info, context);
    return;
  }
  // The instruction is tried again, and ends the process as it would have without us.
  sigaction(number, &earlier_handler, nullptr);
}

void InstallHandler() {
  static std::once_flag once;
  std::call_once(once, [] {
    page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = OnBusError;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGBUS, &action, &earlier_handler);
  });
}

std::uintptr_t RoundUp(std::uintptr_t address) {
  return (address + page_bytes - 1) / page_bytes * page_bytes;
}

bool IsSameTime(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileWatch>> FileWatch::Start(UniqueFd fd, const struct stat& opened,
                                                            std::span<const std::byte> mapped,
                                                            std::string name) {
  InstallHandler();
  std::unique_ptr<FileWatch> watch(new FileWatch(std::move(fd), opened, std::move(name)));
  for (int i = 0; i < kFileWatchesMax; ++i) {
    Slot& slot = Slots()[static_cast<std::size_t>(i)];
    if (slot.taken.exchange(true)) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(mapped.data());
    slot.faulted.store(false);
    slot.begin.store(begin);
    slot.end.store(RoundUp(begin + mapped.size()));
    watch->slot_ = i;
    return watch;
  }
  return ResourceExhausted("{}: {} files are mapped already, the most that may be", watch->name_,
                           kFileWatchesMax);
}

FileWatch::~FileWatch() {
  if (slot_ < 0) return;
  Slot& slot = Slots()[static_cast<std::size_t>(slot_)];
  slot.end.store(0);
  slot.taken.store(false);
}

absl::Status FileWatch::Check() const {
  struct stat now = {};
  if (fstat(fd_.get(), &now) != 0) return ErrnoStatus(errno, fmt::format("stat {}", name_));
  const bool faulted = Slots()[static_cast<std::size_t>(slot_)].faulted.load();
  if (now.st_size != opened_.st_size) {
    return FailedPrecondition(
        "{} was changed while it was in use: it has {} bytes now instead of {}; start again with "
        "the file that you want, and put new files in the place of old ones (mv) instead of "
        "writing over them",
        name_, now.st_size, opened_.st_size);
  }
  if (faulted) {
    return FailedPrecondition(
        "{} could not be read: it was cut short for a while, or its disk has failed; check the "
        "file, then start again",
        name_);
  }
  if (!IsSameTime(now.st_mtim, opened_.st_mtim)) {
    return FailedPrecondition(
        "{} was written to while it was in use; start again with the file that you want, and put "
        "new files in the place of old ones (mv) instead of writing over them",
        name_);
  }
  return absl::OkStatus();
}

}  // namespace cairn::compute
