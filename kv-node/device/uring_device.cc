#include "kv-node/device/uring_device.h"

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "common/log/log.h"

namespace cairn::kv {
namespace {

// user_data of the wake-up; transfers carry their slot.
constexpr std::uint64_t kWakeTag = ~std::uint64_t{0};
// While requests wait for a free slot, one wake-up and one call take in several completions and
// start as many requests: this share of the slots, or what came in this time.
constexpr int kGatherShare = 8;
constexpr std::chrono::microseconds kGatherTime{100};

__kernel_timespec ToTimespec(std::chrono::microseconds time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  __kernel_timespec result{};
  result.tv_sec = seconds.count();
  result.tv_nsec = std::chrono::nanoseconds(time - seconds).count();
  return result;
}

std::string ErrnoText(int error_number) { return std::generic_category().message(error_number); }

// Anything else says that the ring is misused, for instance from another thread.
bool IsPassing(int result) {
  return result >= 0 || result == -ETIME || result == -EINTR || result == -EAGAIN ||
         result == -EBUSY || result == -ENOMEM;
}

void CheckEnter(int result) {
  if (!IsPassing(result)) LogError("io_uring_enter error={}", ErrnoText(-result));
  CAIRN_CHECK(IsPassing(result));
}

}  // namespace

struct UringDevice::Ring {
  io_uring ring{};
  bool registered_file = false;
  bool registers_memory = false;
  std::array<std::span<std::byte>, kReadMemoriesMax> memories;  // empty: the entry is free
  bool wake_armed = false;
};

UringDevice::UringDevice(int fd, std::int64_t size_bytes, int queue_depth)
    : Device(size_bytes, queue_depth), fd_(fd), wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CAIRN_CHECK_GE(wake_fd_, 0);
}

UringDevice::~UringDevice() {
  if (ring_ != nullptr) {
    // The kernel writes into the buffers of started reads even after the ring is closed.
    if (started_count() > 0) CheckOwner();
    while (started_count() > 0) UringDevice::Wait(std::chrono::seconds(1));
    // The kernel takes a ring apart after the call that closes it returned; a file that is still
    // registered stays open, and locked, until then.
    if (ring_->registered_file) io_uring_unregister_files(&ring_->ring);
    io_uring_queue_exit(&ring_->ring);
  }
  close(wake_fd_);
}

