#include "kv-node/service/kv_service.h"

#include <charconv>
#include <utility>
#include <vector>

#include "common/log/log.h"
#include "common/rpc/kv_codec.h"
#include "common/rpc/status_mapping.h"

namespace cairn::kv {
namespace {

using Context = KvServiceImpl::Context;
using Reactor = KvServiceImpl::Reactor;

constexpr v1::Operation kOperations[] = {
    v1::OPERATION_APPEND,      v1::OPERATION_REPLACE,
    v1::OPERATION_INDEX,       v1::OPERATION_POLICY_STATE,
    v1::OPERATION_CHECKPOINT,  v1::OPERATION_FORK,
    v1::OPERATION_FETCH,       v1::OPERATION_EVICT,
    v1::OPERATION_FETCH_INDEX, v1::OPERATION_FETCH_VISIBLE_INDEX,
    v1::OPERATION_SUPERSEDE};

struct PageRequest {
  std::int32_t size = kPageSizeDefault;
  SessionId below;  // 0: from the newest
};

// A page token is the id of the last session on the page before.
absl::StatusOr<PageRequest> ParsePage(const v1::ListSessionsRequest& request) {
  PageRequest page;
  if (request.page_size() != 0) {
    CAIRN_RETURN_IF_ERROR(rpc::CheckBetween("page_size", request.page_size(), 1, kPageSizeMax));
    page.size = request.page_size();
  }
  const std::string& token = request.page_token();
  if (token.empty()) return page;
  std::int64_t id = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), id);
  if (error != std::errc() || end != token.data() + token.size() || id < 1) {
    return InvalidArgument("page_token is not one that ListSessions gave");
  }
  page.below = SessionId(id);
  return page;
}

ListDetail DetailOf(bool with_flash_use) {
  return with_flash_use ? ListDetail::kFlashUse : ListDetail::kRows;
}

void FillPage(const PageRequest& page, const std::vector<SessionInfo>& sessions,
              v1::ListSessionsResponse* response) {
  for (const SessionInfo& info : sessions) {
    if (page.below != SessionId() && info.session_id >= page.below) continue;
    if (response->sessions_size() == page.size) {
      const v1::SessionInfo& last = response->sessions(page.size - 1);
      response->set_next_page_token(std::to_string(last.session_id()));
      return;
    }
    rpc::ToProto(info, response->add_sessions());
  }
}

}  // namespace

// The callback of an engine call: fills the response from the value, or maps the error.
template <typename T, typename Fill>
Callback<T> KvServiceImpl::Answer(Reactor* reactor, Fill fill) {
  return [this, reactor, fill = std::move(fill)](absl::StatusOr<T> result) {
    const grpc::Status status = rpc::ToGrpcStatus(result.status());
    if (result.ok()) fill(*std::move(result));
    // gRPC's server lives until this is finished; what has the gate may not live longer than that.
    gate_.Leave();
    reactor->Finish(status);
  };
}

void KvServiceImpl::Drain(std::chrono::milliseconds time_max) {
  const auto deadline = std::chrono::steady_clock::now() + time_max;
  const StreamSet::Drained drained = streams_.Drain(deadline);
  if (drained.told_count == 0) return;
  LogInfo("drain attached_count={} left_count={}", drained.told_count, drained.left_count);
  if (drained.left_count > 0) {
    LogWarning(
        "stopping though {} conversations are attached, after {} ms: what no checkpoint covers is "
        "lost unless their compute nodes go on when this daemon is back",
        drained.left_count, time_max.count());
  }
  gate_.WaitQuiet(kDrainQuiet, deadline);
}

void KvServiceImpl::Stop(std::chrono::milliseconds time_max) {
  const auto deadline = std::chrono::steady_clock::now() + time_max;
  stopping_.store(true);
  streams_.Stop();
  gate_.WaitIdle(deadline);
}

KvServiceImpl::KvServiceImpl(NodeIdentity identity, Engine* engine, const TokenRegistry* registry)
    : identity_(std::move(identity)), engine_(engine), registry_(registry) {}

