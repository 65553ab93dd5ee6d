#include "kv-node/daemon/config.h"

#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "cairn/config/v1/kv_node.descriptor.h"
#include "common/base/range.h"
#include "common/base/thread.h"
#include "common/rpc/unix_socket.h"
#include "kv-node/device/file_device.h"
#include "kv-node/engine/engine.h"
#include "kv-node/layout/part.h"
#include "kv-node/layout/superblock.h"

namespace cairn::kv {
namespace {

constexpr std::int64_t kMemoryBytesMin = std::int64_t{64} << 10;
// Two of the longest parts, which is what the engine needs.
constexpr std::int64_t kIoBytesMin = 2 * kPartBytesMax;
constexpr std::int64_t kMemoryBytesMax = std::int64_t{64} << 30;
constexpr std::int32_t kAttachedSessionsMaxMax = 1024;
constexpr std::int32_t kPlaceEntriesMax = 65536;
constexpr std::string_view kSocketName = "kv.sock";
constexpr std::string_view kNoDeviceProfile = "none";

absl::Status Validate(const KvNodeConfig& config) {
  if (config.data_dir().empty() || config.data_dir().front() != '/') {
    return InvalidArgument("data_dir is \"{}\": give an absolute path", config.data_dir());
  }
  CAIRN_RETURN_IF_ERROR(CheckSocketKeys(config.socket_path(), config.socket_mode()));
  CAIRN_RETURN_IF_ERROR(CheckLogKeys(config.log_path(), config.log_level()));
  if (config.extent_file_bytes() != kExtentFileBytesKept) {
    CAIRN_RETURN_IF_ERROR(CheckBetween("extent_file_bytes", config.extent_file_bytes(),
                                       kExtentFileBytesMin, kStorePageCountMax * kPageBytes));
  }
  const absl::Status engine = ParseIoEngine(config.io_engine()).status();
  if (!engine.ok()) return Annotate(engine, "io_engine");
  CAIRN_RETURN_IF_ERROR(Annotate(DeviceModelOf(config).status(), "device_profile"));
  CAIRN_RETURN_IF_ERROR(CheckBetween("queue_depth", config.experiment().queue_depth(),
                                     kQueueDepthFromProfile, kQueueDepthMax));
  CAIRN_RETURN_IF_ERROR(CheckBetween("merge_gap_bytes", config.experiment().merge_gap_bytes(),
                                     kMergeGapFromProfile, kMergeGapBytesMax));
  CAIRN_RETURN_IF_ERROR(CheckBetween("pending_bytes_max", config.pending_bytes_max(),
                                     kMemoryBytesMin, kMemoryBytesMax));
  CAIRN_RETURN_IF_ERROR(CheckBetween("place_entries_min_count",
                                     config.experiment().place_entries_min_count(), 1,
                                     kPlaceEntriesMax));
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("io_bytes_max", config.io_bytes_max(), kIoBytesMin, kMemoryBytesMax));
  if (config.arena_bytes_max() != 0) {
    CAIRN_RETURN_IF_ERROR(
        CheckBetween("arena_bytes_max", config.arena_bytes_max(), kArenaBytesMin, kMemoryBytesMax));
  }
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("realtime_priority", config.realtime_priority(), 0, kRealtimePriorityMax));
  const std::string& defragment = config.defragment();
  if (defragment != "auto" && defragment != "on" && defragment != "off") {
    return InvalidArgument("defragment is \"{}\", not auto, on or off", defragment);
  }
  const absl::Status replacement =
      ParseReplacementPolicy(config.experiment().cache_replacement()).status();
  if (!replacement.ok()) return Annotate(replacement, "cache_replacement");
  return CheckBetween("attached_sessions_max", config.attached_sessions_max(), 1,
                      kAttachedSessionsMaxMax);
}

bool FileSays(const std::filesystem::path& path, std::string_view word) {
  std::ifstream file(path);
  std::string content;
  return file >> content && content == word;
}

// Whether one of the supplies is a battery of the system itself, not of a mouse. False where there
// is no such folder.
bool HasBattery(const std::string& power_supply_dir) {
  std::error_code error;
  for (const auto& supply : std::filesystem::directory_iterator(power_supply_dir, error)) {
    if (FileSays(supply.path() / "type", "Battery") &&
        !FileSays(supply.path() / "scope", "Device")) {
      return true;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<std::optional<DeviceModel>> DeviceModelOf(const KvNodeConfig& config) {
  if (config.experiment().device_profile() == kNoDeviceProfile) return std::nullopt;
  CAIRN_ASSIGN_OR_RETURN(const DeviceModel model,
                         FindDeviceModel(config.experiment().device_profile()));
  return model;
}

bool Defragments(const KvNodeConfig& config, const std::string& power_supply_dir) {
  if (config.defragment() != "auto") return config.defragment() == "on";
  return config.experiment().device_profile() == kNoDeviceProfile && !HasBattery(power_supply_dir);
}

KvNodeConfig DefaultConfig(const Environment& environment) {
  const EngineOptions engine;
  KvNodeConfig config;
  config.set_data_dir(DefaultStateDir(environment));
  config.set_socket_path(DefaultSocketPath(environment, kSocketName));
  config.set_socket_mode(rpc::kSocketModeDefault);
  config.set_extent_file_bytes(kExtentFileBytesKept);
  config.set_prefill_extent_file(true);
  config.set_io_engine("auto");
  config.set_pending_bytes_max(engine.pending_bytes_max);
  config.set_io_bytes_max(engine.io_bytes_max);
  config.set_attached_sessions_max(engine.attached_sessions_max);
  config.set_arena_bytes_max(engine.arena_bytes_max);
  config.set_defragment("auto");
  config.set_realtime_priority(0);
  config.set_log_path(std::string(kLogAuto));
  config.set_log_level("info");
  config::v1::KvNodeExperiment& experiment = *config.mutable_experiment();
  experiment.set_queue_depth(kQueueDepthFromProfile);
  experiment.set_merge_gap_bytes(kMergeGapFromProfile);
  experiment.set_device_profile(std::string(kNoDeviceProfile));
  experiment.set_cache_replacement(std::string(ReplacementPolicyName(engine.replacement)));
  experiment.set_pool_sharing(engine.pool_sharing);
  experiment.set_co_retrieval(engine.co_retrieval);
  experiment.set_place_entries_min_count(engine.place_entries_min);
  return config;
}

absl::StatusOr<KvNodeConfig> MakeConfig(const CommandLine& command_line,
                                        const Environment& environment) {
  KvNodeConfig config = DefaultConfig(environment);
  ConfigPlaces places;
  if (command_line.config_path) {
    CAIRN_RETURN_IF_ERROR(ReadConfigFile(*command_line.config_path, config, places));
  }
  OverrideKey("data_dir", command_line.data_dir, config, places);
  OverrideKey("socket_path", command_line.socket_path, config, places);
  OverrideKey("log_path", command_line.log_path, config, places);
  OverrideKey("log_level", command_line.log_level, config, places);
  CAIRN_RETURN_IF_ERROR(AtItsPlace(Validate(config), places));
  return config;
}

std::string DefaultConfigText(const Environment& environment) {
  return PrintConfigWithComments(DefaultConfig(environment), config::kKvNodeDescriptor);
}

}  // namespace cairn::kv
