// A device in memory whose next transfers can be held back, so that a test decides what happens
// while one is in flight. What a held read answers, and when a held write is seen, is decided when
// it is released.
//
// Threading: HoldNext... and Release from any thread; the rest follows Device.
#pragma once

#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "kv-node/device/memory_device.h"

namespace cairn::kv {

class GatedDevice final : public MemoryDevice {
 public:
  using MemoryDevice::MemoryDevice;

  void HoldNextReads(int count) {
    MutexLock lock(mutex_);
    hold_reads_ = count;
  }
  void HoldNextWrites(int count) {
    MutexLock lock(mutex_);
    hold_writes_ = count;
  }
  // Those held now go on; none that follows is held.
  void Release() {
    {
      MutexLock lock(mutex_);
      hold_reads_ = hold_writes_ = 0;
      released_ = std::exchange(held_, {});
    }
    Wake();
  }
  int held_count() {
    MutexLock lock(mutex_);
    return static_cast<int>(held_.size());
  }

 protected:
  void Start(const Transfer& transfer) override {
    {
      MutexLock lock(mutex_);
      int* hold = transfer.kind == IoKind::kRead    ? &hold_reads_
                  : transfer.kind == IoKind::kWrite ? &hold_writes_
                                                    : nullptr;
      if (hold != nullptr && *hold > 0) {
        --*hold;
        held_.push_back(transfer);
        return;
      }
    }
    MemoryDevice::Start(transfer);
  }
  void Wait(std::chrono::microseconds wait) override {
    std::vector<Transfer> released;
    {
      MutexLock lock(mutex_);
      released = std::exchange(released_, {});
    }
    for (const Transfer& transfer : released) MemoryDevice::Start(transfer);
    MemoryDevice::Wait(wait);
  }

 private:
  Mutex mutex_;
  int hold_reads_ CAIRN_GUARDED_BY(mutex_) = 0;
  int hold_writes_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::vector<Transfer> held_ CAIRN_GUARDED_BY(mutex_);
  std::vector<Transfer> released_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv
