#include "kv-node/device/uring_probe.h"

#include <liburing.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

namespace cairn::kv {
namespace {

// Written by the child into memory that both processes share.
struct Answer {
  const char* call = "io_uring_setup";  // the last one; a literal, which both processes have
  int error_number = 0;
  bool done = false;
};

constexpr int kOperationCountMax = 256;

// Runs in the forked child of a process with threads: system calls only, no allocation, no locks.
void Ask(volatile Answer& answer) {
  io_uring ring{};
  const int setup = io_uring_queue_init(4, &ring, 0);
  if (setup < 0) {
    answer.error_number = -setup;
    return;
  }
  answer.call = "io_uring_register(PROBE)";
  alignas(io_uring_probe)
      std::array<char, sizeof(io_uring_probe) + kOperationCountMax * sizeof(io_uring_probe_op)>
          memory{};
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): a struct with a flexible array at
  // its end.
  auto* probe = reinterpret_cast<io_uring_probe*>(memory.data());
  const int probed = io_uring_register_probe(&ring, probe, kOperationCountMax);
  if (probed < 0) {
    answer.error_number = -probed;
    return;
  }
  for (const int operation :
       {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_FSYNC, IORING_OP_POLL_ADD}) {
    if (io_uring_opcode_supported(probe, operation) == 0) {
      answer.error_number = EOPNOTSUPP;
      return;
    }
  }
  answer.call = "io_uring_enter";
  io_uring_prep_nop(io_uring_get_sqe(&ring));
  const int submitted = io_uring_submit_and_wait(&ring, 1);
  if (submitted < 0) {
    answer.error_number = -submitted;
    return;
  }
  answer.done = true;
}

std::string_view Cause(const Answer& answer) {
  switch (answer.error_number) {
    case ENOSYS:
      return "the kernel has no io_uring, or a sandbox hides it";
    case EPERM:
    case EACCES:
      return "sysctl kernel.io_uring_disabled, a seccomp filter or a container forbids it";
    case ENOMEM:
      return "the locked-memory limit is too low (ulimit -l)";
    case EOPNOTSUPP:
      return "the kernel lacks an operation that is needed (5.6 or later has them)";
    default:
      return "unexpected";
  }
}

UringProbe Judge(const Answer& answer, int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal_number = WTERMSIG(wait_status);
    return {.reason = fmt::format("{}: the probing child was killed by signal {}{}", answer.call,
                                  signal_number,
                                  signal_number == SIGSYS ? " (SIGSYS: a seccomp filter)" : "")};
  }
  if (answer.done) return {.available = true, .reason = "probed in a child process"};
  return {.reason =
              fmt::format("{}: {} ({})", answer.call,
                          std::generic_category().message(answer.error_number), Cause(answer))};
}

}  // namespace

UringProbe ProbeUring() {
  void* memory =
      mmap(nullptr, sizeof(Answer), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return {.reason =
                fmt::format("mmap for the probe: {}", std::generic_category().message(errno))};
  }
  auto* answer = new (memory) Answer;
  UringProbe result;
  const pid_t child = fork();
  if (child == 0) {
    Ask(*answer);
    _exit(0);
  }
  if (child < 0) {
    result.reason = fmt::format("fork for the probe: {}", std::generic_category().message(errno));
  } else {
    int wait_status = 0;
    while (waitpid(child, &wait_status, 0) < 0 && errno == EINTR) {
    }
    result = Judge(*answer, wait_status);
  }
  munmap(memory, sizeof(Answer));
  return result;
}

}  // namespace cairn::kv