absl::StatusOr<AppId> KvServiceImpl::Authenticate(const Context& context) const {
  const auto token = context.client_metadata().find(kTokenMetadataKey);
  if (token == context.client_metadata().end()) {
    return Unauthenticated(
        "the call has no {} in its metadata: get one from the handshake socket beside the daemon's "
        "socket",
        kTokenMetadataKey);
  }
  return registry_->AppOf({token->second.data(), token->second.size()});
}

KvServiceImpl::Call KvServiceImpl::Admit(Context* context, const absl::Status& valid, Work work) {
  const absl::StatusOr<AppId> app = Authenticate(*context);
  Call call{context->DefaultReactor(), app.value_or(AppId()), false};
  absl::Status status = app.status();
  if (status.ok()) status = valid;
  // A session that lost its stream to the stop must not resume here: it would take the new epoch
  // from a daemon that has no stream for it.
  const bool stops = stopping_.load() || (work == Work::kNew && streams_.stopping());
  if (status.ok() && stops) status = Unavailable("the daemon is stopping");
  if (status.ok() && context->IsCancelled()) status = Cancelled("the caller gave up");
  call.admitted = status.ok();
  if (call.admitted) {
    gate_.Enter(work == Work::kGreeting ? CallGate::Sound::kSilent : CallGate::Sound::kHeard);
  } else {
    call.reactor->Finish(rpc::ToGrpcStatus(status));
  }
  return call;
}

Reactor* KvServiceImpl::GetCapabilities(Context* context,
                                        const v1::GetCapabilitiesRequest* /*request*/,
                                        v1::GetCapabilitiesResponse* response) {
  const Call call = Begin(context, response, absl::OkStatus(), Work::kGreeting);
  if (!call.admitted) return call.reactor;
  response->set_protocol_version(kProtocolVersion);
  for (const v1::Operation operation : kOperations) response->add_operations(operation);
  if (engine_->has_arena()) response->add_operations(v1::OPERATION_ARENA);
  response->set_page_bytes(kPageBytes);
  response->set_message_bytes_max(kMessageBytesMax);
  response->set_part_bytes_max(kPartBytesMax);
  response->set_fetches_in_flight_max(kFetchesInFlightMax);
  response->set_io_engine(identity_.io_engine);
  response->set_store_id(identity_.store_id);
  gate_.Leave(CallGate::Sound::kSilent);
  call.reactor->Finish(grpc::Status::OK);
  return call.reactor;
}

Reactor* KvServiceImpl::CreateSession(Context* context, const v1::CreateSessionRequest* request,
                                      v1::CreateSessionResponse* response) {
  absl::StatusOr<cairn::CreateSession> value = rpc::FromProto(v1::CreateSessionRequest(*request));
  const Call call = Begin(context, response, value.status(), Work::kNew);
  if (!call.admitted) return call.reactor;
  engine_->Create(call.app, *std::move(value),
                  Answer<SessionRef>(call.reactor, [response](const SessionRef& session) {
                    rpc::ToProto(session, response);
                  }));
  return call.reactor;
}

Reactor* KvServiceImpl::OpenSession(Context* context, const v1::OpenSessionRequest* request,
                                    v1::OpenSessionResponse* response) {
  absl::StatusOr<OpenRequest> value = rpc::FromProto(*request);
  const Call call = Begin(context, response, value.status(), Work::kNew);
  if (!call.admitted) return call.reactor;
  engine_->OpenSession(call.app, *std::move(value),
                       Answer<Attachment>(call.reactor, [response](const Attachment& attachment) {
                         rpc::ToProto(attachment, response->mutable_attachment());
                       }));
  return call.reactor;
}

Reactor* KvServiceImpl::ResumeSession(Context* context, const v1::ResumeSessionRequest* request,
                                      v1::ResumeSessionResponse* response) {
  absl::StatusOr<ResumeRequest> value = rpc::FromProto(*request);
  const Call call = Begin(context, response, value.status(), Work::kNew);
  if (!call.admitted) return call.reactor;
  engine_->ResumeSession(call.app, *std::move(value),
                         Answer<Attachment>(call.reactor, [response](const Attachment& attachment) {
                           rpc::ToProto(attachment, response->mutable_attachment());
                         }));
  return call.reactor;
}

