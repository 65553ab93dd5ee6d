#include "common/base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <system_error>
#include <utility>

#include "common/base/check.h"

namespace cairn {
namespace {

// The least that Linux takes, and what stands for its own.
constexpr std::chrono::nanoseconds kShortestSlice = std::chrono::microseconds(100);
constexpr std::chrono::nanoseconds kDefaultSlice{0};

// The kernel's struct sched_attr as it has been since Linux 3.14. glibc has no such thing yet, and
// the kernel's header names others that glibc has.
struct SchedulingAttributes {
  std::uint32_t size_bytes;
  std::uint32_t policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime_nanoseconds;  // of SCHED_OTHER: the slice
  std::uint64_t deadline_nanoseconds;
  std::uint64_t period_nanoseconds;
};

// Of the calling thread; false: it is so already, or the system does not allow it.
bool SetSlice(std::chrono::nanoseconds slice) {
  constexpr unsigned kNoFlags = 0;
  const auto runtime_nanoseconds = static_cast<std::uint64_t>(slice.count());
  SchedulingAttributes attributes{};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, kNoFlags) != 0) return false;
  if (attributes.runtime_nanoseconds == runtime_nanoseconds) return false;
  attributes.size_bytes = sizeof attributes;
  attributes.runtime_nanoseconds = runtime_nanoseconds;
  return syscall(SYS_sched_setattr, 0, &attributes, kNoFlags) == 0;
}

}  // namespace

std::thread StartThread(const std::string& name, std::function<void()> body) {
  constexpr std::size_t kNameLengthMax = 15;  // TASK_COMM_LEN without its zero
  CAIRN_CHECK_LE(name.size(), kNameLengthMax);
  return std::thread([name, body = std::move(body)] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    pthread_setname_np(pthread_self(), name.c_str());
    body();
  });
}

absl::StatusOr<std::thread> TryStartThread(const std::string& name, std::function<void()> body) {
  try {
    return StartThread(name, std::move(body));
  } catch (const std::system_error& error) {
    return ResourceExhausted("start thread {}: {}", name, error.what());
  }
}

ServingPriority::ServingPriority(int realtime_priority) {
  if (realtime_priority == 0) {
    has_short_slice_ = SetSlice(kShortestSlice);
    return;
  }
  sched_param parameters{};
  int error = pthread_getschedparam(pthread_self(), &policy_before_, &parameters);
  priority_before_ = parameters.sched_priority;
  parameters.sched_priority = realtime_priority;
  if (error == 0) error = pthread_setschedparam(pthread_self(), SCHED_RR, &parameters);
  is_realtime_ = error == 0;
  if (is_realtime_) return;
  status_ =
      ErrnoStatus(error, fmt::format("run a thread with realtime priority {}", realtime_priority));
}

ServingPriority::~ServingPriority() {
  if (has_short_slice_) SetSlice(kDefaultSlice);
  sched_param before{};
  before.sched_priority = priority_before_;
  if (is_realtime_) pthread_setschedparam(pthread_self(), policy_before_, &before);
}

}  // namespace cairn
