// How close the modelled device comes to its formula with the real clock, above a device in memory.
// Prints a table of the fetch that the design is measured by, and of the highest rates.
//
// usage: modelled_device_bench
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "common/io/aligned_buffer.h"
#include "kv-node/device/memory_device.h"
#include "kv-node/device/modelled_device.h"

namespace cairn::kv {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr std::int64_t kDeviceBytes = std::int64_t{64} << 20;
constexpr int kFetchCount = 200;

double Microseconds(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

class Bench {
 public:
  explicit Bench(const DeviceModel& model)
      : model_(model),
        device_(std::make_unique<MemoryDevice>(kDeviceBytes), model, kQueueDepthDefault) {}

  void Print() {
    std::vector<double> fetches;
    for (int i = 0; i < kFetchCount; ++i) {
      device_.Poll(microseconds(2000));  // idle before it
      const auto begin = Clock::now();
      Read(16, 65536);
      fetches.push_back(Microseconds(Clock::now() - begin));
    }
    std::sort(fetches.begin(), fetches.end());
    const double ideal = 16 * Microseconds(model_.Cost(/*writing=*/false, 65536));
    std::printf("%-8s %10.0f %10.0f %10.0f %12.1f %12.1f %10.2f %10.2f\n",
                std::string(model_.name).c_str(), ideal, fetches[kFetchCount / 2],
                fetches[kFetchCount * 99 / 100], Rate(4096) / 1e3,
                static_cast<double>(model_.read_count_per_second) / 1e3, Rate(65536) * 65536 / 1e9,
                static_cast<double>(model_.read_bytes_per_second) / 1e9);
  }

 private:
  void Read(int count, std::int64_t size_bytes) {
    for (int i = 0; i < count; ++i) {
      device_.SubmitRead(DeviceOffset(0),
                         buffer_.span().first(static_cast<std::size_t>(size_bytes)),
                         [](const absl::Status&) {});
    }
    while (device_.in_flight_count() > 0) device_.Poll(microseconds(100'000));
  }

  // Requests a second, the queue always full.
  double Rate(std::int64_t size_bytes) {
    const auto begin = Clock::now();
    const auto end = begin + std::chrono::milliseconds(500);
    int done = 0;
    std::function<void()> submit = [&] {
      device_.SubmitRead(DeviceOffset(0),
                         buffer_.span().first(static_cast<std::size_t>(size_bytes)),
                         [&](const absl::Status&) {
                           ++done;
                           if (Clock::now() < end) submit();
                         });
    };
    for (int i = 0; i < kQueueDepthDefault; ++i) submit();
    while (device_.in_flight_count() > 0) device_.Poll(microseconds(100'000));
    return done / std::chrono::duration<double>(Clock::now() - begin).count();
  }

  const DeviceModel model_;
  ModelledDevice device_;
  AlignedBuffer buffer_{65536};
};

}  // namespace
}  // namespace cairn::kv

int main() {
  std::printf("%-8s %32s %25s %21s\n", "", "16 x 64 KiB: ideal, p50, p99 us", "4 KiB: K/s, model",
              "64 KiB: GB/s, model");
  for (const char* name : {"emmc", "ufs3.1", "ufs4.0"}) {
    cairn::kv::Bench(*cairn::kv::FindDeviceModel(name)).Print();
  }
  return 0;
}
