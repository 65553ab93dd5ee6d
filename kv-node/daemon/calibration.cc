#include "kv-node/daemon/calibration.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/log/log.h"
#include "kv-node/engine/engine.h"
#include "kv-node/layout/file_calls.h"
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
  if (HasUnwrittenSpace(fd, options.size_bytes)) {
    return FailedPrecondition(
        "the extent file was not written in full when it was created (prefill_extent_file): reads "
        "of it are answered without the device, so measuring it says nothing");
  }
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, OpenFileDevice(fd, options));
  CAIRN_ASSIGN_OR_RETURN(DeviceProfile profile, CalibrateDevice(*device, {}));
  MetaBatch batch;
  batch.Put(Family::kConfig, DeviceProfileKey(options.model ? options.model->name : ""),
            EncodeDeviceProfile(profile));
  CAIRN_RETURN_IF_ERROR(meta.CommitAndWait(std::move(batch)));
  return profile;
}

MergeLimits MergeLimitsOf(const DeviceProfile& profile) {
  const std::int64_t highest = HighestRate(profile.by_size);
  MergeLimits limits;
  double page_gap = 0;
  double smallest_gap = 0;
  for (const ProfilePoint& point : profile.by_size) {
    if (point.bytes_per_second <= 0) break;
    const double ratio = static_cast<double>(highest) / static_cast<double>(point.bytes_per_second);
    const double gap = static_cast<double>(point.request_bytes) * (ratio - 1);
    if (limits.piece_bytes_max == 0) page_gap = smallest_gap = gap;
    if (gap < page_gap / 2 || gap < kPageBytes) break;
    limits.piece_bytes_max = point.request_bytes;
    smallest_gap = std::min(smallest_gap, gap);
  }
  if (limits.piece_bytes_max > 0) {
    const double most = std::min(smallest_gap, static_cast<double>(kMergeGapBytesMax));
    limits.gap_bytes = static_cast<std::int64_t>(most) / kPageBytes * kPageBytes;
  }
  return limits;
}

std::string ProfileSummary(const DeviceProfile& profile) {
  const MergeLimits merge = MergeLimitsOf(profile);
  return fmt::format(
      "device={} page_latency_us={} bytes_per_second={} knee_bytes={} break_even_gap_bytes={} "
      "merge_gap_bytes={} merge_piece_bytes_max={} queue_depth={}",
      profile.device_name, profile.page_latency.count(), HighestRate(profile.by_size),
      profile.knee_bytes, profile.break_even_gap_bytes, merge.gap_bytes, merge.piece_bytes_max,
      profile.queue_depth);
}

}  // namespace cairn::kv
