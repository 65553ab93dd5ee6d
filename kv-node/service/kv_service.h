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
#include <string>

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
  KvServiceImpl(NodeIdentity identity, Engine* engine, const TokenRegistry* registry);

  // Takes no new sessions and attachments, and waits until the streams whose clients want to hear
  // of a stop have ended, at most `time_max`; what these clients still ask about their sessions
  // then, in kDrainQuiet, is answered too.
  void Drain(std::chrono::milliseconds time_max);
  // Refuses new calls, ends all streams, and waits for calls in flight, at most `time_max`.
  void Stop(std::chrono::milliseconds time_max);

  grpc::ServerUnaryReactor* GetCapabilities(grpc::CallbackServerContext* context,
                                            const v1::GetCapabilitiesRequest* request,
                                            v1::GetCapabilitiesResponse* response) override;
  grpc::ServerUnaryReactor* CreateSession(grpc::CallbackServerContext* context,
                                          const v1::CreateSessionRequest* request,
                                          v1::CreateSessionResponse* response) override;
  grpc::ServerUnaryReactor* OpenSession(grpc::CallbackServerContext* context,
                                        const v1::OpenSessionRequest* request,
                                        v1::OpenSessionResponse* response) override;
  grpc::ServerUnaryReactor* ResumeSession(grpc::CallbackServerContext* context,
                                          const v1::ResumeSessionRequest* request,
                                          v1::ResumeSessionResponse* response) override;
  grpc::ServerUnaryReactor* CloseSession(grpc::CallbackServerContext* context,
                                         const v1::CloseSessionRequest* request,
                                         v1::CloseSessionResponse* response) override;
  grpc::ServerUnaryReactor* DeleteSession(grpc::CallbackServerContext* context,
                                          const v1::DeleteSessionRequest* request,
                                          v1::DeleteSessionResponse* response) override;
  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* context,
                                       const v1::GetSessionRequest* request,
                                       v1::GetSessionResponse* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const v1::ListSessionsRequest* request,
                                         v1::ListSessionsResponse* response) override;
  grpc::ServerUnaryReactor* SealSession(grpc::CallbackServerContext* context,
                                        const v1::SealSessionRequest* request,
                                        v1::SealSessionResponse* response) override;
  grpc::ServerUnaryReactor* SupersedeSession(grpc::CallbackServerContext* context,
                                             const v1::SupersedeSessionRequest* request,
                                             v1::SupersedeSessionResponse* response) override;
  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* context,
                                     const v1::GetStatsRequest* request,
                                     v1::GetStatsResponse* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Channel(
      grpc::CallbackServerContext* context) override;

 private:
  // The one place where callers are told apart: the app of a call's token.
  absl::StatusOr<AppId> Authenticate(const grpc::CallbackServerContext& context) const;
  // A reactor, and whether to go on: false after it was finished with the caller's error.
  struct Call {
    grpc::ServerUnaryReactor* reactor = nullptr;
    AppId app;  // who calls
    bool admitted = false;
  };
  // What a daemon that is to stop does not begin any more, what it goes on with, and what those
  // ask who look whether it is back: they would keep it from ever being quiet.
  enum class Work : std::uint8_t { kNew, kGoingOn, kGreeting };
  Call Begin(grpc::CallbackServerContext* context, const absl::Status& valid,
             Work work = Work::kGoingOn);
  template <typename T, typename Fill>
  Callback<T> Answer(grpc::ServerUnaryReactor* reactor, Fill fill);

  const NodeIdentity identity_;
  Engine* const engine_;
  const TokenRegistry* const registry_;
  std::atomic<bool> stopping_{false};  // takes no calls
  StreamSet streams_;
  CallGate gate_;  // unary calls and streams
};

}  // namespace cairn::kv
