#include "compute-node/kv_client/node_link.h"

#include <utility>

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "common/rpc/grpc_runtime.h"
#include "common/rpc/status_mapping.h"
#include "common/rpc/unix_socket.h"

namespace cairn::compute {
namespace {

constexpr char kTokenMetadataKey[] = "cairn-token";
constexpr std::int32_t kProtocolVersion = 1;

absl::StatusOr<rpc::HandshakeMessage> Handshake(const std::string& socket_path) {
  const std::string path = socket_path + rpc::kHandshakeSuffix;
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd socket, rpc::ConnectToSocket(path, kConnectTimeMax));
  absl::StatusOr<rpc::HandshakeMessage> message = rpc::ReceiveHandshake(socket, kConnectTimeMax);
  if (!message.ok()) return Annotate(message.status(), fmt::format("handshake at {}", path));
  return message;
}

grpc::ChannelArguments ChannelArgumentsOf() {
  grpc::ChannelArguments arguments;
  // gRPC's default limit of 4 MiB is below a fetch reply.
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // A restarted daemon must not meet the old connection's state and back-off.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // A daemon that is stopped or hangs closes no socket: without pings a call would wait for ever.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, rpc::kPingIntervalMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, rpc::kPingIntervalMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return arguments;
}

// Not WaitForConnected: after a refused attempt it would sit out gRPC's own back-off of a second.
absl::Status WaitForConnection(grpc::Channel* channel) {
  const auto deadline = std::chrono::system_clock::now() + kConnectTimeMax;
  grpc_connectivity_state state = channel->GetState(true);
  while (state != GRPC_CHANNEL_READY) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) {
      return Unavailable("its handshake answered, but its gRPC socket refused the connection");
    }
    if (!channel->WaitForStateChange(state, deadline)) {
      return Unavailable("its handshake answered, but no gRPC connection came about in {} ms",
                         kConnectTimeMax.count());
    }
    state = channel->GetState(true);
  }
  return absl::OkStatus();
}

}  // namespace

void NodeConnection::Prepare(grpc::ClientContext* context) const {
  context->AddMetadata(kTokenMetadataKey, token);
}

void NodeConnection::Prepare(grpc::ClientContext* context,
                             std::chrono::milliseconds time_max) const {
  Prepare(context);
  context->set_deadline(std::chrono::system_clock::now() + time_max);
}

absl::Status StatusOfCall(const grpc::Status& status, std::chrono::milliseconds time_max) {
  absl::Status of_call = rpc::FromGrpcStatus(status);
  // gRPC only says that there was one.
  if (!absl::IsDeadlineExceeded(of_call)) return of_call;
  return DeadlineExceeded("no answer came within {} ms", time_max.count());
}

absl::StatusOr<std::shared_ptr<const NodeConnection>> NodeLink::Get() {
  MutexLock lock(mutex_);
  if (current_ != nullptr) return current_;
  absl::StatusOr<std::shared_ptr<const NodeConnection>> connection = Connect();
  if (!connection.ok()) {
    if (!away_since_.has_value()) away_since_ = std::chrono::steady_clock::now();
    return Annotate(connection.status(), fmt::format("connect to the KV node at {}", socket_path_));
  }
  current_ = *connection;
  away_since_.reset();
  return connection;
}

void NodeLink::Drop(const std::shared_ptr<const NodeConnection>& broken) {
  MutexLock lock(mutex_);
  if (current_ != broken) return;
  current_.reset();
  away_since_ = std::chrono::steady_clock::now();
}

std::chrono::steady_clock::time_point NodeLink::WaitEnd() const {
  MutexLock lock(mutex_);
  const auto from = away_since_.value_or(std::chrono::steady_clock::now());
  return std::min(from + options_.reconnect_time_max, stop_.load());
}

absl::Status NodeLink::DidNotComeBack(const absl::Status& last) const {
  if (stopped()) {
    return Unavailable("the KV node is away, and this process is stopping: {}", Message(last));
  }
  return Unavailable(
      "the KV node did not come back in {} ms: {}; start cairn-kv-node, then ask again",
      options_.reconnect_time_max.count(), Message(last));
}

absl::StatusOr<std::shared_ptr<const NodeConnection>> NodeLink::Connect() const {
  CAIRN_RETURN_IF_ERROR(rpc::CheckSocketPath(socket_path_));
  rpc::KeepGrpcRuntime();
  auto connection = std::make_shared<NodeConnection>();
  connection->checkpoints_at_stop = options_.checkpoints_at_stop;
  CAIRN_ASSIGN_OR_RETURN(rpc::HandshakeMessage handshake, Handshake(socket_path_));
  connection->token = std::move(handshake.token);
  if (options_.use_arena) {
    connection->arena = std::make_shared<ArenaMap>(
        [path = socket_path_,
         token = connection->token]() -> absl::StatusOr<rpc::HandshakeMessage> {
          CAIRN_ASSIGN_OR_RETURN(rpc::HandshakeMessage message, Handshake(path));
          // Another daemon: its granules have the same names and other bytes.
          if (message.token != token) return Unavailable("the KV node was restarted");
          return message;
        });
  }
  connection->channel = grpc::CreateCustomChannel(
      "unix:" + socket_path_, grpc::experimental::LocalCredentials(UDS), ChannelArgumentsOf());
  CAIRN_RETURN_IF_ERROR(WaitForConnection(connection->channel.get()));
  connection->stub = pb::KvService::NewStub(connection->channel);
  grpc::ClientContext context;
  connection->Prepare(&context, kConnectTimeMax);
  CAIRN_RETURN_IF_ERROR(StatusOfCall(
      connection->stub->GetCapabilities(&context, {}, &connection->capabilities), kConnectTimeMax));
  if (connection->capabilities.protocol_version() != kProtocolVersion) {
    return FailedPrecondition(
        "it speaks protocol version {}, this program {}: use programs of one release",
        connection->capabilities.protocol_version(), kProtocolVersion);
  }
  const auto& listed = connection->capabilities.operations();
  for (const pb::Operation needed :
       {pb::OPERATION_FETCH_INDEX, pb::OPERATION_FETCH_VISIBLE_INDEX}) {
    if (std::find(listed.begin(), listed.end(), needed) != listed.end()) continue;
    return FailedPrecondition(
        "it lacks operation {}, which this program needs: use programs of one release",
        pb::Operation_Name(needed));
  }
  return connection;
}

std::chrono::steady_clock::time_point Backoff::Next() {
  const auto due = std::chrono::steady_clock::now() + wait_;
  wait_ = std::min(2 * wait_, wait_max_);
  return std::min(due, deadline_);
}

}  // namespace cairn::compute
