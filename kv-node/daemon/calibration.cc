#include "kv-node/daemon/calibration.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/log/log.h"
#include "kv-node/layout/rows.h"

namespace cairn::kv {

absl::StatusOr<std::optional<DeviceProfile>> LoadDeviceProfile(MetaReader& reader,
                                                               std::string_view model) {
  CAIRN_ASSIGN_OR_RETURN(const std::optional<std::string> row,
                         reader.Get(Family::kConfig, DeviceProfileKey(model)));
  if (!row) return std::nullopt;
  absl::StatusOr<DeviceProfile> profile = DecodeDeviceProfile(*row);
  if (!profile.ok()) {
    LogWarning("device profile not used error=\"{}\"", Message(profile.status()));
    return std::nullopt;
  }
  return *std::move(profile);
}

absl::StatusOr<DeviceProfile> MeasureDeviceProfile(int fd, const FileDeviceOptions& options,
                                                   MetaStore& meta) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, OpenFileDevice(fd, options));
  CAIRN_ASSIGN_OR_RETURN(DeviceProfile profile, CalibrateDevice(*device, {}));
  MetaBatch batch;
  batch.Put(Family::kConfig, DeviceProfileKey(options.model ? options.model->name : ""),
            EncodeDeviceProfile(profile));
  CAIRN_RETURN_IF_ERROR(meta.CommitAndWait(std::move(batch)));
  return profile;
}

std::string ProfileSummary(const DeviceProfile& profile) {
  std::int64_t highest = 0;
  for (const ProfilePoint& point : profile.by_size) {
    highest = std::max(highest, point.bytes_per_second);
  }
  return fmt::format(
      "device={} page_latency_us={} bytes_per_second={} knee_bytes={} break_even_gap_bytes={} "
      "queue_depth={}",
      profile.device_name, profile.page_latency.count(), highest, profile.knee_bytes,
      profile.break_even_gap_bytes, profile.queue_depth);
}

}  // namespace cairn::kv