void UringDevice::MakeRing() {
  if (ring_ != nullptr || ring_error_ != 0) return;
  auto ring = std::make_unique<Ring>();
  // One entry a slot and one for the wake-up, so that the queue is never full.
  const auto entries = static_cast<unsigned>(queue_depth()) + 1;
  // Without task interrupts: completions are only wanted inside Poll(). Linux 6.1 or later.
  int result = io_uring_queue_init(entries, &ring->ring,
                                   IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
  if (result == -EINVAL) result = io_uring_queue_init(entries, &ring->ring, 0);
  if (result < 0) {
    ring_error_ = -result;
    LogError("io_uring_queue_init entries={} error={}", entries, ErrnoText(ring_error_));
    return;
  }
  const int registered = io_uring_register_files(&ring->ring, &fd_, 1);
  ring->registered_file = registered == 0;
  if (registered < 0) LogWarning("io_uring_register_files error={}", ErrnoText(-registered));
  ring->registers_memory = io_uring_register_buffers_sparse(&ring->ring, kReadMemoriesMax) == 0;
  ring_ = std::move(ring);
}

int UringDevice::SetRegistered(int index, std::span<std::byte> memory) {
  const iovec vector{.iov_base = memory.data(), .iov_len = memory.size()};
  const __u64 tag = 0;
  const int result = io_uring_register_buffers_update_tag(
      &ring_->ring, static_cast<unsigned>(index), &vector, &tag, 1);
  if (result >= 0) ring_->memories[static_cast<std::size_t>(index)] = memory;
  return result;
}

void UringDevice::AddReadMemory(std::span<std::byte> memory) {
  CheckOwner();
  MakeRing();
  if (ring_ == nullptr || !ring_->registers_memory) return;
  const auto& memories = ring_->memories;
  const auto free = std::find_if(memories.begin(), memories.end(),
                                 [](const auto& taken) { return taken.empty(); });
  if (free == memories.end()) return;
  const int result = SetRegistered(static_cast<int>(free - memories.begin()), memory);
  if (result >= 0) return;
  LogInfo("reads pin their memory each time: io_uring registers no more, error=\"{}\"",
          ErrnoText(-result));
  ring_->registers_memory = false;
}

void UringDevice::RemoveReadMemory(std::span<std::byte> memory) {
  CheckOwner();
  if (ring_ == nullptr) return;
  const auto& memories = ring_->memories;
  const auto found = std::find_if(memories.begin(), memories.end(), [&](const auto& registered) {
    return registered.data() == memory.data();
  });
  if (found == memories.end() || memory.empty()) return;
  // The memory may be unmapped now, and other memory lie at its address.
  CAIRN_CHECK_GE(SetRegistered(static_cast<int>(found - memories.begin()), {}), 0);
}

int UringDevice::registered_memory_count() const {
  if (ring_ == nullptr) return 0;
  return static_cast<int>(std::count_if(ring_->memories.begin(), ring_->memories.end(),
                                        [](const auto& memory) { return !memory.empty(); }));
}

int UringDevice::RegisteredIndex(const Transfer& transfer) const {
  for (std::size_t i = 0; i < ring_->memories.size(); ++i) {
    const std::span<std::byte> memory = ring_->memories[i];
    if (transfer.data >= memory.data() &&
        transfer.data + transfer.size_bytes <= memory.data() + memory.size()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

void UringDevice::ArmWake() {
  if (ring_->wake_armed) return;
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_->ring);
  CAIRN_CHECK(sqe != nullptr);
  io_uring_prep_poll_add(sqe, wake_fd_, POLLIN);
  io_uring_sqe_set_data64(sqe, kWakeTag);
  ring_->wake_armed = true;
}

void UringDevice::Wake() {
  const std::uint64_t one = 1;
  // The only failure is a counter at its maximum, which is as good as a wake-up.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
}

void UringDevice::Start(const Transfer& transfer) {
  MakeRing();
  if (ring_ == nullptr) {
    failed_slots_.push_back(transfer.slot);
    return;
  }
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_->ring);
  CAIRN_CHECK(sqe != nullptr);
  const int file = ring_->registered_file ? 0 : fd_;
  const auto size = static_cast<unsigned>(transfer.size_bytes);
  const auto offset = static_cast<std::uint64_t>(transfer.offset_bytes);
  switch (transfer.kind) {
    case IoKind::kRead:
      if (const int index = RegisteredIndex(transfer); index >= 0) {
        io_uring_prep_read_fixed(sqe, file, transfer.data, size, offset, index);
      } else {
        io_uring_prep_read(sqe, file, transfer.data, size, offset);
      }
      break;
    case IoKind::kWrite:
      io_uring_prep_write(sqe, file, transfer.data, size, offset);
      break;
    case IoKind::kFlush:
      if (FailPoint("a flush of io_uring's device does nothing")) {
        io_uring_prep_nop(sqe);
        break;
      }
      io_uring_prep_fsync(sqe, file, IORING_FSYNC_DATASYNC);
      break;
  }
  if (ring_->registered_file) sqe->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data64(sqe, static_cast<std::uint64_t>(transfer.slot));
}

void UringDevice::FailStarted() {
  std::vector<int> slots;
  slots.swap(failed_slots_);
  for (const int slot : slots) Finish(slot, -ring_error_);
}

void UringDevice::Wait(std::chrono::microseconds wait) {
  MakeRing();
  if (ring_ == nullptr) {
    if (failed_slots_.empty()) {
      pollfd woken{.fd = wake_fd_, .events = POLLIN, .revents = 0};
      poll(&woken, 1, static_cast<int>(wait.count() / 1000));
    }
    FailStarted();
    return;
  }
  ArmWake();
  if (wait.count() == 0 || io_uring_cq_ready(&ring_->ring) > 0) {
    CheckEnter(io_uring_submit_and_get_events(&ring_->ring));
  } else {
    const bool gathers = has_backlog();
    const int count = gathers ? std::max(1, queue_depth() / kGatherShare) : 1;
    __kernel_timespec timeout = ToTimespec(gathers ? std::min(wait, kGatherTime) : wait);
    io_uring_cqe* first = nullptr;
    CheckEnter(io_uring_submit_and_wait_timeout(&ring_->ring, &first, static_cast<unsigned>(count),
                                                &timeout, nullptr));
  }
  Reap();
}

void UringDevice::SubmitStarted() {
  if (ring_ == nullptr || io_uring_sq_ready(&ring_->ring) == 0) return;
  CheckEnter(io_uring_submit(&ring_->ring));
}

void UringDevice::Reap() {
  io_uring_cqe* cqe = nullptr;
  // One at a time: Finish() may start the rest of a short transfer.
  while (io_uring_peek_cqe(&ring_->ring, &cqe) == 0 && cqe != nullptr) {
    const std::uint64_t tag = io_uring_cqe_get_data64(cqe);
    const int result = cqe->res;
    io_uring_cqe_seen(&ring_->ring, cqe);
    if (tag == kWakeTag) {
      ring_->wake_armed = false;
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = read(wake_fd_, &count, sizeof count);
    } else {
      Finish(static_cast<int>(tag), result);
    }
  }
}

}  // namespace cairn::kv
