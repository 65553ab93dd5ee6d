// The modelled device completes requests when its formula says so. The clock is the test's: nothing
// here depends on how fast the machine is.
#include "kv-node/device/modelled_device.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "kv-node/device/memory_device.h"
#include "tests/tools/faulty_device.h"
#include "tests/tools/seed.h"
#include "tests/unit/device/device_testing.h"

namespace cairn::kv {
namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr std::int64_t kModelledBytes = 4096 * kPage;
constexpr microseconds kStep{1};

class ModelledDeviceTest : public testing::Test {
 protected:
  void Make(const DeviceModel& model, std::unique_ptr<Device> below = nullptr) {
    if (below == nullptr) below = std::make_unique<MemoryDevice>(kModelledBytes);
    device_ = std::make_unique<ModelledDevice>(std::move(below), model, kQueueDepthMax,
                                               [this] { return now_; });
  }
  void Make(std::string_view name) {
    const absl::StatusOr<DeviceModel> model = FindDeviceModel(name);
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    Make(*model);
  }
  // `done_at_` gets the time of the completion, from the test's start.
  void Submit(bool write, std::int64_t size_bytes) {
    const std::size_t index = done_at_.size();
    done_at_.emplace_back(-1);
    const auto done = [this, index](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status.ToString();
      done_at_[index] = now_ - begin_;
    };
    const auto bytes = buffer_.span().first(static_cast<std::size_t>(size_bytes));
    if (write) {
      device_->SubmitWrite(DeviceOffset(0), bytes, done);
    } else {
      device_->SubmitRead(DeviceOffset(0), bytes, done);
    }
  }
  void RunFor(nanoseconds time) {
    for (const auto end = now_ + time; now_ < end; now_ += kStep) device_->Poll(microseconds(0));
  }
  void RunUntilIdle() {
    for (int i = 0; device_->in_flight_count() > 0; ++i) {
      ASSERT_LT(i, 10'000'000) << "requests never completed";
      device_->Poll(microseconds(0));
      now_ += kStep;
    }
  }
  // Within 5 %, and one step of the test's clock.
  static void ExpectNear(nanoseconds got, nanoseconds ideal) {
    EXPECT_GE(got, ideal - ideal / 20);
    EXPECT_LE(got, ideal + ideal / 20 + kStep);
  }

