#include "kv-node/device/memory_device.h"

namespace cairn::kv {

MemoryDevice::MemoryDevice(std::int64_t size_bytes, int queue_depth)
    : Device(size_bytes, queue_depth), bytes_(size_bytes) {}

void MemoryDevice::Grow(std::int64_t size_bytes) {
  CheckOwner();
  bytes_.Grow(size_bytes);
  set_size_bytes(size_bytes);
}

void MemoryDevice::Wake() {
  MutexLock lock(mutex_);
  woken_ = true;
  woken_cond_.NotifyOne();
}

void MemoryDevice::Start(const Transfer& transfer) { started_.push_back(transfer); }

void MemoryDevice::Wait(std::chrono::microseconds wait) {
  if (started_.empty()) {
    const auto deadline = std::chrono::steady_clock::now() + wait;
    MutexLock lock(mutex_);
    // Also a wait that is over already costs 50 us in the kernel.
    while (!woken_ && wait.count() > 0 && woken_cond_.WaitUntil(mutex_, deadline)) {
    }
    woken_ = false;
    return;
  }
  std::vector<Transfer> started;
  started.swap(started_);
  for (const Transfer& transfer : started) {
    const auto size = static_cast<std::size_t>(transfer.size_bytes);
    if (transfer.kind == IoKind::kRead) {
      bytes_.Read(transfer.offset_bytes, {transfer.data, size});
    } else if (transfer.kind == IoKind::kWrite) {
      bytes_.Write(transfer.offset_bytes, {transfer.data, size});
    }
    Finish(transfer.slot, transfer.size_bytes);
  }
}

}  // namespace cairn::kv
