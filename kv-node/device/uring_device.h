// A device on a file through one io_uring ring. liburing stays behind this header.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kv-node/device/device.h"

namespace cairn::kv {

// Arenas are some granules.
inline constexpr int kReadMemoriesMax = 64;

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
  // Registered buffers: their pages are pinned once instead of for each read. At most
  // kReadMemoriesMax, and as much as RLIMIT_MEMLOCK allows; what is beyond is used as any memory.
  void AddReadMemory(std::span<std::byte> memory) override;
  void RemoveReadMemory(std::span<std::byte> memory) override;
  std::string_view name() const override { return "io_uring"; }
  int registered_memory_count() const;

 protected:
  void Start(const Transfer& transfer) override;
  void Wait(std::chrono::microseconds wait) override;
  void SubmitStarted() override;

 private:
  struct Ring;

  void MakeRing();
  // Changes an entry of the table of registered buffers; empty: none. A negative errno.
  int SetRegistered(int index, std::span<std::byte> memory);
  // Of the registered buffer that holds all of the transfer's; -1: none does.
  int RegisteredIndex(const Transfer& transfer) const;
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