Reactor* KvServiceImpl::CloseSession(Context* context, const v1::CloseSessionRequest* request,
                                     v1::CloseSessionResponse* response) {
  absl::Status valid = rpc::CheckId("session_id", request->session_id());
  if (valid.ok()) valid = rpc::CheckId("epoch", request->epoch());
  const Call call = Begin(context, response, valid);
  if (!call.admitted) return call.reactor;
  engine_->CloseSession(call.app, SessionId(request->session_id()), Epoch(request->epoch()),
                        Answer<std::monostate>(call.reactor, [](std::monostate) {}));
  return call.reactor;
}

Reactor* KvServiceImpl::DeleteSession(Context* context, const v1::DeleteSessionRequest* request,
                                      v1::DeleteSessionResponse* response) {
  absl::StatusOr<SessionRef> session = rpc::FromProto(*request);
  const Call call = Begin(context, response, session.status());
  if (!call.admitted) return call.reactor;
  engine_->DeleteSession(call.app, *std::move(session),
                         Answer<std::monostate>(call.reactor, [](std::monostate) {}));
  return call.reactor;
}

Reactor* KvServiceImpl::GetSession(Context* context, const v1::GetSessionRequest* request,
                                   v1::GetSessionResponse* response) {
  absl::StatusOr<SessionRef> session = rpc::FromProto(*request);
  const Call call = Begin(context, response, session.status());
  if (!call.admitted) return call.reactor;
  engine_->GetSession(call.app, *std::move(session), DetailOf(request->with_flash_use()),
                      Answer<SessionInfo>(call.reactor, [response](const SessionInfo& info) {
                        rpc::ToProto(info, response->mutable_session());
                      }));
  return call.reactor;
}

Reactor* KvServiceImpl::ListSessions(Context* context, const v1::ListSessionsRequest* request,
                                     v1::ListSessionsResponse* response) {
  const absl::StatusOr<PageRequest> page = ParsePage(*request);
  const Call call = Begin(context, response, page.status());
  if (!call.admitted) return call.reactor;
  engine_->ListSessions(
      call.app, DetailOf(request->with_flash_use()),
      Answer<std::vector<SessionInfo>>(
          call.reactor, [response, page = *page](const std::vector<SessionInfo>& sessions) {
            FillPage(page, sessions, response);
          }));
  return call.reactor;
}

Reactor* KvServiceImpl::SealSession(Context* context, const v1::SealSessionRequest* request,
                                    v1::SealSessionResponse* response) {
  absl::StatusOr<SessionRef> session = rpc::FromProto(*request);
  const Call call = Begin(context, response, session.status(), Work::kNew);
  if (!call.admitted) return call.reactor;
  engine_->SealSession(call.app, *std::move(session),
                       Answer<SealedSegment>(call.reactor, [response](SealedSegment sealed) {
                         response->set_segment_id(sealed.segment_id.value());
                         response->set_token_count(sealed.token_count);
                       }));
  return call.reactor;
}

Reactor* KvServiceImpl::SupersedeSession(Context* context,
                                         const v1::SupersedeSessionRequest* request,
                                         v1::SupersedeSessionResponse* response) {
  absl::StatusOr<Supersession> value = rpc::FromProto(*request);
  const Call call = Begin(context, response, value.status());
  if (!call.admitted) return call.reactor;
  engine_->SupersedeSession(call.app, *std::move(value),
                            Answer<std::monostate>(call.reactor, [](std::monostate) {}));
  return call.reactor;
}

Reactor* KvServiceImpl::GetStats(Context* context, const v1::GetStatsRequest* /*request*/,
                                 v1::GetStatsResponse* response) {
  const Call call = Begin(context, response, absl::OkStatus());
  if (!call.admitted) return call.reactor;
  engine_->GetStats(call.app, Answer<KvStats>(call.reactor, [response](const KvStats& stats) {
                      rpc::ToProto(stats, response);
                    }));
  return call.reactor;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* KvServiceImpl::Channel(
    Context* context) {
  return ChannelStream::Start(engine_, &streams_, &gate_, identity_.boot_token,
                              Authenticate(*context));
}

}  // namespace cairn::kv
