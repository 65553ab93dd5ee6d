// KvServiceImpl is KvService of proto/cairn/kv/v1/kv.proto over an Engine: every handler checks the
// caller's token and the request, calls the engine, and maps the error once. No policy here.
//
// Threading:  handlers run on gRPC threads and return at once; replies leave on the engine thread.
// Blocking:   never.
// Ownership:  borrows engine and registry, which outlive the server.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include <grpcpp/support/server_callback.h>

#include "cairn/kv/v1/kv.grpc.pb.h"
#include "common/base/status.h"
#include "kv-node/engine/engine.h"
#include "kv-node/service/call_gate.h"
#include "kv-node/service/channel_stream.h"
#include "kv-node/service/node_identity.h"
#include "kv-node/service/token_registry.h"

namespace cairn::kv {

inline constexpr std::int32_t kPageSizeDefault = 100;
inline constexpr std::int32_t kPageSizeMax = 1000;
// A client that has ended its stream may delete its session next.
inline constexpr std::chrono::milliseconds kDrainQuiet{200};

// Unary methods by callback; Channel raw, so that fetched bytes can be lent to gRPC.
using KvServiceBase = v1::KvService::WithCallbackMethod_GetCapabilities<
    v1::KvService::WithCallbackMethod_CreateSession<v1::KvService::WithCallbackMethod_OpenSession<
        v1::KvService::WithCallbackMethod_ResumeSession<
            v1::KvService::WithCallbackMethod_CloseSession<
                v1::KvService::WithCallbackMethod_DeleteSession<
                    v1::KvService::WithCallbackMethod_GetSession<
                        v1::KvService::WithCallbackMethod_ListSessions<
                            v1::KvService::WithCallbackMethod_SealSession<
                                v1::KvService::WithCallbackMethod_SupersedeSession<
                                    v1::KvService::WithCallbackMethod_GetStats<
                                        v1::KvService::WithRawCallbackMethod_Channel<
                                            v1::KvService::Service>>>>>>>>>>>>;

class KvServiceImpl final : public KvServiceBase {
 public:
  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  KvServiceImpl(NodeIdentity identity, Engine* engine, const TokenRegistry* registry);

  // Takes no new sessions and attachments, and waits until the streams whose clients want to hear
  // of a stop have ended, at most `time_max`; what these clients still ask about their sessions
  // then, in kDrainQuiet, is answered too.
  void Drain(std::chrono::milliseconds time_max);
  // Refuses new calls, ends all streams, and waits for calls in flight, at most `time_max`.
  void Stop(std::chrono::milliseconds time_max);

  Reactor* GetCapabilities(Context* context, const v1::GetCapabilitiesRequest* request,
                           v1::GetCapabilitiesResponse* response) override;
  Reactor* CreateSession(Context* context, const v1::CreateSessionRequest* request,
                         v1::CreateSessionResponse* response) override;
  Reactor* OpenSession(Context* context, const v1::OpenSessionRequest* request,
                       v1::OpenSessionResponse* response) override;
  Reactor* ResumeSession(Context* context, const v1::ResumeSessionRequest* request,
                         v1::ResumeSessionResponse* response) override;
  Reactor* CloseSession(Context* context, const v1::CloseSessionRequest* request,
                        v1::CloseSessionResponse* response) override;
  Reactor* DeleteSession(Context* context, const v1::DeleteSessionRequest* request,
                         v1::DeleteSessionResponse* response) override;
  Reactor* GetSession(Context* context, const v1::GetSessionRequest* request,
                      v1::GetSessionResponse* response) override;
  Reactor* ListSessions(Context* context, const v1::ListSessionsRequest* request,
                        v1::ListSessionsResponse* response) override;
  Reactor* SealSession(Context* context, const v1::SealSessionRequest* request,
                       v1::SealSessionResponse* response) override;
  Reactor* SupersedeSession(Context* context, const v1::SupersedeSessionRequest* request,
                            v1::SupersedeSessionResponse* response) override;
  Reactor* GetStats(Context* context, const v1::GetStatsRequest* request,
                    v1::GetStatsResponse* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Channel(Context* context) override;

 private:
  // The one place where callers are told apart: the app of a call's token.
  absl::StatusOr<AppId> Authenticate(const Context& context) const;
  // A reactor, and whether to go on: false after it was finished with the caller's error.
  struct Call {
    Reactor* reactor = nullptr;
    AppId app;  // who calls
    bool admitted = false;
  };
  // What a daemon that is to stop does not begin any more, what it goes on with, and what those
  // ask who look whether it is back: they would keep it from ever being quiet.
  enum class Work : std::uint8_t { kNew, kGoingOn, kGreeting };
  Call Admit(Context* context, const absl::Status& valid, Work work);
  // The same, and the response says by which daemon it is.
  template <typename Response>
  Call Begin(Context* context, Response* response, const absl::Status& valid,
             Work work = Work::kGoingOn) {
    response->set_boot_token(identity_.boot_token);
    return Admit(context, valid, work);
  }
  template <typename T, typename Fill>
  Callback<T> Answer(Reactor* reactor, Fill fill);

  const NodeIdentity identity_;
  Engine* const engine_;
  const TokenRegistry* const registry_;
  std::atomic<bool> stopping_{false};  // takes no calls
  StreamSet streams_;
  CallGate gate_;  // unary calls and streams
};

}  // namespace cairn::kv
