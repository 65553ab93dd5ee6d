#include "common/rpc/unix_server.h"

#include <mutex>
#include <utility>

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>

#include "common/base/check.h"
#include "common/base/thread.h"
#include "common/rpc/grpc_runtime.h"

namespace cairn::rpc {
namespace {

using NewConnection = grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters;

constexpr int kSilentTimeMaxMs =
    static_cast<int>(std::chrono::milliseconds(kSilentTimeMax).count());
constexpr int kIdleTimeMaxMs = static_cast<int>(std::chrono::milliseconds(kIdleTimeMax).count());

// Both switches are process-wide and must be set before the first server is built.
void EnableHealthAndReflection() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<UnixServer>> UnixServer::Start(UnixServerOptions options,
                                                              grpc::Service* service) {
  CAIRN_RETURN_IF_ERROR(CheckSocketPath(options.socket_path));
  std::unique_ptr<UnixServer> server(new UnixServer(std::move(options)));
  CAIRN_RETURN_IF_ERROR(server->Listen(service));
  return server;
}

UnixServer::~UnixServer() { Shutdown(std::chrono::milliseconds(0)); }

absl::Status UnixServer::Listen(grpc::Service* service) {
  KeepGrpcRuntime();
  EnableHealthAndReflection();
  grpc::ServerBuilder builder;
  connections_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::experimental::LocalServerCredentials(UDS));
  builder.RegisterService(service);
  builder.SetMaxReceiveMessageSize(options_.receive_bytes_max);
  // Who begins to speak and then says nothing.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kSilentTimeMaxMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleTimeMaxMs);
  // By default a server ends connections that ping more often than every five minutes.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kPingIntervalMs / 2);
  if (options_.configure) options_.configure(builder);
  {
    const ServingPriority serving(0);
    server_ = builder.BuildAndStart();
  }
  if (server_ == nullptr) return Internal("gRPC made no server for {}", options_.socket_path);
  SetServing(false);
  CAIRN_ASSIGN_OR_RETURN(acceptor_, UnixAcceptor::Start({.socket_path = options_.socket_path,
                                                         .socket_mode = options_.socket_mode},
                                                        [this](UniqueFd connection) {
                                                          NewConnection taken;
                                                          taken.fd = connection.Release();
                                                          connections_->HandleNewConnection(&taken);
                                                        }));
  return absl::OkStatus();
}

void UnixServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  CAIRN_CHECK(health != nullptr);
  health->SetServingStatus(serving);
  health->SetServingStatus(options_.service_name, serving);
}

void UnixServer::Shutdown(std::chrono::milliseconds time_max) {
  acceptor_.reset();
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + time_max);
  server_->Wait();
  server_.reset();
}

}  // namespace cairn::rpc
