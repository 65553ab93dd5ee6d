// KvDaemon puts a KV node together from its configuration and takes it apart again, in order:
// directory, extent file with its lock, metadata, device, engine, server. docs/kv-node.md, "Start
// and stop order", says why.
//
// Threading:  one thread.
// Blocking:   Start does file I/O; making a new extent file, or another size of it, takes as long
//             as writing it, and measuring its flash a second. Stop waits for attached compute
//             nodes, at most kDrainTimeMax, and then for calls in flight, at most kStopTimeMax.
// Errors:     one message that says what is wrong with which object and what to do: UNAVAILABLE the
//             directory is in use; FAILED_PRECONDITION of another store or another format;
//             DATA_LOSS damaged; RESOURCE_EXHAUSTED disk full; ALREADY_EXISTS the socket is taken;
//             CANCELLED a signal to stop came meanwhile.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "kv-node/daemon/config.h"
#include "kv-node/daemon/start_progress.h"
#include "kv-node/device/calibrate.h"
#include "kv-node/device/file_device.h"
#include "kv-node/engine/engine.h"
#include "kv-node/layout/extent_file.h"
#include "kv-node/service/kv_server.h"

namespace cairn::kv {

inline constexpr std::chrono::milliseconds kStopTimeMax{5000};
// For attached compute nodes to take a checkpoint. One that is to stop itself may need as long to
// end its generations.
inline constexpr std::chrono::milliseconds kDrainTimeMax{10000};

class KvDaemon {
 public:
  // Serves, and tells health checks so, when it returns. `stop_signal` is not 0 once a signal to
  // stop came.
  static absl::StatusOr<std::unique_ptr<KvDaemon>> Start(const KvNodeConfig& config,
                                                         const std::atomic<int>& stop_signal);
  ~KvDaemon();
  KvDaemon(const KvDaemon&) = delete;
  KvDaemon& operator=(const KvDaemon&) = delete;

  // "io_uring" or "threads"; "+" and the modelled device profile behind it.
  const std::string& io_engine() const { return identity_.io_engine; }
  // Health NOT_SERVING, attached compute nodes told, calls ended, engine closed. Once.
  void Stop();

 private:
  explicit KvDaemon(const KvNodeConfig& config) : config_(config) {}
  absl::Status OpenExtentFile(const StartProgress& progress);
  absl::StatusOr<std::unique_ptr<MetaStore>> OpenMetadata();
  // The store's profile of its flash; measured when it has none. nullopt: there is none.
  absl::StatusOr<std::optional<DeviceProfile>> FindProfile(const FileDeviceOptions& options,
                                                           MetaStore& meta);
  absl::Status OpenEngine(std::unique_ptr<MetaStore> meta);
  absl::Status Serve();
  void RecordClosedMetadata();

  const KvNodeConfig config_;
  NodeIdentity identity_;
  std::optional<std::uint64_t> closed_sequence_;  // what the metadata said when it was closed
  // In the order in which they depend on each other.
  std::unique_ptr<ExtentFile> extent_file_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<KvServer> server_;
};

}  // namespace cairn::kv
