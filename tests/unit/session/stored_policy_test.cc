// The policy of a conversation: chosen when it is made, stored, inherited.
#include "compute-node/session/entries/stored_policy.h"

#include "compute-node/kv_client/in_process_kv_node.h"
#include "tests/unit/session/conversation_fixture.h"
#include "tests/unit/session/query_policy.h"

namespace cairn::compute {
namespace {

PolicyChoice Query(double select_percent) {
  PolicyChoice choice;
  choice.name = "query";
  choice.selection.select_percent = select_percent;
  return choice;
}

class StoredPolicyTest : public ConversationFixture {
 protected:
  absl::StatusOr<std::unique_ptr<Conversation>> OpenWith(SessionId id,
                                                         const PolicyRequest& request) {
    return Conversation::Open(WithQueryPolicy(deps(), log), {id}, request);
  }
  absl::StatusOr<std::unique_ptr<Conversation>> OpenWith(SessionId id, const PolicyChoice& choice) {
    return OpenWith(id, PolicyRequest::Exactly(choice));
  }
  template <typename Asked>
  std::unique_ptr<Conversation> MustOpen(SessionId id, const Asked& asked) {
    absl::StatusOr<std::unique_ptr<Conversation>> opened = OpenWith(id, asked);
    EXPECT_TRUE(opened.ok()) << Message(opened.status());
    return opened.ok() ? std::move(opened).value() : nullptr;
  }

