#include "common/rpc/unix_server.h"

#include <unistd.h>

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
  CAIRN_RETURN_IF_ERROR(ClaimSocketPath(options.socket_path));
  std::unique_ptr<UnixServer> server(new UnixServer(std::move(options)));
  CAIRN_RETURN_IF_ERROR(server->Listen(service));
  return server;
}

UnixServer::~UnixServer() { Shutdown(std::chrono::milliseconds(0)); }

absl::Status UnixServer::Listen(grpc::Service* service) {
  KeepGrpcRuntime();
  EnableHealthAndReflection();
  grpc::ServerBuilder builder;
  int bound = 0;
  builder.AddListeningPort("unix:" + options_.socket_path,
                           grpc::experimental::LocalServerCredentials(UDS), &bound);
  builder.RegisterService(service);
  builder.SetMaxReceiveMessageSize(options_.receive_bytes_max);
  // Without this gRPC would bind a socket beside one that another process has just bound.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // By default a server ends connections that ping more often than every five minutes.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kPingIntervalMs / 2);
  if (options_.configure) options_.configure(builder);
  {
    const ServingPriority serving(0);
    server_ = builder.BuildAndStart();
  }
  if (server_ == nullptr || bound == 0) {
    return Internal(
        "bind socket {}: gRPC refused it; check that its directory exists and is writable",
        options_.socket_path);
  }
  SetServing(false);
  return SetSocketMode(options_.socket_path, options_.socket_mode);
}

void UnixServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  CAIRN_CHECK(health != nullptr);
  health->SetServingStatus(serving);
  health->SetServingStatus(options_.service_name, serving);
}

void UnixServer::Shutdown(std::chrono::milliseconds time_max) {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + time_max);
  server_->Wait();
  server_.reset();
  ::unlink(options_.socket_path.c_str());
}

}  // namespace cairn::rpc
