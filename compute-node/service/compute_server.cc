#include "compute-node/service/compute_server.h"

#include <unistd.h>

#include <mutex>
#include <utility>

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "common/base/check.h"
#include "compute-node/service/generate_job.h"

namespace cairn::compute {
namespace {

// Above the prompt's limit, so that our message with the numbers is the one that is seen.
constexpr int kMessageLimitBytes = static_cast<int>(kPromptBytesMax) + (1 << 20);

// Both switches are process-wide and must be set before the first server is built.
void EnableHealthAndReflection() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<ComputeServer>> ComputeServer::Start(
    const ComputeServerOptions& options, DaemonState& state) {
  CAIRN_RETURN_IF_ERROR(rpc::CheckSocketPath(options.socket_path));
  std::unique_ptr<ComputeServer> server(new ComputeServer(options, state));
  CAIRN_RETURN_IF_ERROR(server->Listen());
  return server;
}

ComputeServer::ComputeServer(const ComputeServerOptions& options, DaemonState& state)
    : options_(options), state_(state), service_(state, queue_) {}

ComputeServer::~ComputeServer() { Shutdown(std::chrono::milliseconds(0)); }

absl::Status ComputeServer::Listen() {
  EnableHealthAndReflection();
  CAIRN_RETURN_IF_ERROR(rpc::ClaimSocketPath(options_.socket_path));
  grpc::ServerBuilder builder;
  int bound = 0;
  builder.AddListeningPort("unix:" + options_.socket_path,
                           grpc::experimental::LocalServerCredentials(UDS), &bound);
  builder.RegisterService(&service_);
  builder.SetMaxReceiveMessageSize(kMessageLimitBytes);
  grpc::ResourceQuota quota("calls");
  quota.SetMaxThreads(kCallThreadsMax);
  builder.SetResourceQuota(quota);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || bound == 0) {
    return Internal(
        "bind socket {}: gRPC refused it; check that its directory exists and is writable",
        options_.socket_path);
  }
  SetServing(false);
  return rpc::SetSocketMode(options_.socket_path, options_.socket_mode);
}

void ComputeServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  CAIRN_CHECK(health != nullptr);
  health->SetServingStatus(serving);
  health->SetServingStatus(v1::InferenceService::service_full_name(), serving);
}

void ComputeServer::Shutdown(std::chrono::milliseconds time_max) {
  if (server_ == nullptr) return;
  SetServing(false);
  state_.SetStopping();
  queue_.Stop();
  server_->Shutdown(std::chrono::system_clock::now() + time_max);
  server_->Wait();
  server_.reset();
  ::unlink(options_.socket_path.c_str());
}

}  // namespace cairn::compute
