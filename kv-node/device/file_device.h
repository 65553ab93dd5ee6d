// Opens the device of an extent file: io_uring where the kernel allows it, otherwise a thread pool.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "common/base/status.h"
#include "kv-node/device/device.h"
#include "kv-node/device/modelled_device.h"

namespace cairn::kv {

enum class IoEngine : std::uint8_t { kAuto, kIoUring, kThreads };

// "auto", "io_uring", "threads"; INVALID_ARGUMENT otherwise.
absl::StatusOr<IoEngine> ParseIoEngine(std::string_view text);

struct FileDeviceOptions {
  IoEngine engine = IoEngine::kAuto;
  std::int64_t size_bytes = 0;  // 0: the file's size
  int queue_depth = kQueueDepthDefault;
  int thread_count = 4;  // of the thread pool
  // Delivers completions as such a device would.
  std::optional<DeviceModel> model = std::nullopt;
};

// `fd` is borrowed and outlives the device. Logs the engine and why it was chosen.
//
// Errors:     FAILED_PRECONDITION io_uring demanded but refused (the message says by what);
//             INVALID_ARGUMENT bad options.
absl::StatusOr<std::unique_ptr<Device>> OpenFileDevice(int fd, const FileDeviceOptions& options);

}  // namespace cairn::kv
