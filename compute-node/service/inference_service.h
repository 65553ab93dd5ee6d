// InferenceServiceImpl answers the calls of proto/cairn/compute/v1/inference.proto. Generations run
// on the GenerationQueue; the other calls on gRPC's threads.
//
// Threading:  safe from any thread.
// Blocking:   Generate for as long as the generation takes, the others for a call to the KV node.
#pragma once

#include <grpcpp/grpcpp.h>

#include "cairn/compute/v1/inference.grpc.pb.h"
#include "common/base/status.h"
#include "compute-node/service/generation_queue.h"
#include "compute-node/service/runtime.h"

namespace cairn::compute {

inline constexpr std::int32_t kPageSizeDefault = 100;
inline constexpr std::int32_t kPageSizeMax = 1000;
inline constexpr std::int64_t kTextBytesMax = std::int64_t{16} << 20;

class InferenceServiceImpl final : public v1::InferenceService::Service {
 public:
  // Borrows both; they outlive it.
  InferenceServiceImpl(DaemonState& state, GenerationQueue& queue) : state_(state), queue_(queue) {}

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateEvent>* writer) override;
  grpc::Status ListConversations(grpc::ServerContext* context,
                                 const v1::ListConversationsRequest* request,
                                 v1::ListConversationsResponse* response) override;
  grpc::Status DeleteConversation(grpc::ServerContext* context,
                                  const v1::DeleteConversationRequest* request,
                                  v1::DeleteConversationResponse* response) override;
  grpc::Status ForkConversation(grpc::ServerContext* context,
                                const v1::ForkConversationRequest* request,
                                v1::ForkConversationResponse* response) override;
  grpc::Status GetConversation(grpc::ServerContext* context,
                               const v1::GetConversationRequest* request,
                               v1::GetConversationResponse* response) override;
  grpc::Status Tokenize(grpc::ServerContext* context, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override;
  grpc::Status ListModels(grpc::ServerContext* context, const v1::ListModelsRequest* request,
                          v1::ListModelsResponse* response) override;
  grpc::Status GetStatus(grpc::ServerContext* context, const v1::GetStatusRequest* request,
                         v1::GetStatusResponse* response) override;
  grpc::Status GetStore(grpc::ServerContext* context, const v1::GetStoreRequest* request,
                        v1::GetStoreResponse* response) override;

 private:
  absl::Status RunGenerate(grpc::ServerContext* context, const v1::GenerateRequest& request,
                           grpc::ServerWriter<v1::GenerateEvent>* writer);
  absl::Status ListPage(const v1::ListConversationsRequest& request,
                        v1::ListConversationsResponse& response);
  absl::Status Delete(SessionId id);
  absl::Status Fork(const v1::ForkConversationRequest& request,
                    v1::ForkConversationResponse& response);
  absl::Status ReadConversation(SessionId id, v1::GetConversationResponse& response);
  absl::Status DescribeModel(v1::ListModelsResponse& response);
  absl::Status DescribeStore(v1::GetStoreResponse& response);

  DaemonState& state_;
  GenerationQueue& queue_;
};

}  // namespace cairn::compute
