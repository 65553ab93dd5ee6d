// InferenceServiceImpl answers the calls of proto/cairn/compute/v1/inference.proto. Generations run
// on the GenerationQueue; the other calls on gRPC's threads.
//
// Requests are read by the handlers, not before: RequestGate bounds how many are in memory.
//
// Threading:  safe from any thread.
// Blocking:   Generate for as long as the generation takes, the others for a call to the KV node.
#pragma once

#include <memory>

#include <grpcpp/grpcpp.h>

#include "cairn/compute/v1/inference.grpc.pb.h"
#include "common/base/status.h"
#include "compute-node/service/generate_job.h"
#include "compute-node/service/generation_queue.h"
#include "compute-node/service/request_gate.h"
#include "compute-node/service/runtime.h"

namespace cairn::compute {

inline constexpr std::int32_t kPageSizeDefault = 100;
inline constexpr std::int32_t kPageSizeMax = 1000;
inline constexpr std::int64_t kTextBytesMax = std::int64_t{16} << 20;

class InferenceServiceImpl final : public v1::InferenceService::StreamedService {
 public:
  // Borrows both; they outlive it.
  InferenceServiceImpl(DaemonState& state, GenerationQueue& queue)
      : state_(state), queue_(queue), gate_(state.request_memory()) {}

  // As gRPC names methods that read their requests themselves.
  grpc::Status StreamedGenerate(
      grpc::ServerContext* context,
      grpc::ServerSplitStreamer<v1::GenerateRequest, v1::GenerateEvent>* streamer) override;
  grpc::Status StreamedListConversations(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::ListConversationsRequest, v1::ListConversationsResponse>*
          streamer) override;
  grpc::Status StreamedDeleteConversation(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::DeleteConversationRequest, v1::DeleteConversationResponse>*
          streamer) override;
  grpc::Status StreamedForkConversation(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::ForkConversationRequest, v1::ForkConversationResponse>*
          streamer) override;
  grpc::Status StreamedGetConversation(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::GetConversationRequest, v1::GetConversationResponse>* streamer)
      override;
  grpc::Status StreamedTokenize(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::TokenizeRequest, v1::TokenizeResponse>* streamer) override;
  grpc::Status StreamedListModels(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::ListModelsRequest, v1::ListModelsResponse>* streamer) override;
  grpc::Status StreamedGetStatus(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::GetStatusRequest, v1::GetStatusResponse>* streamer) override;
  grpc::Status StreamedGetStore(
      grpc::ServerContext* context,
      grpc::ServerUnaryStreamer<v1::GetStoreRequest, v1::GetStoreResponse>* streamer) override;

 private:
  using GenerateStream = grpc::ServerSplitStreamer<v1::GenerateRequest, v1::GenerateEvent>;
  // Reads the request, answers it with `body`, and writes the response.
  template <typename Request, typename Response, typename Body>
  grpc::Status Answer(grpc::ServerUnaryStreamer<Request, Response>& streamer, const Body& body);
  // Reads the request. `conversation` becomes the one that it names.
  absl::StatusOr<std::shared_ptr<GenerateJob>> MakeJob(const grpc::ServerContext& context,
                                                       GenerateStream& stream,
                                                       SessionId& conversation,
                                                       MemoryClaim& memory);
  absl::Status RunGenerate(const grpc::ServerContext& context, GenerateStream& stream,
                           SessionId& conversation);
  absl::Status ListPage(const v1::ListConversationsRequest& request,
                        v1::ListConversationsResponse& response);
  absl::Status Delete(const SessionRef& conversation);
  absl::Status Fork(const v1::ForkConversationRequest& request,
                    v1::ForkConversationResponse& response);
  absl::Status ReadConversation(const SessionRef& conversation,
                                v1::GetConversationResponse& response);
  // REQUIRES: this call has the conversation.
  absl::Status ReadTaken(const Runtime& runtime, const SessionRef& conversation,
                         v1::GetConversationResponse& response);
  absl::Status TokenizeText(const v1::TokenizeRequest& request, v1::TokenizeResponse& response);
  absl::Status DescribeModel(v1::ListModelsResponse& response);
  absl::Status DescribeStore(v1::GetStoreResponse& response);
  absl::Status DescribeStatus(v1::GetStatusResponse& response);

  DaemonState& state_;
  GenerationQueue& queue_;
  RequestGate gate_;
};

}  // namespace cairn::compute
