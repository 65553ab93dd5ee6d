// The retrieval policy in requests and events, and prompts that are not prefilled whole.
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "compute-node/kv_client/in_process_kv_node.h"
#include "compute-node/service/generate_request.h"
#include "compute-node/service/kept_conversations.h"
#include "compute-node/session/entries/stored_policy.h"
#include "tests/unit/compute_service/inference_service_fixture.h"

namespace cairn::compute {
namespace {

using InferenceRetrievalTest = InferenceServiceTest;

TEST(ReadRetrievalTest, WhatIsSetIsAskedForAndNothingElse) {
  const auto read = [](const std::function<void(v1::Retrieval&)>& change) {
    v1::Retrieval retrieval;
    change(retrieval);
    return ReadRetrieval(retrieval);
  };
  EXPECT_EQ(read([](v1::Retrieval&) {}), PolicyRequest());
  EXPECT_EQ(read([](v1::Retrieval& r) { r.set_policy("full"); }), PolicyRequest{.name = "full"});
  EXPECT_EQ(read([](v1::Retrieval& r) { r.set_select_percent(3.3F); }),
            PolicyRequest{.select_percent = static_cast<double>(3.3F)});
  EXPECT_EQ(read([](v1::Retrieval& r) { r.set_select_tokens_min(64); }),
            PolicyRequest{.select_tokens_min = 64});
  EXPECT_EQ(read([](v1::Retrieval& r) { r.set_select_tokens_max(200); }),
            PolicyRequest{.select_tokens_max = 200});
  EXPECT_EQ(read([](v1::Retrieval& r) { r.set_cluster_target_entries(3); }),
            PolicyRequest{.cluster_target_entries = 3});
  EXPECT_EQ(read([](v1::Retrieval& r) { r.set_seed(~std::uint64_t{0}); }),
            PolicyRequest{.seed = ~std::uint64_t{0}});
  EXPECT_EQ(read([](v1::Retrieval& r) { r.set_estimate_percent(0); }),
            PolicyRequest{.estimate_percent = 0});
  EXPECT_EQ(read([](v1::Retrieval& r) { r.set_select_ahead(false); }),
            PolicyRequest{.select_ahead = false});
}

TEST_F(InferenceRetrievalTest, FieldsOutOfRangeAreRefusedAndNamed) {
  LoadModel();
  using Request = v1::GenerateRequest;
  const auto refused = [this](const std::function<void(Request&)>& change) {
    Request request;
    request.set_text("hello");
    change(request);
    const grpc::Status status = Generate(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_EQ(refused([](Request& r) {
              r.mutable_retrieval()->set_policy("nope");
            }).find("retrieval: policy is 'nope': it must be one of full"),
            0U);
  const std::vector<std::pair<std::string, std::function<void(v1::Retrieval&)>>> changes = {
      {"select_percent is -1", [](v1::Retrieval& r) { r.set_select_percent(-1); }},
      {"select_percent is nan", [](v1::Retrieval& r) { r.set_select_percent(std::nanf("")); }},
      {"select_percent is 101", [](v1::Retrieval& r) { r.set_select_percent(101); }},
      {"select_tokens_min is 63", [](v1::Retrieval& r) { r.set_select_tokens_min(63); }},
      {"select_tokens_min is 192: it must be at most select_tokens_max, which is 100",
       [](v1::Retrieval& r) { r.set_select_tokens_max(100); }},
      {"select_tokens_max is 63", [](v1::Retrieval& r) { r.set_select_tokens_max(63); }},
      {"cluster_target_entries is 65", [](v1::Retrieval& r) { r.set_cluster_target_entries(65); }},
      {"estimate_percent is -1", [](v1::Retrieval& r) { r.set_estimate_percent(-1); }},
      {"estimate_percent is nan", [](v1::Retrieval& r) { r.set_estimate_percent(std::nanf("")); }},
      {"estimate_percent is 101", [](v1::Retrieval& r) { r.set_estimate_percent(101); }},
  };
  for (const auto& each : changes) {
    const std::string message =
        refused([&each](Request& r) { each.second(*r.mutable_retrieval()); });
    EXPECT_NE(message.find(each.first), std::string::npos) << message;
  }
  EXPECT_NE(
      refused([](Request& r) { r.set_prefill_tokens_max(-1); }).find("prefill_tokens_max is -1"),
      std::string::npos);
  EXPECT_TRUE(node_->sessions.empty());
}

TEST_F(InferenceRetrievalTest, FieldsOutOfRangeAreRefusedOnAConversationThatExists) {
  LoadModel("", MakeRamKvNode({.size_bytes = 64 << 20, .engine = {}}).value());
  for (const std::string policy : {"full", "dynakv"}) {
    SCOPED_TRACE(policy);
    v1::GenerateRequest request;
    request.set_text("hello");
    request.set_tokens_max(2);
    request.mutable_retrieval()->set_policy(policy);
    ASSERT_TRUE(Generate(request).ok());
    request.set_conversation_id(events_.front().started().conversation_id());
    request.mutable_retrieval()->set_select_percent(101);
    const grpc::Status status = Generate(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(status.error_message().find("retrieval: select_percent is 101"), 0U)
        << status.error_message();
    request.mutable_retrieval()->set_policy("nope");
    EXPECT_EQ(Generate(request).error_message().find("retrieval: policy is 'nope'"), 0U);
  }
}

TEST_F(InferenceRetrievalTest, StartedNamesThePolicyOfTheConversation) {
  LoadModel();
  v1::GenerateRequest request;
  request.set_text("hello");
  request.set_tokens_max(2);
  ASSERT_TRUE(Generate(request).ok());
  EXPECT_EQ(events_.front().started().policy(), "full");
  request.set_conversation_id(events_.front().started().conversation_id());
  // The same one may be asked for again, whatever options it has no use for.
  request.mutable_retrieval()->set_policy("full");
  request.mutable_retrieval()->set_select_percent(50);
  const grpc::Status again = Generate(request);
  ASSERT_TRUE(again.ok()) << again.error_message();
  EXPECT_EQ(events_.front().started().policy(), "full");
}

TEST_F(InferenceRetrievalTest, ANewConversationHasTheTunedPolicyUnlessItsClientNamesOne) {
  LoadModel("", MakeRamKvNode({.size_bytes = 64 << 20, .engine = {}}).value());
  TunedEntry shorter;
  shorter.context_tokens = 100;
  shorter.policy.name = "streaming";
  TunedEntry longer;
  longer.context_tokens = 400;
  longer.policy.name = "kvswap";
  longer.policy.cluster_target_entries = 4;
  longer.small_key_bits = "4";
  (*state_.runtime())->tuning = Tuning({shorter, longer});
  v1::GenerateRequest request;
  request.set_tokens_max(2);
  const auto policy_with = [&](int token_count, const std::string& asked) {
    request.clear_tokens();
    for (int i = 0; i < token_count; ++i) request.mutable_tokens()->add_ids(3 + i * 7 % 500);
    request.mutable_retrieval()->set_policy(asked);
    const grpc::Status status = Generate(request);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return events_.front().started().policy();
  };
  EXPECT_EQ(policy_with(100, ""), "streaming");
  EXPECT_EQ(policy_with(380, "full"), "full");
  EXPECT_EQ(policy_with(380, ""), "kvswap");
  const SessionRef ref{SessionId(events_.front().started().conversation_id()), ""};
  const absl::StatusOr<StoredPolicy> stored = ReadStoredPolicy(*(*state_.runtime())->node, ref);
  ASSERT_TRUE(stored.ok()) << Message(stored.status());
  EXPECT_EQ(SmallKeyBitsOf(*stored), "4");
  EXPECT_EQ(stored->choice.selection.cluster_target_entries, 4);
  // It goes on with what it has.
  request.set_conversation_id(events_.front().started().conversation_id());
  EXPECT_EQ(policy_with(1, ""), "kvswap");
  // What was tuned with the policy is the conversation's.
  request.mutable_retrieval()->set_cluster_target_entries(8);
  EXPECT_EQ(Generate(request).error_message().find("conversation"), 0U);
}

// Of a client that sends its whole history: what is kept has no room for it, a new one has.
TEST_F(InferenceRetrievalTest, AHistoryThatOutgrowsItsPolicyBeginsAnewWithAnother) {
  LoadModel("", MakeRamKvNode({.size_bytes = 64 << 20, .engine = {}}).value());
  Runtime& runtime = **state_.runtime();
  TunedEntry shorter;
  shorter.context_tokens = 100;
  shorter.policy.name = "kvswap";
  shorter.small_key_bits = "8";  // 32 bytes
  TunedEntry longer;
  longer.context_tokens = 400;
  longer.policy.name = "full";
  runtime.tuning = Tuning({shorter, longer});
  runtime.options.dram_budget_bytes = std::int64_t{209} * 32 * runtime.model->config().layer_count;
  std::vector<PolicyChoice> policies;
  for (const TunedEntry& entry : runtime.tuning->entries()) {
    policies.push_back(entry.On(runtime.options).policy);
  }
  KeptConversations kept(*runtime.node, runtime.served, policies, state_.open_conversations(),
                         "cairn:http here", "the daemon here", 8);
  std::vector<std::int32_t> history(150);
  std::iota(history.begin(), history.end(), 3);
  const KeptTurn first = RunKeptTurn(runtime, runtime.served.base, history, kept);
  EXPECT_EQ(first.reused_token_count, 0);
  history.resize(160, 9);
  EXPECT_EQ(RunKeptTurn(runtime, runtime.served.base, history, kept).reused_token_count, 150);
  history.resize(250, 10);
  const KeptTurn outgrown = RunKeptTurn(runtime, runtime.served.base, history, kept);
  EXPECT_EQ(outgrown.reused_token_count, 0);
  EXPECT_EQ(ReadStoredPolicy(*runtime.node, {outgrown.conversation, ""})->choice.name, "full");
  history.resize(260, 11);
  EXPECT_EQ(RunKeptTurn(runtime, runtime.served.base, history, kept).reused_token_count, 250);
}

TEST_F(InferenceRetrievalTest, AnotherPolicyThanTheConversationsIsRefused) {
  LoadModel();
  v1::GenerateRequest request;
  request.set_text("hello");
  request.set_tokens_max(2);
  ASSERT_TRUE(Generate(request).ok());
  const std::int64_t id = events_.front().started().conversation_id();
  PolicyChoice other;
  other.name = "other";
  node_->sessions[id].committed.policy = WrapPolicyState(other, {1, ""});
  request.set_conversation_id(id);
  request.mutable_retrieval()->set_policy("full");
  const grpc::Status status = Generate(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message().find(fmt::format(
                "conversation {} uses policy other with select_percent 3, not policy full", id)),
            0U)
      << status.error_message();
}

// Through an engine in memory, with a policy that keeps an index.
TEST_F(InferenceRetrievalTest, AForkGoesOnWithThePolicyThatTheConversationWasMadeWith) {
  LoadModel("", MakeRamKvNode({.size_bytes = 64 << 20, .engine = {}}).value());
  v1::GenerateRequest request;
  request.set_tokens_max(6);
  request.set_ignore_eos(true);
  for (int i = 0; i < 400; ++i) request.mutable_tokens()->add_ids(3 + i * 7 % 500);
  request.mutable_retrieval()->set_policy("dynakv");
  request.mutable_retrieval()->set_select_percent(7);
  const grpc::Status made = Generate(request);
  ASSERT_TRUE(made.ok()) << made.error_message();
  EXPECT_EQ(events_.front().started().policy(), "dynakv");

  v1::ForkConversationRequest fork;
  fork.set_conversation_id(events_.front().started().conversation_id());
  fork.set_token_count(350);
  v1::ForkConversationResponse forked;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->ForkConversation(&context, fork, &forked).ok());
  v1::GenerateRequest next;
  next.set_conversation_id(forked.conversation_id());
  next.set_text("hello");
  next.set_tokens_max(3);
  const grpc::Status gone_on = Generate(next);
  ASSERT_TRUE(gone_on.ok()) << gone_on.error_message();
  EXPECT_EQ(events_.front().started().policy(), "dynakv");
  EXPECT_EQ(events_.front().started().reused_token_count(), 350);
  *next.mutable_retrieval() = request.retrieval();
  EXPECT_TRUE(Generate(next).ok());
  // Whatever is configured for others.
  next.mutable_retrieval()->clear_policy();
  EXPECT_TRUE(Generate(next).ok());
  next.mutable_retrieval()->set_select_percent(8);
  const grpc::Status other = Generate(next);
  EXPECT_EQ(other.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(other.error_message().find("uses policy dynakv with select_percent 7, not policy "
                                       "dynakv with select_percent 8"),
            std::string::npos)
      << other.error_message();
}

TEST_F(InferenceRetrievalTest, APromptThatIsFedStepByStepGivesTheSameTokensAndProgress) {
  LoadModel();
  v1::GenerateRequest request;
  request.set_tokens_max(6);
  request.set_ignore_eos(true);
  for (int i = 0; i < 150; ++i) request.mutable_tokens()->add_ids(3 + i * 7 % 500);
  ASSERT_TRUE(Generate(request).ok());
  const std::vector<std::int32_t> whole = Ids();
  request.set_prefill_tokens_max(100);
  ASSERT_TRUE(Generate(request).ok());
  EXPECT_EQ(Ids(), whole);
  // All in one pass report only their end.
  std::vector<std::int64_t> done;
  for (const v1::GenerateEvent& event : events_) {
    if (event.has_prefill()) done.push_back(event.prefill().done_token_count());
  }
  ASSERT_GE(done.size(), 2U);
  EXPECT_EQ(done.front(), 100);
  EXPECT_EQ(done.back(), 150);
}

}  // namespace
}  // namespace cairn::compute
