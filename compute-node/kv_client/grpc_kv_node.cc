#include "compute-node/kv_client/grpc_kv_node.h"

#include <thread>
#include <utility>

#include "common/base/random_bytes.h"
#include "common/rpc/kv_codec.h"
#include "compute-node/kv_client/grpc_kv_session.h"
#include "compute-node/kv_client/loss.h"
#include "compute-node/kv_client/session_owner.h"

namespace cairn::compute {
namespace {

using Stub = pb::KvService::Stub;

// The largest page that ListSessions gives, so that few calls are needed.
constexpr std::int32_t kListPageSize = 1000;
constexpr std::int64_t kPartBytesMaxLimit = std::int64_t{1} << 30;

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcKvNode>> GrpcKvNode::Connect(const std::string& socket_path,
                                                                const KvClientOptions& options) {
  auto link = std::make_shared<NodeLink>(socket_path, options);
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<const NodeConnection> connection, link->Get());
  std::unique_ptr<GrpcKvNode> node(new GrpcKvNode(std::move(link)));
  node->part_bytes_max_ = connection->capabilities.part_bytes_max();
  node->io_engine_ = connection->capabilities.io_engine();
  CAIRN_RETURN_IF_ERROR(
      rpc::CheckBetween("part_bytes_max", node->part_bytes_max_, 1, kPartBytesMaxLimit));
  return node;
}

template <typename Request, typename Response>
absl::StatusOr<Response> GrpcKvNode::Call(SessionId named, StubMethod<Request, Response> method,
                                          const Request& request, int* tries) {
  Backoff backoff(*link_);
  std::string store_id;
  while (true) {
    absl::StatusOr<std::shared_ptr<const NodeConnection>> connection = link_->Get();
    absl::Status status = connection.status();
    bool again = IsAway(status);
    if (connection.ok()) {
      if (named != SessionId()) {
        const std::string& store_now = (*connection)->capabilities.store_id();
        CAIRN_RETURN_IF_ERROR(CheckStore(link_->socket_path(), store_now, store_id, named));
        store_id = store_now;
      }
      grpc::ClientContext context;
      const std::chrono::milliseconds time_max = link_->CallTime(kCallTimeMax);
      (*connection)->Prepare(&context, time_max);
      if (tries != nullptr) ++*tries;
      Response response;
      status = StatusOfCall(((*connection)->stub.get()->*method)(&context, request, &response),
                            time_max);
      if (status.ok()) return response;
      again = IsLoss(status);
      if (again) link_->Drop(*connection);
    }
    if (!again) return status;
    if (backoff.expired()) return link_->DidNotComeBack(status);
    std::this_thread::sleep_until(backoff.Next());
  }
}

absl::StatusOr<SessionRef> GrpcKvNode::Create(const CreateSession& request) {
  pb::CreateSessionRequest message = rpc::ToProto(request);
  // Of every try: the KV node knows by it what it has made already.
  if (request.uid.empty()) message.set_session_uid(RandomBytes(kUidBytes));
  CAIRN_ASSIGN_OR_RETURN(const pb::CreateSessionResponse response,
                         Call(request.parent.id, &Stub::CreateSession, message));
  return rpc::FromProto(response);
}

absl::StatusOr<std::unique_ptr<KvSession>> GrpcKvNode::Open(const SessionRef& session) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<KvSession> opened, GrpcKvSession::Open(link_, session));
  return opened;
}

absl::Status GrpcKvNode::Delete(const SessionRef& session) {
  pb::DeleteSessionRequest request;
  rpc::ToProto(session, &request);
  int tries = 0;
  absl::Status status = Call(session.id, &Stub::DeleteSession, request, &tries).status();
  // An earlier try did it, and its reply was lost.
  if (tries > 1 && status.code() == absl::StatusCode::kNotFound) return absl::OkStatus();
  return status;
}

absl::StatusOr<SessionInfo> GrpcKvNode::Get(const SessionRef& session, ListDetail detail) {
  pb::GetSessionRequest request;
  rpc::ToProto(session, &request);
  request.set_with_flash_use(detail == ListDetail::kFlashUse);
  CAIRN_ASSIGN_OR_RETURN(pb::GetSessionResponse response,
                         Call(session.id, &Stub::GetSession, request));
  return rpc::FromProto(std::move(*response.mutable_session()));
}

absl::StatusOr<std::vector<SessionInfo>> GrpcKvNode::List(ListDetail detail) {
  std::vector<SessionInfo> sessions;
  pb::ListSessionsRequest request;
  request.set_page_size(kListPageSize);
  request.set_with_flash_use(detail == ListDetail::kFlashUse);
  do {
    CAIRN_ASSIGN_OR_RETURN(pb::ListSessionsResponse response,
                           Call(SessionId(), &Stub::ListSessions, request));
    for (pb::SessionInfo& info : *response.mutable_sessions()) {
      CAIRN_ASSIGN_OR_RETURN(SessionInfo value, rpc::FromProto(std::move(info)));
      sessions.push_back(std::move(value));
    }
    if (response.sessions_size() == 0) break;
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return sessions;
}

absl::StatusOr<SealedSegment> GrpcKvNode::Seal(const SessionRef& session) {
  pb::SealSessionRequest request;
  rpc::ToProto(session, &request);
  CAIRN_ASSIGN_OR_RETURN(const pb::SealSessionResponse response,
                         Call(session.id, &Stub::SealSession, request));
  return rpc::FromProto(response);
}

absl::Status GrpcKvNode::Supersede(const Supersession& request) {
  return Call(request.session.id, &Stub::SupersedeSession, rpc::ToProto(request)).status();
}

absl::StatusOr<KvStats> GrpcKvNode::Stats() {
  CAIRN_ASSIGN_OR_RETURN(const pb::GetStatsResponse response,
                         Call(SessionId(), &Stub::GetStats, pb::GetStatsRequest()));
  return rpc::FromProto(response);
}

absl::Status GrpcKvNode::Probe(std::chrono::milliseconds time_max) {
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<const NodeConnection> connection, link_->Get());
  grpc::ClientContext context;
  connection->Prepare(&context, time_max);
  pb::GetCapabilitiesResponse response;
  absl::Status status =
      StatusOfCall(connection->stub->GetCapabilities(&context, {}, &response), time_max);
  // One that is only slow may be served by the connection yet.
  if (IsLoss(status) && !absl::IsDeadlineExceeded(status)) link_->Drop(connection);
  return status;
}

}  // namespace cairn::compute
