// What GetStatus says of generations while they run and wait. The fake KV node is asked in the
// middle of passes: a good time to look.
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "tests/unit/compute_service/inference_service_fixture.h"

namespace cairn::compute {
namespace {

class AwayNode : public FakeKvNode {
 public:
  AwayNode() : FakeKvNode(1) {}
  absl::Status Probe(std::chrono::milliseconds /*time_max*/) override {
    return Unavailable("away");
  }
};

class LiveGenerationsTest : public InferenceServiceTest {
 protected:
  // Behind a prompt of `token_count` tokens; the model computes 256 of them at a time.
  static v1::GenerateRequest Request(std::int64_t conversation_id, int token_count,
                                     std::int32_t tokens_max) {
    std::mt19937 random(5);
    v1::GenerateRequest request;
    request.set_conversation_id(conversation_id);
    for (int i = 0; i < token_count; ++i) {
      request.mutable_tokens()->add_ids(3 + static_cast<std::int32_t>(random() % 500));
    }
    request.set_tokens_max(tokens_max);
    request.set_ignore_eos(true);
    return request;
  }
  v1::GetStatusResponse Status() {
    grpc::ClientContext context;
    v1::GetStatusResponse status;
    EXPECT_TRUE(stub_->GetStatus(&context, {}, &status).ok());
    EXPECT_EQ(status.generation_count(), status.generations_size());
    return status;
  }
};

TEST_F(LiveGenerationsTest, ARunningGenerationIsShownAsItWasBehindItsLastPass) {
  LoadModel();
  std::vector<v1::Generation> prefilling;
  std::vector<v1::Generation> decoding;
  node_->tamper = [&](const Fetch&, FetchReply&) {
    const v1::GetStatusResponse status = Status();
    ASSERT_EQ(status.generations_size(), 1);
    const v1::Generation& now = status.generations(0);
    (now.phase() == v1::GENERATION_PHASE_PREFILLING ? prefilling : decoding).push_back(now);
  };
  v1::GenerateRequest request = Request(0, 300, 4);
  request.set_label("a label");
  ASSERT_TRUE(Generate(request).ok());
  ASSERT_FALSE(prefilling.empty());
  for (const v1::Generation& now : prefilling) {
    EXPECT_EQ(now.conversation_id(), events_.front().started().conversation_id());
    EXPECT_EQ(now.conversation_uid(), events_.front().started().conversation_uid());
    EXPECT_EQ(now.label(), "a label");
    EXPECT_EQ(now.policy(), events_.front().started().policy());
    EXPECT_EQ(now.token_count(), 256);
    EXPECT_EQ(now.stored_token_count(), 256);
    EXPECT_EQ(now.done_token_count(), 256);
    EXPECT_EQ(now.total_token_count(), 300);
    EXPECT_GT(now.kv_dram_bytes(), 0);
  }
  ASSERT_GE(decoding.size(), 4U);
  std::int64_t last = 300;
  for (const v1::Generation& now : decoding) {
    EXPECT_EQ(now.phase(), v1::GENERATION_PHASE_DECODING);
    EXPECT_TRUE(now.token_count() == last || now.token_count() == last + 1);
    last = now.token_count();
    EXPECT_EQ(now.stored_token_count(), 300);
    EXPECT_EQ(now.total_token_count(), 0);
  }
  EXPECT_EQ(last, 303);
  EXPECT_EQ(Status().generation_count(), 0);

  // Behind what the conversation holds.
  prefilling.clear();
  ASSERT_TRUE(Generate(Request(1, 20, -1)).ok());
  ASSERT_FALSE(prefilling.empty());
  EXPECT_EQ(prefilling.front().token_count(), 304);
  EXPECT_EQ(prefilling.front().done_token_count(), 0);
  EXPECT_EQ(prefilling.front().total_token_count(), 20);
  EXPECT_TRUE(prefilling.front().label().empty());  // the KV node has it
}

TEST_F(LiveGenerationsTest, OneThatWaitsForItsTurnIsShownToo) {
  LoadModel();
  std::thread second;
  node_->tamper = [&](const Fetch&, FetchReply&) {
    if (second.joinable()) return;
    second = std::thread([this] {
      v1::GenerateRequest request = Request(0, 5, -1);
      request.set_label("second");
      grpc::ClientContext context;
      const auto reader = stub_->Generate(&context, request);
      v1::GenerateEvent event;
      while (reader->Read(&event)) {
      }
      EXPECT_TRUE(reader->Finish().ok());
    });
    v1::GetStatusResponse status = Status();
    while (status.generations_size() < 2) status = Status();
    EXPECT_EQ(status.generations(0).phase(), v1::GENERATION_PHASE_PREFILLING);
    const v1::Generation& waiting = status.generations(1);
    EXPECT_EQ(waiting.phase(), v1::GENERATION_PHASE_QUEUED);
    EXPECT_EQ(waiting.conversation_id(), 0);
    EXPECT_EQ(waiting.label(), "second");
  };
  ASSERT_TRUE(Generate(Request(0, 300, 1)).ok());
  ASSERT_TRUE(second.joinable());
  second.join();
  EXPECT_EQ(Status().generation_count(), 0);
}

TEST_F(LiveGenerationsTest, WhileTheKvNodeIsAwayAllThatRunWaitForIt) {
  auto node = std::make_unique<AwayNode>();
  FakeKvNode& fake = *node;
  LoadModel("", std::move(node));
  int seen = 0;
  fake.tamper = [&](const Fetch&, FetchReply&) {
    state_.SetKvStatus(Unavailable("away"));
    EXPECT_EQ(Status().generations(0).phase(), v1::GENERATION_PHASE_WAITING);
    state_.SetKvStatus(absl::OkStatus());
    EXPECT_NE(Status().generations(0).phase(), v1::GENERATION_PHASE_WAITING);
    ++seen;
  };
  ASSERT_TRUE(Generate(Request(0, 300, 1)).ok());
  EXPECT_GT(seen, 0);
}

TEST_F(LiveGenerationsTest, AConversationThatIsComputedAgainIsShownUnderItsOwnNumber) {
  LoadModel();
  ASSERT_TRUE(Generate(Request(0, 300, -1)).ok());
  bool damaged = true;
  int seen = 0;
  node_->tamper = [&](const Fetch&, FetchReply& reply) {
    const bool recomputing = node_->sessions.size() > 1;
    damaged = damaged && !recomputing;
    for (FetchedCluster& cluster : reply.clusters) {
      if (!damaged) break;
      cluster.outcome = FetchOutcome::kLost;
      cluster.spans.clear();
    }
    if (!recomputing) return;
    const v1::GetStatusResponse status = Status();
    ASSERT_EQ(status.generations_size(), 1);
    EXPECT_EQ(status.generations(0).phase(), v1::GENERATION_PHASE_RECOMPUTING);
    EXPECT_EQ(status.generations(0).conversation_id(), 1);
    EXPECT_EQ(status.generations(0).done_token_count(), 256);
    EXPECT_EQ(status.generations(0).total_token_count(), 300);
    ++seen;
  };
  ASSERT_TRUE(Generate(Request(1, 5, 1)).ok());
  EXPECT_GT(seen, 0);
}

}  // namespace
}  // namespace cairn::compute
