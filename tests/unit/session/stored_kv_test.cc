// What StoredKv tells the KV node besides what it stores and fetches, and that each position is in
// one place where the window's step grows.
#include "compute-node/session/stored_kv.h"

#include <algorithm>
#include <random>

#include "compute-node/kv_client/in_process_kv_node.h"
#include "compute-node/retrieval/full_policy.h"
#include "compute-node/retrieval/policy_choice.h"
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

// Looks at what steps attend.
class PlaceChecker : public AttentionObserver {
 public:
  explicit PlaceChecker(bool everything) : everything_(everything) {}

  void LayerAttended(const AttentionBatch& batch, std::span<const AttendedEntries> heads) override {
    if (batch.token_count > 1) return;
    const std::int64_t token_count = batch.first_position + 1;
    for (const AttendedEntries& head : heads) {
      std::vector<std::int64_t> before = head.fetched;
      before.insert(before.end(), head.held.begin(), head.held.end());
      std::sort(before.begin(), before.end());
      EXPECT_EQ(std::adjacent_find(before.begin(), before.end()), before.end()) << token_count;
      ASSERT_FALSE(before.empty());
      EXPECT_LT(before.back(), head.recent_first) << token_count;
      if (everything_) {
        EXPECT_EQ(std::ssize(before), head.recent_first) << token_count;
      }
      recent_min = std::min(recent_min, token_count - head.recent_first);
      recent_max = std::max(recent_max, token_count - head.recent_first);
    }
  }

  std::int64_t recent_min = INT64_MAX;  // newest tokens that were attended from memory
  std::int64_t recent_max = 0;

 private:
  const bool everything_;
};

class LongStoredKvTest : public StoredKvTest {
 protected:
  static constexpr std::int64_t kPassTokens = 512;

  // Random keys, values and queries for a pass of each, and what it answers.
  void Pass(std::span<StoredKv* const> all, std::int64_t token_count) {
    for (StoredKv* kv : all) ASSERT_TRUE(kv->StartPass(token_count, never, nullptr).ok());
    const ModelConfig& config = model.config();
    const auto width = static_cast<std::size_t>(token_count * config.head_dim);
    for (std::int32_t layer = 0; layer < identity.layout.layer_count; ++layer) {
      const std::vector<float> q = Random(width * static_cast<std::size_t>(config.head_count));
      const std::vector<float> k = Random(width * static_cast<std::size_t>(config.kv_head_count));
      const std::vector<float> v = Random(width * static_cast<std::size_t>(config.kv_head_count));
      std::vector<std::vector<float>> out(all.size(), std::vector<float>(q.size()));
      for (std::size_t i = 0; i < all.size(); ++i) {
        const absl::Status status =
            all[i]->Attend({layer, all[i]->token_count(), token_count, q, k, v, out[i], nullptr});
        ASSERT_TRUE(status.ok()) << Message(status);
      }
      for (std::size_t at = 0; token_count == 1 && at < q.size(); ++at) {
        EXPECT_NEAR(out.front()[at], out.back()[at], 1e-4) << all[0]->token_count();
      }
    }
    for (StoredKv* kv : all) kv->CommitPass();
  }
  // Goes over the border in steps of one token.
  void Cross(std::span<StoredKv* const> all, std::int64_t border) {
    std::string random_state;
    for (StoredKv* kv : all) ASSERT_TRUE(kv->Restore(std::nullopt, random_state).ok());
    while (all[0]->token_count() < border - 9) {
      Pass(all, std::min(kPassTokens, border - 9 - all[0]->token_count()));
    }
    for (int step = 0; step < 30; ++step) Pass(all, 1);
  }
  std::unique_ptr<KvSession> NewSession() {
    CreateSession request;
    request.key = identity.key;
    request.layout = identity.layout;
    return ram_->Open(ram_->Create(request).value()).value();
  }
  PolicyOptions LongPolicyOf() const {
    PolicyOptions out = PolicyOf();
    out.part_bytes_max = ram_->part_bytes_max();
    return out;
  }
  std::unique_ptr<RetrievalPolicy> DynaKv(double select_percent, std::int64_t select_tokens_max) {
    PolicyOptions out = LongPolicyOf();
    out.group_size = model.config().group_size();
    out.selection.select_percent = select_percent;
    out.selection.select_tokens_max = select_tokens_max;
    return MakePolicy("dynakv", out).value();
  }
  StoredKv MakeKv(KvSession& session, RetrievalPolicy& policy, AttentionObserver* observer) {
    return {{.layout = identity.layout, .local_prompts = true, .observer = observer},
            model.config(),
            model.pool(),
            scheduler.scratch(),
            session,
            policy,
            memory};
  }
  std::vector<float> Random(std::size_t count) {
    std::vector<float> out(count);
    for (float& value : out) value = normal_(random_);
    return out;
  }

 private:
  // Splits of clusters reach it.
  const std::unique_ptr<KvNode> ram_ =
      MakeRamKvNode({.size_bytes = std::int64_t{1} << 28, .engine = {}}).value();
  std::mt19937_64 random_{seed};
  std::normal_distribution<float> normal_;
};

TEST_F(LongStoredKvTest, EverythingIsAttendedOnceWhereTheWindowsStepDoubles) {
  const auto full_session = NewSession();
  const auto session = NewSession();
  FullPolicy full(LongPolicyOf());
  const std::unique_ptr<RetrievalPolicy> policy = DynaKv(100, std::int64_t{1} << 24);
  PlaceChecker checker(/*everything=*/true);
  StoredKv with_all = MakeKv(*full_session, full, nullptr);
  StoredKv kv = MakeKv(*session, *policy, &checker);
  Cross(std::vector<StoredKv*>{&kv, &with_all}, 32768);
  EXPECT_GT(checker.recent_min, 112);
  EXPECT_LE(checker.recent_max, 128);
}

TEST_F(LongStoredKvTest, StartOfTheWindowMayGoBack) {
  const auto session = NewSession();
  const std::unique_ptr<RetrievalPolicy> policy = DynaKv(3, 245);  // 61 newest tokens
  PlaceChecker checker(/*everything=*/false);
  StoredKv kv = MakeKv(*session, *policy, &checker);
  Cross(std::vector<StoredKv*>{&kv}, 32768);
  EXPECT_GT(checker.recent_min, 61);
  EXPECT_LE(checker.recent_max, 61 + 16);
}

}  // namespace
}  // namespace cairn::compute
