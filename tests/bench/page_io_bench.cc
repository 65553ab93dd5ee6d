// What reading through holes gains on modelled flash: fetches of pieces with holes between them,
// with and without, by the profile that a calibration of the same device finds.
//
// usage: page_io_bench
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "kv-node/daemon/calibration.h"
#include "kv-node/device/calibrate.h"
#include "kv-node/device/memory_device.h"
#include "kv-node/device/modelled_device.h"
#include "kv-node/engine/io/page_io.h"

namespace cairn::kv {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr std::int64_t kPageIoDeviceBytes = std::int64_t{256} << 20;
constexpr int kPageIoFetchCount = 100;
constexpr int kPieceCount = 64;
constexpr std::int64_t kHolePagesMax = 5;

struct Result {
  double p50_us = 0;
  std::int64_t request_count = 0;  // of one fetch, as the next two
  std::int64_t read_bytes = 0;
  std::int64_t hole_bytes = 0;
};

// Pieces of `piece_pages` pages, each behind a hole of 1 to kHolePagesMax pages.
Result FetchOnce(Device& device, const MergeLimits& merge, std::int64_t piece_pages) {
  KvStats counts;
  PageIo io(device, merge, counts);
  std::mt19937_64 random(1);
  std::vector<double> times;
  for (int i = 0; i < kPageIoFetchCount; ++i) {
    std::vector<PageIndex> pages;
    std::int64_t page = 2 + static_cast<std::int64_t>(random() % 50'000);
    for (int piece = 0; piece < kPieceCount; ++piece) {
      page += 1 + static_cast<std::int64_t>(random() % kHolePagesMax);
      for (std::int64_t p = 0; p < piece_pages; ++p) pages.emplace_back(page++);
    }
    bool done = false;
    const auto begin = Clock::now();
    io.Read(std::move(pages), ReadCause::kFetch, [&done](const PageSet&) { done = true; });
    while (!done) device.Poll(microseconds(100'000));
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return {times[kPageIoFetchCount / 2], counts.read_fetch_count / kPageIoFetchCount,
          counts.read_fetch_bytes / kPageIoFetchCount, counts.read_hole_bytes / kPageIoFetchCount};
}

int MeasurePageIo() {
  std::printf("%-8s %10s %10s %12s | %10s %10s | %10s %10s %12s\n", "", "gap bytes", "piece max",
              "piece bytes", "off: us", "requests", "on: us", "requests", "hole bytes");
  for (const char* name : {"emmc", "ufs3.1", "ufs4.0"}) {
    ModelledDevice device(std::make_unique<MemoryDevice>(kPageIoDeviceBytes),
                          *FindDeviceModel(name), kQueueDepthDefault);
    const absl::StatusOr<DeviceProfile> profile = CalibrateDevice(device, {});
    if (!profile.ok()) {
      std::printf("%s\n", Message(profile.status()).c_str());
      return 1;
    }
    const MergeLimits merge = MergeLimitsOf(*profile);
    for (const std::int64_t piece_pages : {1, 2, 4, 8, 16}) {
      const Result off = FetchOnce(device, {}, piece_pages);
      const Result on = FetchOnce(device, merge, piece_pages);
      std::printf("%-8s %10ld %10ld %12ld | %10.0f %10ld | %10.0f %10ld %12ld\n", name,
                  merge.gap_bytes, merge.piece_bytes_max, piece_pages * kPageBytes, off.p50_us,
                  off.request_count, on.p50_us, on.request_count, on.hole_bytes);
    }
  }
  return 0;
}

}  // namespace
}  // namespace cairn::kv

int main() { return cairn::kv::MeasurePageIo(); }
