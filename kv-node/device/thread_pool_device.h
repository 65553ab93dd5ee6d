// A device on a file, by blocking preadv2/pwritev2 calls on a few threads: for kernels that refuse
// io_uring.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "kv-node/device/device.h"

namespace cairn::kv {

inline constexpr int kIoThreadCountMax = 64;

class ThreadPoolDevice : public Device {
 public:
  // `fd` is borrowed and outlives the device.
  ThreadPoolDevice(int fd, std::int64_t size_bytes, int queue_depth, int thread_count);
  // Waits for started transfers.
  ~ThreadPoolDevice() override;
  ThreadPoolDevice(const ThreadPoolDevice&) = delete;
  ThreadPoolDevice& operator=(const ThreadPoolDevice&) = delete;

  void Wake() override;
  std::string_view name() const override { return "threads"; }

 protected:
  void Start(const Transfer& transfer) override;
  void Wait(std::chrono::microseconds wait) override;

 private:
  struct Result {
    int slot;
    std::int64_t result;
  };

  void Work();
  std::int64_t Execute(const Transfer& transfer) const;

  const int fd_;
  std::vector<std::thread> threads_;

  Mutex mutex_;
  CondVar work_cond_;                                        // transfers_ or stopping_ changed
  CondVar result_cond_;                                      // results_ or woken_ changed
  std::deque<Transfer> transfers_ CAIRN_GUARDED_BY(mutex_);  // at most queue_depth
  std::vector<Result> results_ CAIRN_GUARDED_BY(mutex_);     // at most queue_depth
  bool woken_ CAIRN_GUARDED_BY(mutex_) = false;
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
};

}  // namespace cairn::kv
