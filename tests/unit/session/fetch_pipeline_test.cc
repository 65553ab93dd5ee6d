#include "compute-node/session/reading/fetch_pipeline.h"

#include "compute-node/retrieval/policy_registry.h"
#include "tests/unit/session/conversation_fixture.h"

namespace cairn::compute {
namespace {

// Every way in which a reply can differ from the plan.
class FetchPipelineTest : public ConversationFixture {
 protected:
  absl::Status StepWith(std::function<void(FetchedCluster&)> change) {
    const std::unique_ptr<Conversation> conversation = Open(Create());
    node.cut_spans = false;
    Continue(*conversation, Prompt(400), 1);
    node.tamper = [&](const Fetch& fetch, FetchReply& reply) {
      if (fetch.layer == 0) change(reply.clusters[0]);
    };
    std::vector<float> logits = Logits();
    absl::Status status = conversation->Step(5, logits, never);
    node.tamper = nullptr;
    return status;
  }
};

TEST_F(FetchPipelineTest, WrongRepliesAreDataLoss) {
  const std::vector<std::function<void(FetchedCluster&)>> changes = {
      [](FetchedCluster& c) { c.cluster.head = 1; },
      [](FetchedCluster& c) { c.outcome = FetchOutcome::kUnknown; },
      [](FetchedCluster& c) { c.spans.clear(); },
      [](FetchedCluster& c) { c.spans[0].bytes = c.spans[0].bytes.subspan(1); },
      [](FetchedCluster& c) { --c.spans[0].entry_count; },
      [](FetchedCluster& c) { c.spans[0].entry_count = 1 << 30; },
      [](FetchedCluster& c) { c.spans[0].positions = Positions::Range(1, c.spans[0].entry_count); },
      [](FetchedCluster& c) { c.spans.push_back(c.spans[0]); },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const absl::Status status = StepWith(changes[i]);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << i;
    EXPECT_NE(Message(status).find("layer 0 head 0 cluster 1"), std::string::npos)
        << i << " " << Message(status);
  }
  EXPECT_TRUE(StepWith([](FetchedCluster&) {}).ok());
}

// What the KV node cannot read now is not lost, and nobody is told to give it up.
TEST_F(FetchPipelineTest, AnUnreadableClusterIsUnavailableAndTheNextStepGoesOn) {
  const absl::Status status = StepWith([](FetchedCluster& cluster) {
    cluster.outcome = FetchOutcome::kUnreadable;
    cluster.spans.clear();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(Message(status).find("nothing is known to be lost"), std::string::npos) << status;
  EXPECT_TRUE(StepWith([](FetchedCluster&) {}).ok());
}

TEST_F(FetchPipelineTest, RequestsTheNextLayerBeforeThisOneIsDone) {
  const std::unique_ptr<Conversation> conversation = Open(Create());
  Continue(*conversation, Prompt(400), 1);
  FetchPipeline pipeline(identity.layout, memory);
  std::vector<std::int32_t> planned;
  FakeKvNode other(seed);
  other.sessions = node.sessions;
  const auto session = other.Open({SessionId(1)}).value();
  PolicyOptions policy_options;
  policy_options.layout = identity.layout;
  policy_options.part_bytes_max = 65536;
  const auto policy = MakePolicy("full", policy_options).value();
  pipeline.StartPass(
      *session,
      [&](std::int32_t layer) {
        planned.push_back(layer);
        return policy->selector().Select({.layer = layer, .stored_token_count = 288});
      },
      true);
  EXPECT_EQ(planned, (std::vector<std::int32_t>{0}));
  pipeline.StartLayer(0);
  EXPECT_EQ(planned, (std::vector<std::int32_t>{0, 1}));
  ASSERT_TRUE(pipeline.HasNext());
  EXPECT_TRUE(pipeline.Next(never).ok());
  EXPECT_FALSE(pipeline.HasNext());
  EXPECT_GT(memory.used_bytes(), 0);
  pipeline.Reset();
}

}  // namespace
}  // namespace cairn::compute
