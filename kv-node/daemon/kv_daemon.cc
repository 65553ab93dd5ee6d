#include "kv-node/daemon/kv_daemon.h"

#include <utility>

#include "common/base/random_bytes.h"
#include "common/base/thread.h"
#include "common/daemon/paths.h"
#include "common/log/log.h"
#include "common/rpc/starting_mark.h"

namespace cairn::kv {

absl::StatusOr<std::unique_ptr<KvDaemon>> KvDaemon::Start(const KvNodeConfig& config,
                                                          const std::atomic<int>& stop_signal) {
  std::unique_ptr<KvDaemon> daemon(new KvDaemon(config));
  CAIRN_RETURN_IF_ERROR(MakeSocketDirectory(config.socket_path()));
  const rpc::StartingMark starting(config.socket_path());
  CAIRN_ASSIGN_OR_RETURN(daemon->store_,
                         OpenedStore::Open(config, OpenedStore::User::kServer, stop_signal));
  // The server's threads inherit it.
  const ServingPriority realtime(config.realtime_priority());
  CAIRN_RETURN_IF_ERROR(Annotate(realtime.status(), "realtime_priority"));
  CAIRN_RETURN_IF_ERROR(daemon->Serve());
  return daemon;
}

absl::Status KvDaemon::Serve() {
  NodeIdentity identity;
  identity.store_id = store_->store_id();
  identity.io_engine = store_->io_engine();
  identity.boot_token = RandomBytes(kBootTokenBytes);
  const ExtentFile& file = store_->extent_file();
  CAIRN_ASSIGN_OR_RETURN(server_, KvServer::Start({.socket_path = config_.socket_path(),
                                                   .socket_mode = config_.socket_mode()},
                                                  identity, &store_->engine()));
  server_->SetServing(true);
  LogInfo("serving store={} data_dir={} extent_file_bytes={} direct={} boot={}",
          FormatStoreId(file.store_id()), config_.data_dir(), file.size_bytes(), file.direct(),
          ToHex(identity.boot_token));
  return absl::OkStatus();
}

KvDaemon::~KvDaemon() {
  if (server_ != nullptr) Stop();
}

void KvDaemon::Stop() {
  server_->Drain(kDrainTimeMax);
  server_->Shutdown(kStopTimeMax);
  server_.reset();
  store_.reset();
}

}  // namespace cairn::kv
