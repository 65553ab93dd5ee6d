// What a calibration makes of devices whose speed is known. Time passes when somebody looks at the
// clock, so that nothing here depends on how fast the machine is.
#include "kv-node/device/calibrate.h"

#include <memory>

#include "kv-node/device/memory_device.h"
#include "kv-node/device/modelled_device.h"
#include "tests/tools/faulty_device.h"
#include "tests/unit/device/device_testing.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kCalibratedBytes = std::int64_t{64} << 20;

class CalibrateTest : public testing::Test {
 protected:
  ModelledDevice::TimePoint Now() { return now_ += std::chrono::nanoseconds(1000); }
  absl::StatusOr<DeviceProfile> Calibrate(const DeviceModel& model) {
    ModelledDevice device(std::make_unique<MemoryDevice>(kCalibratedBytes), model,
                          kQueueDepthDefault, [this] { return Now(); });
    return CalibrateDevice(
        device, {.clock = [this] { return Now(); }, .poll_wait = std::chrono::microseconds(0)});
  }
  static void ExpectNear(std::int64_t got, std::int64_t ideal) {
    EXPECT_GE(got, ideal - ideal / 10);
    EXPECT_LE(got, ideal + ideal / 10);
  }

  ModelledDevice::TimePoint now_{std::chrono::hours(1)};
};

TEST_F(CalibrateTest, FindsTheFiguresOfModelledFlash) {
  // The formula's: the knee is where bandwidth and rate meet, in powers of two and 9/10 of it; the
  // gap is what the bandwidth gives in the time of a request, less a page, in whole pages.
  struct Case {
    const char* name;
    std::int64_t knee_bytes;
    std::int64_t gap_bytes;
  };
  for (const Case& c : {Case{"emmc", 32768, 6 * kPage}, Case{"ufs3.1", 32768, 4 * kPage},
                        Case{"ufs4.0", 32768, 5 * kPage}}) {
    const DeviceModel model = *FindDeviceModel(c.name);
    const absl::StatusOr<DeviceProfile> profile = Calibrate(model);
    ASSERT_TRUE(profile.ok()) << profile.status();
    EXPECT_EQ(profile->device_name, std::string("memory+") + c.name);
    EXPECT_EQ(profile->knee_bytes, c.knee_bytes) << c.name;
    // Rounded down: what is just above a page may be just below it.
    EXPECT_LE(profile->break_even_gap_bytes, c.gap_bytes) << c.name;
    EXPECT_GE(profile->break_even_gap_bytes, c.gap_bytes - kPage) << c.name;
    ASSERT_EQ(profile->by_size.size(), 9U);
    ExpectNear(profile->by_size.front().bytes_per_second, kPage * model.read_count_per_second);
    ExpectNear(profile->by_size.back().bytes_per_second, model.read_bytes_per_second);
    const auto base_us = std::chrono::duration_cast<std::chrono::microseconds>(
        std::max(model.base_latency, model.Cost(/*writing=*/false, kPage)));
    ExpectNear(profile->page_latency.count(), base_us.count());
  }
}

TEST_F(CalibrateTest, TheQueueDepthIsWhatFillsTheDevice) {
  // One cluster takes 10 us of the device and 200 us in all: 20 at once fill it.
  DeviceModel model{.name = "test",
                    .read_bytes_per_second = 4'000'000'000,
                    .write_bytes_per_second = 4'000'000'000,
                    .read_count_per_second = 100'000,
                    .write_count_per_second = 100'000,
                    .base_latency = std::chrono::microseconds(200)};
  EXPECT_EQ(Calibrate(model)->queue_depth, 32);
  model.base_latency = std::chrono::microseconds(75);
  EXPECT_EQ(Calibrate(model)->queue_depth, 8);
  model.base_latency = std::chrono::microseconds(1);
  EXPECT_EQ(Calibrate(model)->queue_depth, kQueueDepthMin);
}

TEST_F(CalibrateTest, TakesBoundedTimeAndMemoryOnASlowDevice) {
  DeviceModel model = *FindDeviceModel("emmc");
  model.read_bytes_per_second = 5'000'000;
  model.read_count_per_second = 100;
  const auto begin = now_;
  const absl::StatusOr<DeviceProfile> profile = Calibrate(model);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_LT(now_ - begin, kCalibrateTimeMax + std::chrono::seconds(1));
  EXPECT_LT(profile->by_size.size(), 9U);
  EXPECT_TRUE(profile->by_depth.empty());
  EXPECT_EQ(profile->queue_depth, kQueueDepthDefault);
}

TEST_F(CalibrateTest, ADiskThatStallsIsMeasuredAtOneSize) {
  DeviceModel model = *FindDeviceModel("emmc");
  model.base_latency = 2 * kCalibrateTimeMax;
  const absl::StatusOr<DeviceProfile> profile = Calibrate(model);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->by_size.size(), 1U);
  EXPECT_EQ(profile->knee_bytes, kPage);
}

TEST_F(CalibrateTest, ADeviceTooSmallIsRefused) {
  MemoryDevice device(kCalibrateRequestBytesMax - kPage);
  EXPECT_EQ(CalibrateDevice(device, {}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CalibrateTest, AReadThatFailsIsReported) {
  FaultyDisk disk({.size_bytes = kCalibratedBytes, .seed = 1});
  const std::unique_ptr<Device> device = disk.Open();
  disk.FailNextReads(1);
  EXPECT_EQ(CalibrateDevice(*device, {}).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(device->in_flight_count(), 0);
}

TEST_F(CalibrateTest, TheRealClockEndsIt) {
  MemoryDevice device(kCalibratedBytes);
  const absl::StatusOr<DeviceProfile> profile = CalibrateDevice(device, {});
  ASSERT_TRUE(profile.ok()) << profile.status();
  // On a busy machine the time may be up before all sizes had theirs.
  EXPECT_FALSE(profile->by_size.empty());
}

TEST(DeviceProfile, LimitsComeFromThePoints) {
  DeviceProfile profile;
  profile.by_size = {{4096, 32, 100}, {8192, 32, 200}, {16384, 32, 899}, {32768, 32, 1000}};
  profile.by_depth = {{16384, 1, 100}, {16384, 2, 899}, {16384, 4, 950}, {16384, 8, 1000}};
  DeriveLimits(profile);
  EXPECT_EQ(profile.knee_bytes, 32768);
  EXPECT_EQ(profile.break_even_gap_bytes, 9 * 4096);
  EXPECT_EQ(profile.queue_depth, 4);
  // Small requests that are as fast as large ones leave nothing to gain.
  profile.by_size = {{4096, 32, 1000}, {8192, 32, 990}};
  DeriveLimits(profile);
  EXPECT_EQ(profile.break_even_gap_bytes, 0);
}

}  // namespace
}  // namespace cairn::kv
