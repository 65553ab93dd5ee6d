#include "kv-node/device/thread_pool_device.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "common/base/thread.h"

namespace cairn::kv {

ThreadPoolDevice::ThreadPoolDevice(int fd, std::int64_t size_bytes, int queue_depth,
                                   int thread_count)
    : Device(size_bytes, queue_depth), fd_(fd) {
  CAIRN_CHECK_GE(thread_count, 1);
  CAIRN_CHECK_LE(thread_count, kIoThreadCountMax);
  for (int i = 0; i < thread_count; ++i) {
    threads_.push_back(StartThread(fmt::format("kv-io-{}", i), [this] { Work(); }));
  }
}

ThreadPoolDevice::~ThreadPoolDevice() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    transfers_.clear();
    work_cond_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPoolDevice::Wake() {
  MutexLock lock(mutex_);
  woken_ = true;
  result_cond_.NotifyOne();
}

void ThreadPoolDevice::Start(const Transfer& transfer) {
  MutexLock lock(mutex_);
  transfers_.push_back(transfer);
  work_cond_.NotifyOne();
}

void ThreadPoolDevice::Wait(std::chrono::microseconds wait) {
  std::vector<Result> results;
  {
    const auto deadline = std::chrono::steady_clock::now() + wait;
    MutexLock lock(mutex_);
    while (results_.empty() && !woken_ && result_cond_.WaitUntil(mutex_, deadline)) {
    }
    results.swap(results_);
    woken_ = false;
  }
  for (const Result& result : results) Finish(result.slot, result.result);
}

void ThreadPoolDevice::Work() {
  for (;;) {
    Transfer transfer;
    {
      MutexLock lock(mutex_);
      while (transfers_.empty() && !stopping_) work_cond_.Wait(mutex_);
      if (stopping_) return;
      transfer = transfers_.front();
      transfers_.pop_front();
    }
    const std::int64_t result = Execute(transfer);
    MutexLock lock(mutex_);
    results_.push_back({transfer.slot, result});
    result_cond_.NotifyOne();
  }
}

std::int64_t ThreadPoolDevice::Execute(const Transfer& transfer) const {
  std::int64_t result = 0;
  const iovec piece{transfer.data, static_cast<std::size_t>(transfer.size_bytes)};
  switch (transfer.kind) {
    case IoKind::kRead:
      result = preadv2(fd_, &piece, 1, transfer.offset_bytes, 0);
      break;
    case IoKind::kWrite:
      result = pwritev2(fd_, &piece, 1, transfer.offset_bytes, 0);
      break;
    case IoKind::kFlush:
      result = FailPoint("a flush of the thread pool's device does nothing") ? 0 : fdatasync(fd_);
      break;
  }
  return result < 0 ? -errno : result;
}

}  // namespace cairn::kv
