#include "compute-node/service/compute_server.h"

#include <grpcpp/resource_quota.h>

#include "common/rpc/grpc_runtime.h"
#include "compute-node/service/generate_job.h"

namespace cairn::compute {
namespace {

// Above the prompt's limit, so that our message with the numbers is the one that is seen.
constexpr int kMessageLimitBytes = static_cast<int>(kPromptBytesMax) + (1 << 20);

}  // namespace

absl::StatusOr<std::unique_ptr<ComputeServer>> ComputeServer::Start(
    const ComputeServerOptions& options, DaemonState& state) {
  std::unique_ptr<ComputeServer> server(new ComputeServer(options, state));
  const auto configure = [](grpc::ServerBuilder& builder) {
    grpc::ResourceQuota quota("calls");
    quota.SetMaxThreads(kCallThreadsMax);
    builder.SetResourceQuota(quota);
    // A client that is stopped answers none, however much room there is for what it does not read.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, rpc::kPingIntervalMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, rpc::kPingIntervalMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  };
  CAIRN_ASSIGN_OR_RETURN(
      server->server_,
      rpc::UnixServer::Start({.socket_path = options.socket_path,
                              .socket_mode = options.socket_mode,
                              .service_name = v1::InferenceService::service_full_name(),
                              .receive_bytes_max = kMessageLimitBytes,
                              .configure = configure},
                             &server->service_));
  return server;
}

ComputeServer::ComputeServer(const ComputeServerOptions& options, DaemonState& state)
    : state_(state), queue_(options.generation_count_max), service_(state, queue_) {}

ComputeServer::~ComputeServer() {
  state_.SetStopping();
  queue_.Stop(std::chrono::hours(24));  // its jobs use what dies next
}

void ComputeServer::SetServing(bool serving) {
  const MutexLock lock(serving_mutex_);
  if (!stopping_) server_->SetServing(serving);
}

bool ComputeServer::StopGenerations(std::chrono::milliseconds time_max) {
  if (server_ != nullptr) SetServing(false);
  {
    const MutexLock lock(serving_mutex_);
    stopping_ = true;
  }
  state_.SetStopping();
  return queue_.Stop(time_max);
}

void ComputeServer::EndCalls(std::chrono::milliseconds time_max) {
  if (server_ == nullptr) return;
  server_->Shutdown(time_max);
  server_.reset();
}

}  // namespace cairn::compute
