// ModelledDevice delivers the completions of another device as a slower one would: it is for
// measuring what Cairn does on flash that the machine at hand does not have. Limits of the kernel
// (cgroups) get averages right and the latency of one request wrong; this gets both.
//
// The model has one virtual time, up to which the device has work:
//   virtual = max(virtual, start) + max(bytes / bandwidth, 1 / rate)
//   completion = max(completion of the device below, virtual, start + base latency)
// where a request starts when the queue depth lets it. Reads and writes share the virtual time and
// have a bandwidth and a rate each. A flush costs one write of no bytes: what a flush costs on such
// flash is not modelled.
//
// The device below must be faster than the model, or the result is its own speed.
//
// Threading, blocking, ownership, errors: as Device.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kv-node/device/device.h"

namespace cairn::kv {

// Bytes in 10^6, as makers count them.
struct DeviceModel {
  std::string_view name;
  std::int64_t read_bytes_per_second = 0;
  std::int64_t write_bytes_per_second = 0;
  std::int64_t read_count_per_second = 0;
  std::int64_t write_count_per_second = 0;
  std::chrono::nanoseconds base_latency{0};
  int queue_depth = kQueueDepthDefault;

  // What the request adds to the virtual time. `writing` includes flushes.
  std::chrono::nanoseconds Cost(bool writing, std::int64_t size_bytes) const;
};

// "emmc", "ufs3.1" or "ufs4.0"; INVALID_ARGUMENT otherwise, with the names.
absl::StatusOr<DeviceModel> FindDeviceModel(std::string_view name);

class ModelledDevice : public Device {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Clock = std::function<TimePoint()>;

  // The queue depth is the model's, or a smaller `queue_depth`. With another clock than the default
  // one, Poll() with a wait above 0 must not be called: nothing makes that clock advance.
  ModelledDevice(std::unique_ptr<Device> below, const DeviceModel& model, int queue_depth,
                 Clock clock = std::chrono::steady_clock::now);

  void Wake() override;
  void AddReadMemory(std::span<std::byte> memory) override { below_->AddReadMemory(memory); }
  void RemoveReadMemory(std::span<std::byte> memory) override { below_->RemoveReadMemory(memory); }
  // Of the device below, "+", the model's: "io_uring+emmc".
  std::string_view name() const override { return name_; }

 protected:
  void Start(const Transfer& transfer) override;
  void Wait(std::chrono::microseconds wait) override;
  void SubmitStarted() override;

 private:
  // Complete below, and held back until `due`.
  struct Held {
    TimePoint due;
    int slot = 0;
    absl::Status status;
  };

  // Runs the device below and takes its completions.
  void PollBelow(std::chrono::microseconds wait);
  bool FinishDue(TimePoint now);
  // How long the device below may wait, at `now`, so that nothing is delivered late.
  std::chrono::microseconds WaitBelow(TimePoint now, TimePoint deadline) const;

  const DeviceModel model_;
  const Clock clock_;
  const std::string name_;
  TimePoint virtual_time_{};
  std::vector<TimePoint> due_;  // by slot
  std::vector<Held> held_;      // a heap, the first due in front; at most queue_depth
  bool started_ = false;        // since the device below was last polled
  std::atomic<bool> woken_{false};
  const std::unique_ptr<Device> below_;  // last: its callbacks name the members above
};

}  // namespace cairn::kv
