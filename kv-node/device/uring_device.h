// A device on a file through one io_uring ring. liburing stays behind this header.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "kv-node/device/device.h"

namespace cairn::kv {

class UringDevice : public Device {
 public:
  // `fd` is borrowed and outlives the device. The ring is made by the first submit or poll, because
  // the kernel binds it to the thread that makes it. REQUIRES: ProbeUring() said that io_uring is
  // available.
  UringDevice(int fd, std::int64_t size_bytes, int queue_depth);
  // Waits for started transfers.
  ~UringDevice() override;
  UringDevice(const UringDevice&) = delete;
  UringDevice& operator=(const UringDevice&) = delete;

  void Wake() override;
  std::string_view name() const override { return "io_uring"; }

 protected:
  void Start(const Transfer& transfer) override;
  void Wait(std::chrono::microseconds wait) override;
  void SubmitStarted() override;

 private:
  struct Ring;

  void MakeRing();
  void ArmWake();
  void Reap();
  void FailStarted();

  const int fd_;
  int wake_fd_ = -1;
  std::unique_ptr<Ring> ring_;     // null before the first use and when ring_error_ is set
  int ring_error_ = 0;             // errno of making the ring
  std::vector<int> failed_slots_;  // started without a ring; finished by Wait() with ring_error_
};

}  // namespace cairn::kv
