#include "kv-node/device/calibrate.h"

#include <algorithm>
#include <random>

#include "common/base/check.h"

namespace cairn::kv {
namespace {

using std::chrono::microseconds;
using TimePoint = std::chrono::steady_clock::time_point;

constexpr std::int64_t kPage = kIoAlignmentBytes;
constexpr int kLatencyReads = 65;

class Calibration {
 public:
  Calibration(Device& device, const CalibrateOptions& options)
      : device_(device),
        options_(options),
        buffer_(kCalibrateBytesMax),
        end_(options.clock() + kCalibrateTimeMax) {}

  absl::StatusOr<DeviceProfile> Run() {
    DeviceProfile profile;
    profile.device_name = std::string(device_.name());
    CAIRN_ASSIGN_OR_RETURN(profile.page_latency, PageLatency());
    for (std::int64_t size = kPage; size <= kCalibrateRequestBytesMax; size *= 2) {
      // The limits come from one size at least.
      if (size > kPage && !InTime()) break;
      const std::int64_t fitting = kCalibrateBytesMax / size;
      const int depth = static_cast<int>(std::min<std::int64_t>(device_.queue_depth(), fitting));
      CAIRN_ASSIGN_OR_RETURN(const ProfilePoint point, Measure(size, depth));
      profile.by_size.push_back(point);
    }
    for (int depth = 1; depth <= device_.queue_depth() && InTime(); depth *= 2) {
      if (depth * kCalibrateDepthRequestBytes > kCalibrateBytesMax) break;
      CAIRN_ASSIGN_OR_RETURN(const ProfilePoint point, Measure(kCalibrateDepthRequestBytes, depth));
      profile.by_depth.push_back(point);
    }
    DeriveLimits(profile);
    return profile;
  }

 private:
  bool InTime() const { return options_.clock() < end_; }

  void Submit(std::int64_t size_bytes, int lane) {
    const auto place_count =
        static_cast<std::uint64_t>((device_.size_bytes() - size_bytes) / kPage);
    const auto page = static_cast<std::int64_t>(random_() % (place_count + 1));
    const auto size = static_cast<std::size_t>(size_bytes);
    device_.SubmitRead(DeviceOffset(page * kPage),
                       buffer_.span().subspan(static_cast<std::size_t>(lane) * size, size),
                       [this, size_bytes, lane](const absl::Status& status) {
                         status_.Update(status);
                         ++done_count_;
                         if (status_.ok() && options_.clock() < point_end_) {
                           Submit(size_bytes, lane);
                         }
                       });
  }

  absl::StatusOr<ProfilePoint> Measure(std::int64_t size_bytes, int depth) {
    done_count_ = 0;
    const TimePoint begin = options_.clock();
    point_end_ = begin + options_.point_time;
    for (int lane = 0; lane < depth; ++lane) Submit(size_bytes, lane);
    Drain();
    CAIRN_RETURN_IF_ERROR(status_);
    const auto time =
        std::max(std::chrono::nanoseconds(1), std::chrono::nanoseconds(options_.clock() - begin));
    const double seconds = std::chrono::duration<double>(time).count();
    const double rate = static_cast<double>(done_count_ * size_bytes) / seconds;
    return ProfilePoint{size_bytes, depth,
                        std::max<std::int64_t>(1, static_cast<std::int64_t>(rate))};
  }

  absl::StatusOr<microseconds> PageLatency() {
    std::vector<microseconds> times;
    const TimePoint end = options_.clock() + options_.point_time;
    while (times.size() < kLatencyReads && (times.empty() || options_.clock() < end)) {
      const TimePoint begin = options_.clock();
      point_end_ = begin;  // one read, no next one
      Submit(kPage, 0);
      Drain();
      CAIRN_RETURN_IF_ERROR(status_);
      times.push_back(std::chrono::duration_cast<microseconds>(options_.clock() - begin));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  void Drain() {
    while (device_.in_flight_count() > 0) device_.Poll(options_.poll_wait);
  }

  Device& device_;
  const CalibrateOptions& options_;
  AlignedBuffer buffer_;
  const TimePoint end_;
  TimePoint point_end_{};
  std::int64_t done_count_ = 0;
  absl::Status status_;
  std::mt19937_64 random_{1};  // NOLINT(cert-msc51-cpp): the same places every time
};

// The first point with 9/10 of the highest bandwidth: what is left costs more than it gains, and
// differences below that are the noise of one run.
const ProfilePoint& FirstGoodEnough(const std::vector<ProfilePoint>& points) {
  const std::int64_t enough = HighestRate(points) / 10 * 9;
  return *std::find_if(points.begin(), points.end(), [enough](const ProfilePoint& point) {
    return point.bytes_per_second >= enough;
  });
}

}  // namespace

std::int64_t HighestRate(const std::vector<ProfilePoint>& points) {
  std::int64_t highest = 0;
  for (const ProfilePoint& point : points) highest = std::max(highest, point.bytes_per_second);
  return highest;
}

void DeriveLimits(DeviceProfile& profile) {
  CAIRN_CHECK(!profile.by_size.empty());
  profile.knee_bytes = FirstGoodEnough(profile.by_size).request_bytes;
  const ProfilePoint& smallest = profile.by_size.front();
  const double ratio = static_cast<double>(HighestRate(profile.by_size)) /
                       static_cast<double>(smallest.bytes_per_second);
  const double gap_bytes = static_cast<double>(smallest.request_bytes) * (ratio - 1);
  profile.break_even_gap_bytes = static_cast<std::int64_t>(std::min(
                                     gap_bytes, static_cast<double>(kCalibrateRequestBytesMax))) /
                                 kPage * kPage;
  // Without points (a slow device took all the time for the others) the default stays.
  profile.queue_depth = profile.by_depth.empty()
                            ? kQueueDepthDefault
                            : std::max(kQueueDepthMin, FirstGoodEnough(profile.by_depth).depth);
}

absl::StatusOr<DeviceProfile> CalibrateDevice(Device& device, const CalibrateOptions& options) {
  CAIRN_CHECK_EQ(device.in_flight_count(), 0);
  if (device.size_bytes() < kCalibrateRequestBytesMax) {
    return FailedPrecondition("calibrate: the device has {} bytes, at least {} are needed",
                              device.size_bytes(), kCalibrateRequestBytesMax);
  }
  return Calibration(device, options).Run();
}

}  // namespace cairn::kv
