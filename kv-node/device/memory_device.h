// A device in memory: for tests, and for keeping the KV cache in RAM. Bytes never written read as
// zeros and cost nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/mutex.h"
#include "kv-node/device/device.h"
#include "kv-node/device/sparse_bytes.h"

namespace cairn::kv {

class MemoryDevice : public Device {
 public:
  explicit MemoryDevice(std::int64_t size_bytes, int queue_depth = kQueueDepthDefault);

  // Makes the device larger; a smaller size is a programmer error.
  void Grow(std::int64_t size_bytes);
  // Memory that was allocated for written bytes.
  std::int64_t allocated_bytes() const { return bytes_.allocated_bytes(); }

  void Wake() override;
  std::string_view name() const override { return "memory"; }

 protected:
  void Start(const Transfer& transfer) override;
  void Wait(std::chrono::microseconds wait) override;

 private:
  SparseBytes bytes_;
  std::vector<Transfer> started_;  // copied in Wait(), so that a buffer given back too early shows
  Mutex mutex_;
  CondVar woken_cond_;
  bool woken_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn::kv
