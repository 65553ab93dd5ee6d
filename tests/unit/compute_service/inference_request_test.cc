// What a call of InferenceService may bring.
#include "tests/unit/compute_service/inference_service_fixture.h"

namespace cairn::compute {
namespace {

constexpr std::size_t kLongTextBytes = 1 << 20;

TEST_F(InferenceServiceTest, LargeRequestsShareOneBudgetAndSmallOnesNeedNone) {
  LoadModel();
  const auto is_long = [](v1::GenerateRequest& request) {
    request.set_text(std::string(kLongTextBytes, 'x'));
  };
  std::vector<MemoryClaim> others;
  MemoryBudget& budget = state_.request_memory();
  for (const std::int64_t bytes :
       {budget.claim_bytes_max(), budget.bytes_max() / 8, budget.bytes_max() / 8}) {
    others.emplace_back(budget);
    ASSERT_TRUE(others.back().Resize(bytes).ok());
  }
  EXPECT_EQ(CodeFor(is_long), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(CodeFor([](v1::GenerateRequest&) {}), grpc::StatusCode::OK);
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  request.set_text(std::string(kLongTextBytes, 'x'));
  {
    grpc::ClientContext context;
    EXPECT_EQ(stub_->Tokenize(&context, request, &response).error_code(),
              grpc::StatusCode::UNAVAILABLE);
  }
  others.clear();
  // Then it is only longer than the context.
  EXPECT_EQ(CodeFor(is_long), grpc::StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext context;
  EXPECT_TRUE(stub_->Tokenize(&context, request, &response).ok());
  EXPECT_GT(response.ids_size(), 0);
  EXPECT_EQ(budget.claimed_bytes(), 0);
}

TEST_F(InferenceServiceTest, ARequestThatTakesTooMuchAloneIsRefusedForGood) {
  LoadModel();
  const auto many_texts = [](v1::GenerateRequest& request) {
    for (int i = 0; i < (1 << 20); ++i) request.add_stop("");
  };
  EXPECT_EQ(CodeFor(many_texts), grpc::StatusCode::OUT_OF_RANGE);
  // Longer than any: gRPC answers that.
  EXPECT_EQ(
      CodeFor([](v1::GenerateRequest& request) {
        request.set_text(std::string(static_cast<std::size_t>(kPromptBytesMax) + (2 << 20), 'x'));
      }),
      grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(CodeFor([](v1::GenerateRequest&) {}), grpc::StatusCode::OK);
}

}  // namespace
}  // namespace cairn::compute