  QueryPolicy::Log log;
};

TEST_F(StoredPolicyTest, ANewConversationHasTheChosenPolicyOrTheDefault) {
  const SessionId id = Create();
  EXPECT_EQ(MustOpen(id, PolicyRequest())->policy_choice().name, "full");
  // Nothing is stored yet.
  EXPECT_EQ(MustOpen(id, Query(7))->policy().traits().name, "query");
  ASSERT_EQ(log.made.size(), 1U);
  EXPECT_EQ(log.made[0].selection.select_percent, 7);
  EXPECT_EQ(log.made[0].group_size, model.config().head_count / model.config().kv_head_count);
  options.policy = Query(9);
  EXPECT_EQ(MustOpen(id, PolicyRequest())->policy_choice().selection.select_percent, 9);
  EXPECT_EQ(MustOpen(id, PolicyChoice())->policy().traits().name, "full");
}

TEST_F(StoredPolicyTest, AStoredConversationKeepsItsPolicyWhateverTheDefault) {
  const std::vector<std::int32_t> prompt = Prompt(230);
  const SessionId id = Create();
  const std::vector<std::int32_t> answer = Continue(*MustOpen(id, Query(7)), prompt, 3);
  const PutPolicyState& stored = node.sessions[id.value()].committed.policy;
  EXPECT_EQ(stored.version, kWrappedPolicyVersion);
  options.policy.selection.select_percent = 50;
  const std::int64_t read_count = node.policy_read_count;
  const std::unique_ptr<Conversation> reopened = MustOpen(id, PolicyRequest());
  EXPECT_EQ(node.policy_read_count, read_count + 1);
  EXPECT_TRUE(reopened->policy_choice() == Query(7));
  EXPECT_EQ(log.made.back().selection.select_percent, 7);
  Continue(*reopened, Prompt(5), 3);
  EXPECT_EQ(node.sessions[id.value()].committed.token_count, 241);
  EXPECT_TRUE(MustOpen(id, Query(7)) != nullptr);

  const absl::Status other = OpenWith(id, PolicyChoice()).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(other),
            fmt::format("conversation {} uses policy query with select_percent 7, not policy full: "
                        "leave retrieval empty (no --policy, no --select), or start a new "
                        "conversation",
                        id));
  EXPECT_EQ(OpenWith(id, Query(8)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StoredPolicyTest, StateOfFullStaysAsOldStoresHaveIt) {
  const SessionId id = Create();
  Continue(*Open(id), Prompt(200), 2);
  const PutPolicyState& stored = node.sessions[id.value()].committed.policy;
  EXPECT_EQ(stored.version, 1);
  EXPECT_EQ(stored.state.size(), 8U);
  options.policy = Query(3);
  EXPECT_EQ(MustOpen(id, PolicyRequest())->policy().traits().name, "full");
  PolicyChoice full;
  full.selection.select_percent = 44;  // means nothing to it
  EXPECT_EQ(MustOpen(id, full)->policy().traits().name, "full");
  EXPECT_EQ(OpenWith(id, Query(3)).status().code(), absl::StatusCode::kInvalidArgument);
  // As a chat sends it with each turn that did with its first one.
  EXPECT_EQ(MustOpen(id, PolicyRequest{.select_percent = 44})->policy().traits().name, "full");
}

TEST_F(StoredPolicyTest, DamagedStateNamesTheConversation) {
  const SessionId id = Create();
  Continue(*MustOpen(id, Query(7)), Prompt(50), 1);
  PutPolicyState& stored = node.sessions[id.value()].committed.policy;
  stored.state.resize(20);
  const absl::Status status = OpenWith(id, PolicyRequest()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(status).find(fmt::format("open conversation {}", id)), std::string::npos);
}

TEST_F(StoredPolicyTest, UnknownPolicyOfAStoreIsNamed) {
  const SessionId id = Create();
  Continue(*MustOpen(id, Query(7)), Prompt(50), 1);
  const absl::Status status = Conversation::Open(deps(), {id}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(status).find("'query'"), std::string::npos) << Message(status);
}

TEST_F(StoredPolicyTest, APolicyThatIsAnotherAfterALossIsAnError) {
  const SessionId id = Create();
  const std::unique_ptr<Conversation> conversation = MustOpen(id, Query(7));
  std::vector<float> logits = Logits();
  ASSERT_TRUE(conversation->Prefill(Prompt(200), logits, never, nullptr).ok());
  node.tamper = [&](const Fetch&, FetchReply&) {
    PutPolicyState& stored = node.sessions[id.value()].committed.policy;
    stored = WrapPolicyState(Query(8), {1, ""});
    node.calls_until_loss = 1;
    node.tamper = nullptr;
  };
  EXPECT_EQ(conversation->Prefill(Prompt(200), logits, never, nullptr).code(),
            absl::StatusCode::kDataLoss);
}

TEST_F(StoredPolicyTest, AForkInheritsThePolicy) {
  const std::unique_ptr<KvNode> engine =
      MakeRamKvNode({.size_bytes = 64 << 20, .engine = {}}).value();
  const ConversationDeps own = WithQueryPolicy({served, *engine, scheduler, options, memory}, log);
  CreateSession create;
  create.key = identity.key;
  create.layout = identity.layout;
  const SessionId id = engine->Create(create)->id;
  const std::vector<std::int32_t> prompt = Prompt(300);
  Continue(*Conversation::Open(own, {id}, PolicyRequest::Exactly(Query(7))).value(), prompt, 5);
  create.parent_segment_id = engine->Seal({id})->segment_id;
  for (const std::int64_t count : {305, 300, 129, 40}) {
    SCOPED_TRACE(count);
    create.parent_token_count = count;
    const SessionId fork = engine->Create(create)->id;
    EXPECT_EQ(Conversation::Open(own, {fork}, {.name = "full"}).status().code(),
              absl::StatusCode::kInvalidArgument);
    const auto opened = Conversation::Open(own, {fork});
    ASSERT_TRUE(opened.ok()) << Message(opened.status());
    EXPECT_TRUE((*opened)->policy_choice() == Query(7));
    Continue(**opened, Prompt(5), 2);
    EXPECT_EQ((*opened)->durable_token_count(), count + 7);
  }
}

TEST_F(StoredPolicyTest, SealsAreStoredBeforeTheChoice) {
  const SessionId id = Create();
  {
    const std::unique_ptr<Conversation> conversation = MustOpen(id, Query(7));
    std::vector<float> logits = Logits();
    ASSERT_TRUE(
        conversation->Prefill(Prompt(230), {}, never, nullptr, CheckpointEnd::kSealed).ok());
    ASSERT_TRUE(conversation->Step(5, logits, never).ok());
    const absl::Status saved = conversation->Checkpoint(never);
    ASSERT_TRUE(saved.ok()) << saved;
  }
  PutPolicyState& stored = node.sessions[id.value()].committed.policy;
  EXPECT_EQ(stored.version, kSealsVersion + kWrappedPolicyVersion);
  const std::unique_ptr<Conversation> reopened = MustOpen(id, PolicyRequest());
  EXPECT_TRUE(reopened->policy_choice() == Query(7));
  EXPECT_EQ(reopened->seals().token_counts(), std::vector<std::int64_t>{230});
  EXPECT_TRUE(reopened->seals().IsFreshAt(230));
  stored.state[2] = 1;  // very many seals
  const absl::Status status = OpenWith(id, PolicyRequest()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(status).find("has no seals"), std::string::npos) << status;
}

TEST_F(StoredPolicyTest, FullAttentionStoresNoSeals) {
  const SessionId id = Create();
  const std::unique_ptr<Conversation> conversation = MustOpen(id, PolicyChoice());
  ASSERT_TRUE(conversation->Prefill(Prompt(230), {}, never, nullptr, CheckpointEnd::kSealed).ok());
  EXPECT_LT(node.sessions[id.value()].committed.policy.version, kWrappedPolicyVersion);
}

}  // namespace
}  // namespace cairn::compute