  const ModelledDevice::TimePoint begin_{std::chrono::hours(1)};
  ModelledDevice::TimePoint now_ = begin_;
  AlignedBuffer buffer_{std::int64_t{1} << 20};
  std::vector<nanoseconds> done_at_;
  std::unique_ptr<Device> device_;
};

TEST_F(ModelledDeviceTest, AFetchOfSixteenRequestsTakesTheirBytesAtTheBandwidth) {
  const std::map<std::string_view, nanoseconds> ideals = {
      {"emmc", microseconds(4194)}, {"ufs3.1", microseconds(499)}, {"ufs4.0", microseconds(362)}};
  for (const auto& [name, ideal] : ideals) {
    Make(name);
    RunFor(microseconds(20000));  // idle time is not saved up
    const nanoseconds start = now_ - begin_;
    done_at_.clear();
    for (int i = 0; i < 16; ++i) Submit(/*write=*/false, 65536);
    RunUntilIdle();
    ExpectNear(done_at_.back() - start, ideal);
    ExpectNear(done_at_[7] - start, std::max(ideal / 2, nanoseconds(microseconds(80))));
  }
}

TEST_F(ModelledDeviceTest, SmallRequestsAreBoundByTheirNumberASecond) {
  Make("emmc");
  for (int i = 0; i < 1000; ++i) Submit(/*write=*/false, kPage);
  RunUntilIdle();
  ExpectNear(done_at_.back(), microseconds(125'000));
}

TEST_F(ModelledDeviceTest, OneRequestTakesTheBaseLatencyAtLeast) {
  Make("ufs4.0");
  Submit(/*write=*/false, kPage);
  RunUntilIdle();
  ExpectNear(done_at_[0], microseconds(80));
}

TEST_F(ModelledDeviceTest, WritesHaveTheirOwnBandwidthAndDelayReads) {
  Make("emmc");
  Submit(/*write=*/true, 1 << 20);
  Submit(/*write=*/false, kPage);
  RunUntilIdle();
  ExpectNear(done_at_[0], microseconds(8389));
  ExpectNear(done_at_[1], microseconds(8389 + 125));
}

TEST_F(ModelledDeviceTest, AFlushComesBehindWhatWasStartedBefore) {
  Make("emmc");
  nanoseconds flushed{0};
  Submit(/*write=*/true, 1 << 20);
  device_->SubmitFlush([&](const absl::Status&) { flushed = now_ - begin_; });
  RunUntilIdle();
  ExpectNear(flushed, microseconds(8389 + 125));
}

TEST_F(ModelledDeviceTest, RequestsAboveTheQueueDepthWaitForACompletion) {
  DeviceModel model = *FindDeviceModel("ufs4.0");
  model.queue_depth = 2;
  Make(model);
  for (int i = 0; i < 10; ++i) Submit(/*write=*/false, kPage);
  RunUntilIdle();
  ExpectNear(done_at_.back(), microseconds(5 * 80));
}

TEST_F(ModelledDeviceTest, RandomRequestsCompleteAtTheFormulasTimes) {
  std::mt19937_64 random(test::TestSeed());
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  for (const std::string_view name : {"emmc", "ufs3.1", "ufs4.0"}) {
    Make(name);
    const DeviceModel model = *FindDeviceModel(name);
    done_at_.clear();
    std::vector<nanoseconds> ideal;
    std::vector<nanoseconds> started;
    nanoseconds virtual_time{0};
    for (int i = 0; i < 300; ++i) {
      RunFor(microseconds(below(400)));
      // The formula without the queue: never more than the queue depth at once.
      if (device_->in_flight_count() >= model.queue_depth) RunUntilIdle();
      const bool write = below(3) == 0;
      const std::int64_t size = kPage << below(7);
      const nanoseconds start = now_ - begin_;
      const double bandwidth =
          static_cast<double>(write ? model.write_bytes_per_second : model.read_bytes_per_second);
      const double rate =
          static_cast<double>(write ? model.write_count_per_second : model.read_count_per_second);
      const double cost = std::max(static_cast<double>(size) / bandwidth, 1 / rate) * 1e9;
      virtual_time = std::max(virtual_time, start) + nanoseconds(static_cast<std::int64_t>(cost));
      ideal.push_back(std::max(virtual_time, start + model.base_latency));
      started.push_back(start);
      Submit(write, size);
    }
    RunUntilIdle();
    for (std::size_t i = 0; i < ideal.size(); ++i) {
      ExpectNear(done_at_[i] - started[i], ideal[i] - started[i]);
    }
  }
}

TEST_F(ModelledDeviceTest, NothingCompletesBeforeTheDeviceBelowHasDoneIt) {
  FaultyDisk disk({.size_bytes = kModelledBytes, .seed = 1, .delay_polls_max = 100'000});
  Make(*FindDeviceModel("ufs4.0"), disk.Open());
  const AlignedBuffer data = Pattern(kPage, 1);
  bool done = false;
  device_->SubmitWrite(DeviceOffset(0), data.span(), [&](const absl::Status& status) {
    EXPECT_TRUE(status.ok());
    EXPECT_EQ(disk.PageBytes(0), std::vector<std::byte>(data.data(), data.data() + kPage));
    done = true;
  });
  RunUntilIdle();
  EXPECT_TRUE(done);
  EXPECT_GT(now_ - begin_, microseconds(90));  // of this seed: the disk was the slower one
  device_.reset();                             // before its disk
}

TEST_F(ModelledDeviceTest, ErrorsOfTheDeviceBelowArePassedOn) {
  FaultyDisk disk({.size_bytes = kModelledBytes, .seed = 1});
  Make(*FindDeviceModel("ufs4.0"), disk.Open());
  disk.FailNextReads(1);
  absl::Status status;
  device_->SubmitRead(DeviceOffset(3 * kPage), buffer_.span(),
                      [&](const absl::Status& got) { status = got; });
  RunUntilIdle();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(device_->stats().error_count, 1);
  device_.reset();  // before its disk
}

TEST(DeviceModel, IsFoundByItsName) {
  for (const std::string_view name : {"emmc", "ufs3.1", "ufs4.0"}) {
    const absl::StatusOr<DeviceModel> model = FindDeviceModel(name);
    ASSERT_TRUE(model.ok());
    EXPECT_EQ(model->name, name);
  }
  const absl::Status status = FindDeviceModel("nvme").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(ToStd(status.message()).find("emmc, ufs3.1, ufs4.0"), std::string_view::npos) << status;
}

TEST(DeviceModel, TheNameOfAModelledDeviceSaysSo) {
  const ModelledDevice device(std::make_unique<MemoryDevice>(kModelledBytes),
                              *FindDeviceModel("emmc"), kQueueDepthDefault);
  EXPECT_EQ(device.name(), "memory+emmc");
}

}  // namespace
}  // namespace cairn::kv
