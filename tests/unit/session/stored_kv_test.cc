// What StoredKv tells the KV node besides what it stores and fetches.
#include "compute-node/session/stored_kv.h"

#include "compute-node/retrieval/full_policy.h"
#include "tests/unit/session/conversation_fixture.h"

namespace cairn::compute {
namespace {

// Reads everything, and claims to need queries for it.
class SelectingByQueries : public FullPolicy {
 public:
  using FullPolicy::FullPolicy;
  bool selects_without_queries() const override { return false; }
};

class StoredKvTest : public ConversationFixture {
 protected:
  // One pass of five tokens and one of one token.
  void Run(RetrievalPolicy& policy) {
    const auto session = node.Open(Create());
    ASSERT_TRUE(session.ok()) << session.status();
    StoredKv kv({.layout = identity.layout}, model.config(), model.pool(), scheduler.scratch(),
                **session, policy, memory);
    std::string random_state;
    ASSERT_TRUE(kv.Restore(std::nullopt, random_state).ok());
    std::vector<float> logits = Logits();
    ForwardOutput output;
    output.last_logits = logits;
    for (const std::int64_t count : {5, 1}) {
      const std::vector<std::int32_t> tokens = Prompt(count);
      ASSERT_TRUE(kv.StartPass(count, never, nullptr).ok());
      ASSERT_TRUE(model.Forward(tokens, kv.token_count(), kv, output, nullptr).ok());
      kv.CommitPass();
    }
  }
  PolicyOptions PolicyOf() const {
    PolicyOptions out;
    out.layout = identity.layout;
    out.part_bytes_max = node.part_bytes_max();
    return out;
  }
};

TEST_F(StoredKvTest, EachLayerHintsTheNextWhenQueriesSelect) {
  SelectingByQueries policy(PolicyOf());
  Run(policy);
  std::vector<std::int32_t> expected;
  for (int pass = 0; pass < 2; ++pass) {
    for (std::int32_t layer = 1; layer <= identity.layout.layer_count; ++layer) {
      expected.push_back(layer % identity.layout.layer_count);
    }
  }
  EXPECT_EQ(node.hinted_layers, expected);
}

TEST_F(StoredKvTest, NoHintGoesOutForClustersThatAreAskedForAhead) {
  FullPolicy policy(PolicyOf());
  Run(policy);
  EXPECT_TRUE(node.hinted_layers.empty());
}

}  // namespace
}  // namespace cairn::compute
