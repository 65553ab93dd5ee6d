// OpenedStore is a store on flash in use by this process: its directory, its extent file with the
// lock on it, its metadata, its device and the engine on them. KvDaemon serves one; a program that
// keeps keys and values itself has one of its own. docs/kv-node.md, "Start and stop order", says
// why in this order.
//
// Threading:  one thread; the engine as its header says.
// Blocking:   Open does file I/O; making a new extent file, or another size of it, takes as long as
//             writing it, and measuring its flash a second.
// Ownership:  who uses the engine is done with it before this dies.
// Errors:     one message that says what is wrong with which object and what to do: UNAVAILABLE the
//             directory is in use; FAILED_PRECONDITION of another store or another format;
//             DATA_LOSS damaged; RESOURCE_EXHAUSTED disk full; CANCELLED a signal to stop came
//             meanwhile.
#pragma once

#include <atomic>
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

namespace cairn::kv {

class OpenedStore {
 public:
  // `stop_signal` is not 0 once a signal to stop came. The threads of the engine have the
  // configured realtime priority.
  // `user`: who asks the engine.
  enum class User { kServer, kThisProcess };
  static absl::StatusOr<std::unique_ptr<OpenedStore>> Open(const KvNodeConfig& config, User user,
                                                           const std::atomic<int>& stop_signal);
  // The engine is closed, then the metadata, then the file.
  ~OpenedStore();
  OpenedStore(const OpenedStore&) = delete;
  OpenedStore& operator=(const OpenedStore&) = delete;

  Engine& engine() { return *engine_; }
  const ExtentFile& extent_file() const { return *extent_file_; }
  // "io_uring" or "threads"; "+" and the modelled device profile behind it.
  const std::string& io_engine() const { return io_engine_; }
  // 16 bytes.
  std::string store_id() const;

 private:
  OpenedStore(const KvNodeConfig& config, User user) : config_(config), user_(user) {}
  absl::Status OpenExtentFile(const StartProgress& progress);
  absl::StatusOr<std::unique_ptr<MetaStore>> OpenMetadata();
  // The store's profile of its flash; measured when it has none. nullopt: there is none.
  absl::StatusOr<std::optional<DeviceProfile>> FindProfile(const FileDeviceOptions& options,
                                                           MetaStore& meta);
  absl::Status OpenEngine(std::unique_ptr<MetaStore> meta);
  void RecordClosedMetadata();

  const KvNodeConfig config_;
  const User user_;
  std::string io_engine_;
  std::optional<std::uint64_t> closed_sequence_;  // what the metadata said when it was closed
  // In the order in which they depend on each other.
  std::unique_ptr<ExtentFile> extent_file_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace cairn::kv
