// KvDaemon serves a store on flash to compute nodes: OpenedStore, and the server on it.
//
// Threading:  one thread.
// Blocking:   Start as OpenedStore::Open. Stop waits for attached compute nodes, at most
//             kDrainTimeMax, and then for calls in flight, at most kStopTimeMax.
// Errors:     those of OpenedStore; ALREADY_EXISTS the socket is taken.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "kv-node/daemon/config.h"
#include "kv-node/daemon/opened_store.h"
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
  const std::string& io_engine() const { return store_->io_engine(); }
  // Health NOT_SERVING, attached compute nodes told, calls ended, engine closed. Once.
  void Stop();

 private:
  explicit KvDaemon(const KvNodeConfig& config) : config_(config) {}
  absl::Status Serve();

  const KvNodeConfig config_;
  // In the order in which they depend on each other.
  std::unique_ptr<OpenedStore> store_;
  std::unique_ptr<KvServer> server_;
};

}  // namespace cairn::kv
