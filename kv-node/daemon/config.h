// From defaults, configuration file and flags to what the daemon runs with; and back to text.
//
// Threading:  pure functions; MakeConfig reads the file.
// Errors:     INVALID_ARGUMENT naming file, line and key, or the key and its range; NOT_FOUND no
//             such file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cairn/config/v1/kv_node.pb.h"
#include "common/base/status.h"
#include "common/daemon/config_file.h"
#include "common/daemon/paths.h"
#include "kv-node/daemon/command_line.h"
#include "kv-node/device/modelled_device.h"

namespace cairn::kv {

using config::v1::KvNodeConfig;

// The smallest store: enough for a conversation of a tiny model.
inline constexpr std::int64_t kExtentFileBytesMin = std::int64_t{1} << 20;
// Of a store that is made while extent_file_bytes is kExtentFileBytesKept.
inline constexpr std::int64_t kExtentFileBytesDefault = std::int64_t{1} << 30;
// extent_file_bytes when a store keeps the size that it has.
inline constexpr std::int64_t kExtentFileBytesKept = 0;

// queue_depth and merge_gap_bytes when the store's device profile decides.
inline constexpr std::int32_t kQueueDepthFromProfile = 0;
inline constexpr std::int64_t kMergeGapFromProfile = -1;

// Every field set.
KvNodeConfig DefaultConfig(const Environment& environment);
// That as a file that MakeConfig reads, with what each key means.
std::string DefaultConfigText(const Environment& environment);

// Defaults, then the file, then the flags. Every field set and within its range.
absl::StatusOr<KvNodeConfig> MakeConfig(const CommandLine& command_line,
                                        const Environment& environment);

// What device_profile names; nullopt: "none".
absl::StatusOr<std::optional<DeviceModel>> DeviceModelOf(const KvNodeConfig& config);

// What `defragment` comes to on this system: where it runs on a battery at times, what need not be
// written is not written. Reads the files with which Linux lists supplies in `power_supply_dir`.
inline constexpr const char* kPowerSupplyDir = "/sys/class/power_supply";
bool Defragments(const KvNodeConfig& config, const std::string& power_supply_dir);

}  // namespace cairn::kv
