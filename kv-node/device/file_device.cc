#include "kv-node/device/file_device.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "common/log/log.h"
#include "kv-node/device/thread_pool_device.h"
#include "kv-node/device/uring_device.h"
#include "kv-node/device/uring_probe.h"

namespace cairn::kv {
namespace {

absl::StatusOr<std::int64_t> DeviceSize(int fd, std::int64_t wanted_bytes) {
  struct stat file {};
  if (fstat(fd, &file) != 0) return ErrnoStatus(errno, fmt::format("stat descriptor {}", fd));
  const std::int64_t whole_bytes = file.st_size / kIoAlignmentBytes * kIoAlignmentBytes;
  if (wanted_bytes == 0) return whole_bytes;
  if (wanted_bytes < 0 || wanted_bytes % kIoAlignmentBytes != 0 || wanted_bytes > whole_bytes) {
    return InvalidArgument(
        "open device: size {} is not a multiple of {} within the file's {} bytes", wanted_bytes,
        kIoAlignmentBytes, file.st_size);
  }
  return wanted_bytes;
}

// For errors. The name that the file was opened by, or what the kernel says of it.
std::string PathOf(int fd) {
  std::error_code error;
  const auto path = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd), error);
  return error ? fmt::format("descriptor {}", fd) : path.string();
}

}  // namespace

absl::StatusOr<IoEngine> ParseIoEngine(std::string_view text) {
  if (text == "auto") return IoEngine::kAuto;
  if (text == "io_uring") return IoEngine::kIoUring;
  if (text == "threads") return IoEngine::kThreads;
  return InvalidArgument("I/O engine \"{}\": expected auto, io_uring or threads", text);
}

absl::StatusOr<std::unique_ptr<Device>> OpenFileDevice(int fd, const FileDeviceOptions& options) {
  if (options.queue_depth < 1 || options.queue_depth > kQueueDepthMax) {
    return InvalidArgument("open device: queue depth {} is not in 1..{}", options.queue_depth,
                           kQueueDepthMax);
  }
  if (options.thread_count < 1 || options.thread_count > kIoThreadCountMax) {
    return InvalidArgument("open device: thread count {} is not in 1..{}", options.thread_count,
                           kIoThreadCountMax);
  }
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t size_bytes, DeviceSize(fd, options.size_bytes));
  UringProbe probe{.reason = "the configuration asks for threads"};
  if (options.engine != IoEngine::kThreads) probe = ProbeUring();
  if (options.engine == IoEngine::kIoUring && !probe.available) {
    return FailedPrecondition(
        "open device: io_uring is demanded but refused: {}; allow it, or choose engine auto or "
        "threads",
        probe.reason);
  }
  std::unique_ptr<Device> device;
  if (probe.available) {
    device = std::make_unique<UringDevice>(fd, size_bytes, options.queue_depth);
  } else {
    device = std::make_unique<ThreadPoolDevice>(fd, size_bytes, options.queue_depth,
                                                options.thread_count);
  }
  device->set_path(PathOf(fd));
  if (options.model) {
    device =
        std::make_unique<ModelledDevice>(std::move(device), *options.model, options.queue_depth);
  }
  LogInfo("device opened engine={} reason=\"{}\" size_bytes={} queue_depth={}", device->name(),
          probe.reason, size_bytes, options.queue_depth);
  return device;
}

}  // namespace cairn::kv
