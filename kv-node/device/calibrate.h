// CalibrateDevice measures how a device answers to reads of different sizes, so that the engine can
// choose what to read together and how many requests to have in flight.
//
// Units:      bytes, and bytes a second.
// Threading:  the thread that calls becomes the device's owner.
// Blocking:   reads for about a second, at most kCalibrateTimeMax and the requests then in flight.
// Limits:     at most kCalibrateBytesMax in flight, which is also the memory it takes.
// Errors:     FAILED_PRECONDITION the device is smaller than the largest request; as the device's
//             for a read that fails.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kv-node/device/device.h"

namespace cairn::kv {

inline constexpr std::int64_t kCalibrateRequestBytesMax = std::int64_t{1} << 20;
inline constexpr std::int64_t kCalibrateBytesMax = std::int64_t{4} << 20;
inline constexpr std::chrono::milliseconds kCalibrateTimeMax{2500};
// A cluster, about: the size for which the queue depth is chosen.
inline constexpr std::int64_t kCalibrateDepthRequestBytes = 16384;
// Fewer than this could not keep two fetches in flight.
inline constexpr int kQueueDepthMin = 4;
inline constexpr int kProfilePointsMax = 32;

struct ProfilePoint {
  std::int64_t request_bytes = 0;
  int depth = 0;  // requests in flight
  std::int64_t bytes_per_second = 0;
  friend bool operator==(const ProfilePoint&, const ProfilePoint&) = default;
};

struct DeviceProfile {
  // Device::name() of what was measured, which says when it was a model.
  std::string device_name;
  // Random reads of 4 KiB to 1 MiB, ascending, with as many in flight as the queue depth and
  // kCalibrateBytesMax let.
  std::vector<ProfilePoint> by_size;
  // Random reads of kCalibrateDepthRequestBytes, 1 in flight and more.
  std::vector<ProfilePoint> by_depth;
  // The median of single page reads.
  std::chrono::microseconds page_latency{0};
  // The smallest request that reaches 9/10 of the highest bandwidth.
  std::int64_t knee_bytes = 0;
  // Reading through a hole of up to this many bytes in front of a page takes no longer than asking
  // for that page alone does: the bandwidth's bytes in the time of a page request, less the page.
  // Whole pages.
  std::int64_t break_even_gap_bytes = 0;
  // The fewest requests in flight that reach 9/10 of the highest bandwidth; kQueueDepthMin at
  // least.
  int queue_depth = 0;
  friend bool operator==(const DeviceProfile&, const DeviceProfile&) = default;
};

struct CalibrateOptions {
  std::chrono::milliseconds point_time{60};
  // For tests. With another clock, `poll_wait` must be 0.
  std::function<std::chrono::steady_clock::time_point()> clock = std::chrono::steady_clock::now;
  std::chrono::microseconds poll_wait{10'000};
};

// REQUIRES: no requests in flight.
absl::StatusOr<DeviceProfile> CalibrateDevice(Device& device, const CalibrateOptions& options);

// In bytes a second.
std::int64_t HighestRate(const std::vector<ProfilePoint>& points);
// Fills in knee, gap and queue depth from the points. REQUIRES: by_size is not empty.
void DeriveLimits(DeviceProfile& profile);

}  // namespace cairn::kv
