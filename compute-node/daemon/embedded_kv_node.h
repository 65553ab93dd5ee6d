// A KV node in this process, on the store on flash that cairn-kv-node would serve: no socket and no
// messages between the tiers. Nobody else uses the store meanwhile.
//
// Threading:  as KvNode.
// Blocking:   as kv::OpenedStore::Open; its end closes the store.
// Errors:     those of reading the configuration and of OpenedStore.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/daemon/paths.h"
#include "compute-node/kv_client/kv_client.h"
#include "kv-node/daemon/config.h"

namespace cairn::compute {

// `config_path`: a configuration file of cairn-kv-node, of which all counts but the socket and the
// log; empty: its defaults.
absl::StatusOr<kv::KvNodeConfig> EmbeddedKvConfig(const std::string& config_path,
                                                  const Environment& environment);

// `stop_signal` is not 0 once the process is to stop.
absl::StatusOr<std::unique_ptr<KvNode>> OpenEmbeddedKvNode(const kv::KvNodeConfig& config,
                                                           const std::atomic<int>& stop_signal);

}  // namespace cairn::compute
