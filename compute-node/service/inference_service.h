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
#include "common/rpc/status_mapping.h"
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
  template <typename Request, typename Response>
  using Call = grpc::ServerUnaryStreamer<Request, Response>;
  using GenerateStream = grpc::ServerSplitStreamer<v1::GenerateRequest, v1::GenerateEvent>;

  grpc::Status StreamedGenerate(grpc::ServerContext* context, GenerateStream* streamer) override;
  grpc::Status StreamedListConversations(
      grpc::ServerContext*,
      Call<v1::ListConversationsRequest, v1::ListConversationsResponse>* call) override {
    return Answer(*call, &InferenceServiceImpl::ListPage);
  }
  grpc::Status StreamedDeleteConversation(
      grpc::ServerContext*,
      Call<v1::DeleteConversationRequest, v1::DeleteConversationResponse>* call) override {
    return Answer(*call, &InferenceServiceImpl::Delete);
  }
  grpc::Status StreamedForkConversation(
      grpc::ServerContext*,
      Call<v1::ForkConversationRequest, v1::ForkConversationResponse>* call) override {
    return Answer(*call, &InferenceServiceImpl::Fork);
  }
  grpc::Status StreamedGetConversation(
      grpc::ServerContext*,
      Call<v1::GetConversationRequest, v1::GetConversationResponse>* call) override {
    return Answer(*call, &InferenceServiceImpl::ReadConversation);
  }
  grpc::Status StreamedTokenize(grpc::ServerContext*,
                                Call<v1::TokenizeRequest, v1::TokenizeResponse>* call) override {
    return Answer(*call, &InferenceServiceImpl::TokenizeText);
  }
  grpc::Status StreamedListModels(
      grpc::ServerContext*, Call<v1::ListModelsRequest, v1::ListModelsResponse>* call) override {
    return Answer(*call, &InferenceServiceImpl::DescribeModel);
  }
  grpc::Status StreamedGetStatus(grpc::ServerContext*,
                                 Call<v1::GetStatusRequest, v1::GetStatusResponse>* call) override {
    return Answer(*call, &InferenceServiceImpl::DescribeStatus);
  }
  grpc::Status StreamedGetStore(grpc::ServerContext*,
                                Call<v1::GetStoreRequest, v1::GetStoreResponse>* call) override {
    return Answer(*call, &InferenceServiceImpl::DescribeStore);
  }

 private:
  // Reads the request, answers it with `body`, and writes the response.
  template <typename Request, typename Response>
  grpc::Status Answer(Call<Request, Response>& call,
                      absl::Status (InferenceServiceImpl::*body)(const Request&, Response&)) {
    Request request;
    MemoryClaim memory;
    Response response;
    absl::Status status = gate_.Read(call, request, memory);
    if (status.ok()) status = (this->*body)(request, response);
    if (status.ok()) call.Write(response);
    return rpc::ToGrpcStatus(status);
  }
  // Reads the request. `conversation` becomes the one that it names.
  absl::StatusOr<std::shared_ptr<GenerateJob>> MakeJob(const grpc::ServerContext& context,
                                                       GenerateStream& stream,
                                                       SessionId& conversation,
                                                       MemoryClaim& memory);
  absl::Status RunGenerate(const grpc::ServerContext& context, GenerateStream& stream,
                           SessionId& conversation);
  absl::Status ListPage(const v1::ListConversationsRequest& request,
                        v1::ListConversationsResponse& response);
  absl::Status Delete(const v1::DeleteConversationRequest& request,
                      v1::DeleteConversationResponse& response);
  absl::Status Fork(const v1::ForkConversationRequest& request,
                    v1::ForkConversationResponse& response);
  absl::Status ReadConversation(const v1::GetConversationRequest& request,
                                v1::GetConversationResponse& response);
  absl::Status TokenizeText(const v1::TokenizeRequest& request, v1::TokenizeResponse& response);
  absl::Status DescribeModel(const v1::ListModelsRequest& request,
                             v1::ListModelsResponse& response);
  absl::Status DescribeStatus(const v1::GetStatusRequest& request, v1::GetStatusResponse& response);
  absl::Status DescribeStore(const v1::GetStoreRequest& request, v1::GetStoreResponse& response);

  DaemonState& state_;
  GenerationQueue& queue_;
  RequestGate gate_;
};

}  // namespace cairn::compute
