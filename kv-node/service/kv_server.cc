#include "kv-node/service/kv_server.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "common/base/check.h"
#include "common/rpc/grpc_runtime.h"

namespace cairn::kv {
namespace {

// gRPC's limit stands a little above ours: a message between the two gets our message, which says
// what to do; a larger one never gets into memory.
constexpr int kGrpcMessageBytesMax = static_cast<int>(kMessageBytesMax) + (1 << 20);

// Both switches are process-wide and must be set before the first server is built.
void EnableHealthAndReflection() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvServer>> KvServer::Start(const KvServerOptions& options,
                                                          NodeIdentity identity, Engine* engine) {
  CAIRN_RETURN_IF_ERROR(rpc::CheckSocketPath(options.socket_path));
  std::unique_ptr<KvServer> server(new KvServer(options, std::move(identity), engine));
  CAIRN_RETURN_IF_ERROR(server->Listen());
  return server;
}

KvServer::KvServer(const KvServerOptions& options, NodeIdentity identity, Engine* engine)
    : options_(options), service_(std::move(identity), engine, &registry_) {}

KvServer::~KvServer() { Shutdown(std::chrono::milliseconds(0)); }

absl::Status KvServer::Listen() {
  rpc::KeepGrpcRuntime();
  EnableHealthAndReflection();
  CAIRN_RETURN_IF_ERROR(rpc::ClaimSocketPath(options_.socket_path));
  grpc::ServerBuilder builder;
  int bound = 0;
  builder.AddListeningPort("unix:" + options_.socket_path,
                           grpc::experimental::LocalServerCredentials(UDS), &bound);
  builder.RegisterService(&service_);
  builder.SetMaxReceiveMessageSize(kGrpcMessageBytesMax);
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnectionMax);
  // Without this gRPC would bind a socket beside one that another process has just bound.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || bound == 0) {
    return Internal(
        "bind socket {}: gRPC refused it; check that its directory exists and is writable",
        options_.socket_path);
  }
  SetServing(false);
  CAIRN_RETURN_IF_ERROR(rpc::SetSocketMode(options_.socket_path, options_.socket_mode));
  CAIRN_ASSIGN_OR_RETURN(handshake_,
                         HandshakeServer::Start(options_.socket_path + rpc::kHandshakeSuffix,
                                                options_.socket_mode, &registry_));
  return absl::OkStatus();
}

void KvServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  CAIRN_CHECK(health != nullptr);
  health->SetServingStatus(serving);
  health->SetServingStatus(v1::KvService::service_full_name(), serving);
}

void KvServer::Shutdown(std::chrono::milliseconds time_max) {
  handshake_.reset();
  if (server_ == nullptr) return;
  SetServing(false);
  service_.Stop(time_max);
  // gRPC would wait for idle connections too, and a client that makes no call does not notice that
  // it should close its own: so this waits only until what was finished above has left.
  server_->Shutdown(std::chrono::system_clock::now() + std::min(time_max, kFlushTimeMax));
  server_->Wait();
  server_.reset();
  ::unlink(options_.socket_path.c_str());
}

}  // namespace cairn::kv
