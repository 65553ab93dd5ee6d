#include "compute-node/daemon/embedded_kv_node.h"

#include <utility>

#include "common/log/log.h"
#include "compute-node/kv_client/in_process_kv_node.h"
#include "kv-node/daemon/opened_store.h"

namespace cairn::compute {

absl::StatusOr<kv::KvNodeConfig> EmbeddedKvConfig(const std::string& config_path,
                                                  const Environment& environment) {
  kv::CommandLine command_line;
  if (!config_path.empty()) command_line.config_path = config_path;
  return kv::MakeConfig(command_line, environment);
}

absl::StatusOr<std::unique_ptr<KvNode>> OpenEmbeddedKvNode(const kv::KvNodeConfig& config,
                                                           const std::atomic<int>& stop_signal) {
  CAIRN_ASSIGN_OR_RETURN(
      std::shared_ptr<kv::OpenedStore> store,
      kv::OpenedStore::Open(config, kv::OpenedStore::User::kThisProcess, stop_signal));
  LogInfo("opened store={} data_dir={} extent_file_bytes={}",
          kv::FormatStoreId(store->extent_file().store_id()), config.data_dir(),
          store->extent_file().size_bytes());
  // The store is closed with the last of who uses its engine.
  std::shared_ptr<kv::Engine> engine(store, &store->engine());
  std::unique_ptr<KvNode> node =
      std::make_unique<InProcessKvNode>(std::move(engine), /*durable=*/true);
  return node;
}

}  // namespace cairn::compute
