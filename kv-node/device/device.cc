#include "kv-node/device/device.h"

#include <cerrno>

#include "common/base/check.h"

namespace cairn::kv {
namespace {

// EINTR, EAGAIN and short transfers of one request before it counts as failed: a device that makes
// no progress must not be asked for ever.
constexpr int kRetryCountMax = 1000;

}  // namespace

Device::Device(std::int64_t size_bytes, int queue_depth)
    : size_bytes_(size_bytes), queue_depth_(queue_depth) {
  CAIRN_CHECK_GE(size_bytes, 0);
  CAIRN_CHECK_GE(queue_depth, 1);
  CAIRN_CHECK_LE(queue_depth, kQueueDepthMax);
  slots_.resize(static_cast<std::size_t>(queue_depth));
  for (int slot = queue_depth - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

Device::~Device() = default;

void Device::CheckOwner() {
  if (owner_ == std::thread::id()) owner_ = std::this_thread::get_id();
  CAIRN_CHECK(owner_ == std::this_thread::get_id());
}

void Device::CheckRange(DeviceOffset offset, const std::byte* data, std::size_t size) const {
  const auto size_bytes = static_cast<std::int64_t>(size);
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): the alignment is a property of the
  // address.
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  CAIRN_CHECK_EQ(address % kIoAlignmentBytes, std::uintptr_t{0});
  CAIRN_CHECK_EQ(offset.value() % kIoAlignmentBytes, 0);
  CAIRN_CHECK_EQ(size_bytes % kIoAlignmentBytes, 0);
  CAIRN_CHECK_GE(offset.value(), 0);
  CAIRN_CHECK_GE(size_bytes, kIoAlignmentBytes);
  CAIRN_CHECK_LE(size_bytes, kRequestBytesMax);
  CAIRN_CHECK_LE(size_bytes, size_bytes_);
  CAIRN_CHECK_LE(offset.value(), size_bytes_ - size_bytes);
}

void Device::SubmitRead(DeviceOffset offset, std::span<std::byte> buffer, IoDone done,
                        IoClass io_class) {
  CheckRange(offset, buffer.data(), buffer.size());
  Submit({.kind = IoKind::kRead,
          .offset_bytes = offset.value(),
          .data = buffer.data(),
          .size_bytes = static_cast<std::int64_t>(buffer.size()),
          .done = std::move(done)},
         io_class);
}

void Device::SubmitWrite(DeviceOffset offset, std::span<const std::byte> buffer, IoDone done,
                         IoClass io_class) {
  CheckRange(offset, buffer.data(), buffer.size());
  Submit({.kind = IoKind::kWrite,
          .offset_bytes = offset.value(),
          // Transfer::data of a write is only read from; one type for both directions keeps the
          // slots simple.
          .data = const_cast<std::byte*>(buffer.data()),
          .size_bytes = static_cast<std::int64_t>(buffer.size()),
          .done = std::move(done)},
         io_class);
}

void Device::SubmitFlush(IoDone done, IoClass io_class) {
  Submit({.kind = IoKind::kFlush, .done = std::move(done)}, io_class);
}

void Device::Submit(Request request, IoClass io_class) {
  CheckOwner();
  CAIRN_CHECK(request.done != nullptr);
  CAIRN_CHECK_LT(in_flight_count_, kRequestCountMax);
  ++in_flight_count_;
  queues_[static_cast<std::size_t>(io_class)].requests.push_back(std::move(request));
  StartQueued();
}

Device::Queue* Device::NextQueue() {
  Queue* next = nullptr;
  for (Queue& queue : queues_) {
    if (queue.requests.empty()) continue;
    const bool starved = queue.passed_over_count >= kPassedOverMax;
    if (next == nullptr || (starved && queue.passed_over_count > next->passed_over_count)) {
      next = &queue;
    }
  }
  return next;
}

void Device::StartQueued() {
  while (!free_slots_.empty()) {
    Queue* const next = NextQueue();
    if (next == nullptr) return;
    next->passed_over_count = 0;
    // Less urgent ones lie behind it.
    for (Queue* queue = next + 1; queue != queues_.data() + queues_.size(); ++queue) {
      if (!queue->requests.empty()) ++queue->passed_over_count;
    }
    const int slot = free_slots_.back();
    free_slots_.pop_back();
    slots_[static_cast<std::size_t>(slot)] = std::move(next->requests.front());
    next->requests.pop_front();
    StartSlot(slot);
  }
}

void Device::StartSlot(int slot) {
  const Request& request = slots_[static_cast<std::size_t>(slot)];
  Transfer transfer{.kind = request.kind, .slot = slot};
  if (request.kind != IoKind::kFlush) {
    transfer.offset_bytes = request.offset_bytes + request.transferred_bytes;
    transfer.data = request.data + request.transferred_bytes;
    transfer.size_bytes = request.size_bytes - request.transferred_bytes;
  }
  ++started_count_;
  Start(transfer);
}

absl::Status Device::Failure(const Request& request, int error_number) const {
  if (request.kind == IoKind::kFlush) {
    return ErrnoStatus(error_number, fmt::format("flush {}", path_));
  }
  const char* kind = request.kind == IoKind::kRead ? "read" : "write";
  return ErrnoStatus(error_number, fmt::format("{} {} bytes at offset {} of {} ({} bytes done)",
                                               kind, request.size_bytes, request.offset_bytes,
                                               path_, request.transferred_bytes));
}

void Device::Finish(int slot, std::int64_t result) {
  Request& request = slots_[static_cast<std::size_t>(slot)];
  CAIRN_CHECK_GE(started_count_, 1);
  --started_count_;
  const bool again = result == -EINTR || result == -EAGAIN;
  if (result < 0 && !again) {
    Complete(slot, Failure(request, static_cast<int>(-result)));
    return;
  }
  if (!again) {
    const std::int64_t left = request.size_bytes - request.transferred_bytes;
    CAIRN_CHECK_LE(result, left);
    if (result == left) {
      Complete(slot, absl::OkStatus());
      return;
    }
    // O_DIRECT accepts only aligned pieces, so the page in which a short transfer ended is
    // transferred again.
    request.transferred_bytes += result / kIoAlignmentBytes * kIoAlignmentBytes;
  }
  if (result == 0 || ++request.retry_count > kRetryCountMax) {
    const absl::Status cause = Failure(request, result < 0 ? static_cast<int>(-result) : EIO);
    Complete(slot, Internal("{}: no progress after {} tries; is the file truncated?",
                            ToStd(cause.message()), request.retry_count + 1));
    return;
  }
  StartSlot(slot);
}

void Device::FinishWhole(int slot, absl::Status status) {
  CAIRN_CHECK_GE(started_count_, 1);
  --started_count_;
  Complete(slot, std::move(status));
}

void Device::Complete(int slot, absl::Status status) {
  Request& request = slots_[static_cast<std::size_t>(slot)];
  if (!status.ok()) {
    ++stats_.error_count;
  } else if (request.kind == IoKind::kRead) {
    ++stats_.read_count;
    stats_.read_bytes += request.size_bytes;
  } else if (request.kind == IoKind::kWrite) {
    ++stats_.write_count;
    stats_.write_bytes += request.size_bytes;
  } else {
    ++stats_.flush_count;
  }
  completed_.push_back({std::move(status), std::move(request.done)});
  request = {};
  free_slots_.push_back(slot);
}

int Device::RunCallbacks() {
  running_.swap(completed_);  // both keep their memory
  in_callbacks_ = true;
  for (Completed& completed : running_) {
    --in_flight_count_;
    completed.done(std::move(completed.status));
    completed.done = nullptr;  // what the callback holds is freed before the next one runs
  }
  in_callbacks_ = false;
  const int count = static_cast<int>(running_.size());
  running_.clear();
  return count;
}

int Device::Poll(std::chrono::microseconds wait) {
  CheckOwner();
  CAIRN_CHECK(!in_callbacks_);
  CAIRN_CHECK_GE(wait.count(), 0);
  const bool waits = completed_.empty() && !std::exchange(kept_busy_, false);
  Wait(waits ? wait : std::chrono::microseconds(0));
  StartQueued();
  const int count = RunCallbacks();
  // What callbacks submitted should reach the device before the caller turns to other work.
  SubmitStarted();
  return count;
}

void Device::KeepBusy() {
  CheckOwner();
  if (started_count_ == 0) return;
  kept_busy_ = true;
  Wait(std::chrono::microseconds(0));
  StartQueued();
  SubmitStarted();
}

}  // namespace cairn::kv
