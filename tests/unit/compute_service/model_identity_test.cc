// Conversations of several identities in one process: of the model as it is, and of adapters in
// several strengths. Through InferenceService and an engine in memory.
#include <gtest/gtest.h>

#include "compute-node/kv_client/in_process_kv_node.h"
#include "compute-node/service/kept_conversations.h"
#include "compute-node/service/turn.h"
#include "tests/unit/compute_service/inference_service_fixture.h"

namespace cairn::compute {
namespace {

using Tokens = std::vector<std::int32_t>;

class ModelIdentityTest : public InferenceServiceTest {
 protected:
  void SetUp() override {
    InferenceServiceTest::SetUp();
    LoadModel("", MakeRamKvNode({.size_bytes = 64 << 20, .engine = {}}).value());
    runtime_ = state_.runtime().value();
    runtime_->served.adapter_digests = {std::string(kDigestBytes, 'a')};
    runtime_->kept = std::make_unique<KeptConversations>(
        *runtime_->node, runtime_->served, std::vector<PolicyChoice>{runtime_->options.policy},
        state_.open_conversations(), "cairn:http here", "the daemon here", 8);
  }

  // Of the digest 'a' an adapter is loaded.
  ModelIdentity WithAdapter(char digest, float scale) const {
    ModelIdentity identity = runtime_->served.base;
    identity.key.adapter_digest = std::string(kDigestBytes, digest);
    identity.key.adapter_scale = scale;
    return identity;
  }
  std::int64_t Create(const ModelIdentity& identity) {
    CreateSession create;
    create.key = identity.key;
    create.layout = identity.layout;
    return runtime_->node->Create(create).value().id.value();
  }
  ModelIdentity StoredIdentity(std::int64_t id) {
    return IdentityOf(runtime_->node->Get({SessionId(id)}, ListDetail::kRows).value());
  }
  grpc::Status Run(std::int64_t id, int token_count = 10) {
    v1::GenerateRequest request;
    request.set_conversation_id(id);
    for (int i = 0; i < token_count; ++i) request.mutable_tokens()->add_ids(3 + i);
    request.set_tokens_max(2);
    return Generate(request);
  }
  grpc::Status Fork(std::int64_t id, std::int64_t& fork) {
    v1::ForkConversationRequest request;
    request.set_conversation_id(id);
    v1::ForkConversationResponse response;
    grpc::ClientContext context;
    grpc::Status status = stub_->ForkConversation(&context, request, &response);
    fork = response.conversation_id();
    return status;
  }
  grpc::Status Read(std::int64_t id) {
    v1::GetConversationRequest request;
    request.set_conversation_id(id);
    v1::GetConversationResponse response;
    grpc::ClientContext context;
    return stub_->GetConversation(&context, request, &response);
  }
  bool IsUsable(std::int64_t id) {
    v1::ListConversationsResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->ListConversations(&context, {}, &response).ok());
    for (const v1::Conversation& conversation : response.conversations()) {
      if (conversation.conversation_id() == id) return conversation.usable();
    }
    ADD_FAILURE() << "conversation " << id << " is not listed";
    return false;
  }
  // -> how much of the prompt was kept
  std::int64_t ReusedBy(const ModelIdentity& identity, const Tokens& prompt) {
    const KeptTurn turn = RunKeptTurn(*runtime_, identity, prompt, *runtime_->kept);
    EXPECT_EQ(StoredIdentity(turn.conversation.value()), identity);
    return turn.reused_token_count;
  }

  std::shared_ptr<Runtime> runtime_;
};

TEST_F(ModelIdentityTest, AnAdapterThatIsNotLoadedIsRefusedByItsName) {
  const std::int64_t loaded = Create(WithAdapter('a', 0.5F));
  const std::int64_t other = Create(WithAdapter('b', 0.5F));
  ASSERT_TRUE(Run(loaded).ok());
  EXPECT_TRUE(IsUsable(loaded));
  EXPECT_TRUE(Read(loaded).ok());
  EXPECT_FALSE(IsUsable(other));
  std::int64_t fork = 0;
  for (const grpc::Status& refused : {Run(other), Read(other), Fork(other, fork)}) {
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_NE(refused.error_message().find(
                  fmt::format("conversation {} was made with LoRA adapter 62626262", other)),
              std::string::npos)
        << refused.error_message();
  }
}

TEST_F(ModelIdentityTest, WhatIsMadeOfAConversationHasItsIdentity) {
  for (const ModelIdentity& identity :
       {runtime_->served.base, WithAdapter('a', 0.5F), WithAdapter('a', 1)}) {
    const std::int64_t id = Create(identity);
    ASSERT_TRUE(Run(id).ok());
    std::int64_t fork = 0;
    ASSERT_TRUE(Fork(id, fork).ok());
    ASSERT_TRUE(Run(fork).ok());
    EXPECT_EQ(StoredIdentity(fork), identity);
  }
  ASSERT_TRUE(Run(0).ok());
  EXPECT_EQ(StoredIdentity(events_.front().started().conversation_id()), runtime_->served.base);
}

// The KV node takes nothing of another identity in the conversation's place.
TEST_F(ModelIdentityTest, ARepairKeepsTheIdentity) {
  auto fake = std::make_unique<FakeKvNode>(1);
  FakeKvNode& node = *fake;
  runtime_->kept.reset();
  runtime_->node = std::move(fake);
  const ModelIdentity half = WithAdapter('a', 0.5F);
  const std::int64_t id = Create(half);
  ASSERT_TRUE(Run(id, 400).ok());
  bool damaged = true;
  node.tamper = [&](const Fetch&, FetchReply& reply) {
    damaged = damaged && node.sessions.size() == 1;  // until it is computed again
    if (!damaged) return;
    for (FetchedCluster& cluster : reply.clusters) {
      cluster.outcome = FetchOutcome::kLost;
      cluster.spans.clear();
    }
  };
  const grpc::Status status = Run(id);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(damaged);
  EXPECT_EQ(node.sessions.size(), 1U);
  EXPECT_EQ(StoredIdentity(id), half);
}

TEST_F(ModelIdentityTest, WhatIsKeptOfATurnIsForItsIdentityOnly) {
  const ModelIdentity base = runtime_->served.base;
  const ModelIdentity half = WithAdapter('a', 0.5F);
  const ModelIdentity whole = WithAdapter('a', 1);
  Tokens prompt(40, 5);
  for (const ModelIdentity& identity : {base, half, whole}) {
    EXPECT_EQ(ReusedBy(identity, prompt), 0);
  }
  prompt.resize(60, 6);
  for (const ModelIdentity& identity : {half, base}) EXPECT_EQ(ReusedBy(identity, prompt), 40);
  prompt.resize(70, 7);
  EXPECT_EQ(ReusedBy(half, prompt), 60);
  EXPECT_EQ(ReusedBy(whole, prompt), 40);
}

}  // namespace
}  // namespace cairn::compute
