#include "kv-node/service/kv_server.h"

#include <algorithm>
#include <utility>

namespace cairn::kv {
namespace {

// gRPC's limit stands a little above ours: a message between the two gets our message, which says
// what to do; a larger one never gets into memory.
constexpr int kGrpcMessageBytesMax = static_cast<int>(kMessageBytesMax) + (1 << 20);

}  // namespace

absl::StatusOr<std::unique_ptr<KvServer>> KvServer::Start(const KvServerOptions& options,
                                                          NodeIdentity identity, Engine* engine) {
  std::unique_ptr<KvServer> server(new KvServer(std::move(identity), engine));
  CAIRN_RETURN_IF_ERROR(server->Listen(options));
  return server;
}

KvServer::KvServer(NodeIdentity identity, Engine* engine)
    : engine_(engine), service_(std::move(identity), engine, &registry_) {}

KvServer::~KvServer() { Shutdown(std::chrono::milliseconds(0)); }

absl::Status KvServer::Listen(const KvServerOptions& options) {
  const auto configure = [](grpc::ServerBuilder& builder) {
    builder.SetMaxSendMessageSize(-1);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnectionMax);
  };
  CAIRN_ASSIGN_OR_RETURN(server_,
                         rpc::UnixServer::Start({.socket_path = options.socket_path,
                                                 .socket_mode = options.socket_mode,
                                                 .service_name = v1::KvService::service_full_name(),
                                                 .receive_bytes_max = kGrpcMessageBytesMax,
                                                 .configure = configure},
                                                &service_));
  CAIRN_ASSIGN_OR_RETURN(handshake_,
                         HandshakeServer::Start(options.socket_path + rpc::kHandshakeSuffix,
                                                options.socket_mode, &registry_, engine_));
  return absl::OkStatus();
}

void KvServer::SetServing(bool serving) { server_->SetServing(serving); }

void KvServer::Drain(std::chrono::milliseconds time_max) {
  SetServing(false);
  service_.Drain(time_max);
}

void KvServer::Shutdown(std::chrono::milliseconds time_max) {
  handshake_.reset();
  if (server_ == nullptr) return;
  SetServing(false);
  service_.Stop(time_max);
  // gRPC would wait for idle connections too, and a client that makes no call does not notice that
  // it should close its own: so this waits only until what was finished above has left.
  server_->Shutdown(std::min(time_max, kFlushTimeMax));
  server_.reset();
}

}  // namespace cairn::kv
