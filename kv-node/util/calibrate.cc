#include "kv-node/util/calibrate.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/json_string.h"
#include "kv-node/daemon/calibration.h"
#include "kv-node/util/store_tool.h"

namespace cairn::kv {
namespace {

std::string PointLine(const ProfilePoint& point) {
  const double seconds_each =
      static_cast<double>(point.request_bytes) / static_cast<double>(point.bytes_per_second);
  return fmt::format("{:>14} {:>10} {:>12.1f} {:>14.0f}\n", point.request_bytes, point.depth,
                     static_cast<double>(point.bytes_per_second) / 1e6, 1 / seconds_each);
}

std::string Report(const DeviceProfile& profile) {
  std::string text =
      fmt::format("device {}: random reads\n{:>14} {:>10} {:>12} {:>14}\n", profile.device_name,
                  "request bytes", "in flight", "MB/s", "requests/s");
  for (const ProfilePoint& point : profile.by_size) text += PointLine(point);
  text += "\n";
  const MergeLimits merge = MergeLimitsOf(profile);
  for (const ProfilePoint& point : profile.by_depth) text += PointLine(point);
  text += fmt::format(
      "\none page: {} us; knee: {} bytes; queue depth {}; holes up to {} bytes are read through, "
      "in "
      "front of pieces up to {}\n",
      profile.page_latency.count(), profile.knee_bytes, profile.queue_depth, merge.gap_bytes,
      merge.piece_bytes_max);
  return text;
}

std::string PointsJson(const std::vector<ProfilePoint>& points) {
  std::vector<std::string> out;
  out.reserve(points.size());
  for (const ProfilePoint& point : points) {
    out.push_back(
        fmt::format("{{\"request_bytes\": {}, \"in_flight\": {}, \"bytes_per_second\": {}}}",
                    point.request_bytes, point.depth, point.bytes_per_second));
  }
  return fmt::format("[{}]", fmt::join(out, ", "));
}

std::string JsonReport(const DeviceProfile& profile) {
  const MergeLimits merge = MergeLimitsOf(profile);
  return fmt::format(
      "{{\"device\": {}, \"by_size\": {}, \"by_depth\": {}, \"page_microseconds\": {}, "
      "\"knee_bytes\": {}, \"queue_depth\": {}, \"merge_gap_bytes\": {}, "
      "\"merge_piece_bytes_max\": {}}}\n",
      JsonString(profile.device_name), PointsJson(profile.by_size), PointsJson(profile.by_depth),
      profile.page_latency.count(), profile.knee_bytes, profile.queue_depth, merge.gap_bytes,
      merge.piece_bytes_max);
}

}  // namespace

absl::StatusOr<std::string> RunCalibrate(const CalibrateCommand& command) {
  FileDeviceOptions device_options{.engine = command.engine};
  if (!command.device_profile.empty()) {
    CAIRN_ASSIGN_OR_RETURN(device_options.model, FindDeviceModel(command.device_profile));
  }
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<ExtentFile> file,
                         ExtentFile::Open({.directory = command.data_dir}));
  device_options.size_bytes = file->size_bytes();
  std::optional<std::uint64_t> closed_sequence;
  MetaOptions options = MetaOptionsOf(command.data_dir, *file);
  options.on_clean_close = [&closed_sequence](std::uint64_t sequence) {
    closed_sequence = sequence;
  };
  const std::string store_id = options.store_id;
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<MetaStore> meta, MetaStore::Open(std::move(options)));
  CAIRN_RETURN_IF_ERROR(CheckStoreId(*meta, store_id, file->path()));
  CAIRN_ASSIGN_OR_RETURN(const DeviceProfile profile,
                         MeasureDeviceProfile(file->fd(), device_options, *meta));
  meta.reset();
  if (closed_sequence) CAIRN_RETURN_IF_ERROR(file->RecordMetadataSequence(*closed_sequence));
  return command.json ? JsonReport(profile) : Report(profile);
}

}  // namespace cairn::kv
