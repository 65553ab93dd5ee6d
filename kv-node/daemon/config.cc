#include "kv-node/daemon/config.h"

#include <array>
#include <string_view>

#include "common/base/range.h"
#include "common/base/thread.h"
#include "common/rpc/unix_socket.h"
#include "kv-node/daemon/battery.h"
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

// In the order of the fields.
constexpr std::array kKeys = {
    ConfigKey{
        "data_dir",
        "Directory of the store: the extent file with the keys and values, and the metadata.\n"
        "One daemon at a time uses it."},
    ConfigKey{
        "socket_path",
        "Unix socket for compute nodes. A second one, with \".handshake\" behind its name, gives\n"
        "tokens."},
    ConfigKey{"socket_mode", "Mode of both sockets: who may connect. 0600: only the owner.", true},
    ConfigKey{
        "extent_file_bytes",
        "Flash for all conversations: the size of the extent file. A store of another size grows\n"
        "or shrinks to it at the next start. 0: the size that the store has; a new one gets 1 "
        "GiB."},
    ConfigKey{
        "prefill_extent_file",
        "Whether to write the extent file in full when it is created or grows: slow once, and\n"
        "every checkpoint's flush is about three times faster."},
    ConfigKey{"io_engine", "How to reach the flash: \"auto\", \"io_uring\" or \"threads\"."},
    ConfigKey{
        "queue_depth",
        "Requests that the flash works on at once, up to 4096. 0: as many as it was measured to\n"
        "need at the store's first start; 32 where nothing was measured."},
    ConfigKey{"device_profile",
              "Makes the flash as slow as other flash, for measurements: \"emmc\", \"ufs3.1\" or\n"
              "\"ufs4.0\"; it must be faster than that."},
    ConfigKey{
        "merge_gap_bytes",
        "Holes of up to this many bytes between two pieces are read with them in one request,\n"
        "up to 262144. -1: as the flash was measured, 16384 where it was not; 0: never."},
    ConfigKey{
        "pending_bytes_max",
        "Memory for entries that are not on flash yet, over all conversations. Smaller: more and\n"
        "shorter writes."},
    ConfigKey{"io_bytes_max",
              "Memory for reads and writes in flight and for replies that are not sent yet; one\n"
              "fetch goes beyond. A client that does not read its replies holds as much for\n"
              "itself and stops no other. 131072 or more."},
    ConfigKey{"attached_sessions_max",
              "Conversations that may be in use at once; each costs memory for its rows."},
    ConfigKey{"arena_bytes_max",
              "Shared memory that keeps what was read last, and from which compute nodes read in\n"
              "place. 0: none, everything goes through the socket. Else 1 MiB or more."},
    ConfigKey{"cache_replacement",
              "What leaves that memory first: \"cluster_aligned\" (small clusters and those that\n"
              "changed lately stay longest), \"lru\", \"lfu\" or \"fifo\"."},
    ConfigKey{"pool_sharing",
              "Whether two clusters share a pool of pages, and those that are fetched together\n"
              "lie beside each other. False: one cluster a pool, in the order of placing, for\n"
              "comparison."},
    ConfigKey{"co_retrieval",
              "Whether clusters that are fetched together are placed together, so that one read\n"
              "serves several."},
    ConfigKey{"place_entries_min_count",
              "Unplaced entries of a cluster from which on it gets a place of its own on flash.\n"
              "Smaller: a large cluster lies in fewer places, and more bytes are written."},
    ConfigKey{"defragment",
              "Whether sealed segments are placed again while nothing else is to be done, which\n"
              "makes reads fewer and writes every sealed byte once more: \"on\", \"off\", or\n"
              "\"auto\": on, but not with a battery or the device_profile of a phone."},
    ConfigKey{
        "realtime_priority",
        "1 to 99: the threads that serve fetches run with this realtime priority (SCHED_RR), so\n"
        "that programs that compute on every processor do not delay them; needs CAP_SYS_NICE or\n"
        "RLIMIT_RTPRIO. 0: no."},
    ConfigKey{
        "log_path",
        "File for the log; \"stderr\": standard error. \"auto\": standard error, but where that\n"
        "is a terminal cairn-kv-node.log in /var/log/cairn for root, else in "
        "~/.local/state/cairn."},
    ConfigKey{"log_level", "One of trace, debug, info, warn, error."},
};

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
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("queue_depth", config.queue_depth(), kQueueDepthFromProfile, kQueueDepthMax));
  CAIRN_RETURN_IF_ERROR(CheckBetween("merge_gap_bytes", config.merge_gap_bytes(),
                                     kMergeGapFromProfile, kMergeGapBytesMax));
  CAIRN_RETURN_IF_ERROR(CheckBetween("pending_bytes_max", config.pending_bytes_max(),
                                     kMemoryBytesMin, kMemoryBytesMax));
  CAIRN_RETURN_IF_ERROR(CheckBetween("place_entries_min_count", config.place_entries_min_count(), 1,
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
  const absl::Status replacement = ParseReplacementPolicy(config.cache_replacement()).status();
  if (!replacement.ok()) return Annotate(replacement, "cache_replacement");
  return CheckBetween("attached_sessions_max", config.attached_sessions_max(), 1,
                      kAttachedSessionsMaxMax);
}

}  // namespace

absl::StatusOr<std::optional<DeviceModel>> DeviceModelOf(const KvNodeConfig& config) {
  if (config.device_profile() == kNoDeviceProfile) return std::nullopt;
  CAIRN_ASSIGN_OR_RETURN(const DeviceModel model, FindDeviceModel(config.device_profile()));
  return model;
}

bool Defragments(const KvNodeConfig& config, const std::string& power_supply_dir) {
  if (config.defragment() != "auto") return config.defragment() == "on";
  return config.device_profile() == kNoDeviceProfile && !HasBattery(power_supply_dir);
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
  config.set_queue_depth(kQueueDepthFromProfile);
  config.set_merge_gap_bytes(kMergeGapFromProfile);
  config.set_device_profile(std::string(kNoDeviceProfile));
  config.set_pending_bytes_max(engine.pending_bytes_max);
  config.set_io_bytes_max(engine.io_bytes_max);
  config.set_attached_sessions_max(engine.attached_sessions_max);
  config.set_arena_bytes_max(engine.arena_bytes_max);
  config.set_cache_replacement(std::string(ReplacementPolicyName(engine.replacement)));
  config.set_pool_sharing(engine.pool_sharing);
  config.set_co_retrieval(engine.co_retrieval);
  config.set_place_entries_min_count(engine.place_entries_min);
  config.set_defragment("auto");
  config.set_realtime_priority(0);
  config.set_log_path(std::string(kLogAuto));
  config.set_log_level("info");
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

std::string ConfigText(const KvNodeConfig& config, Comments comments) {
  return PrintConfig(config, kKeys, comments);
}

}  // namespace cairn::kv
