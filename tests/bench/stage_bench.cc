// What it costs to stage a layer's hot clusters from where they lie, in pieces, against from one
// image of them that lies in a row, on modelled flash: docs/decisions/0010.
//
// usage: stage_bench
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>

#include "common/io/aligned_buffer.h"
#include "kv-node/device/memory_device.h"
#include "kv-node/device/modelled_device.h"

namespace cairn::kv {
namespace {

using std::chrono::microseconds;

constexpr std::int64_t kStageDeviceBytes = std::int64_t{256} << 20;
constexpr std::int64_t kStagedBytes = std::int64_t{2} << 20;
constexpr std::int64_t kImageRequestBytes = std::int64_t{256} << 10;

// The model's own clock, which only moves when everything that is due has been delivered: what else
// the machine does has no part in the times.
class StagedDevice {
 public:
  explicit StagedDevice(const DeviceModel& model)
      : device_(std::make_unique<MemoryDevice>(kStageDeviceBytes), model, kQueueDepthDefault,
                [this] { return now_; }) {}

  // Time to read kStagedBytes in requests of `request_bytes`, all in flight at once as far as the
  // device takes them: at random places, or one behind the other.
  long TimeUs(std::int64_t request_bytes, bool scattered) {
    const std::int64_t page = kIoAlignmentBytes;
    AlignedBuffer buffer(kStagedBytes);
    std::mt19937_64 random(1);
    const auto place = [&](std::int64_t bytes) {
      const auto count = static_cast<std::uint64_t>((kStageDeviceBytes - bytes) / page);
      return static_cast<std::int64_t>(random() % count) * page;
    };
    const std::int64_t image = place(kStagedBytes);
    std::int64_t open_count = 0;
    now_ += std::chrono::seconds(1);  // the device is idle
    const auto begin = now_;
    for (std::int64_t at = 0; at < kStagedBytes; at += request_bytes) {
      ++open_count;
      device_.SubmitRead(DeviceOffset(scattered ? place(request_bytes) : image + at),
                         buffer.span().subspan(static_cast<std::size_t>(at),
                                               static_cast<std::size_t>(request_bytes)),
                         [&open_count](const absl::Status&) { --open_count; });
    }
    while (open_count > 0) {
      if (device_.Poll(microseconds(0)) == 0) now_ += microseconds(1);
    }
    return static_cast<long>((now_ - begin) / microseconds(1));
  }

 private:
  std::chrono::steady_clock::time_point now_;
  ModelledDevice device_;
};

int MeasureStage() {
  std::printf("%ld bytes staged; us by the model's clock\n%-8s %8s %8s %8s %8s %8s\n",
              static_cast<long>(kStagedBytes), "", "4 KiB", "8 KiB", "16 KiB", "64 KiB", "image");
  for (const char* name : {"emmc", "ufs3.1", "ufs4.0"}) {
    StagedDevice device(*FindDeviceModel(name));
    std::printf("%-8s", name);
    for (const std::int64_t kib : {4, 8, 16, 64}) {
      std::printf(" %8ld", device.TimeUs(kib << 10, /*scattered=*/true));
    }
    std::printf(" %8ld\n", device.TimeUs(kImageRequestBytes, /*scattered=*/false));
  }
  return 0;
}

}  // namespace
}  // namespace cairn::kv

int main() { return cairn::kv::MeasureStage(); }
