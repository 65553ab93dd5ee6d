// What StoredAttention tells the KV node besides what it stores and fetches.
#include "compute-node/session/attention/stored_attention.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "compute-node/retrieval/baselines/full_policy.h"
#include "tests/unit/session/conversation_fixture.h"
#include "tests/unit/session/query_policy.h"

namespace cairn::compute {
namespace {

// Reads everything, and claims to need queries for it.
class SelectingByQueries : public FullPolicy {
 public:
  explicit SelectingByQueries(const PolicyOptions& options)
      : FullPolicy({.name = "by-queries"}, options) {}

 protected:
  using FullPolicy::FullPolicy;
};

// Likewise, ahead of the layer.
class SelectingEarly : public SelectingByQueries {
 protected:
  explicit SelectingEarly(const PolicyOptions& options)
      : SelectingByQueries({.name = "early", .selects_ahead = true, .ranks_by_query_sums = true},
                           options) {}
};

// Reads everything, of which a step attends one entry a cluster, that the queries decide. Says
// by which queries a layer selected, in order, and what was selected last.
class SelectingAhead : public SelectingEarly {
 public:
  explicit SelectingAhead(const PolicyOptions& options) : SelectingEarly(options) {}
  std::vector<FetchSlice> Select(const SelectionInput& input) const override {
    std::vector<std::vector<float>>& of_layer = selected_by[input.layer];
    of_layer.emplace_back(input.queries.begin(), input.queries.end());
    std::vector<FetchSlice> plan = FullPolicy::Select(input);
    if (input.token_count > 1) return plan;
    selected.clear();
    for (FetchSlice& slice : plan) {
      for (PlannedCluster& planned : slice.clusters) {
        std::vector<std::int64_t>& of_head = selected[planned.cluster.head];
        const std::int32_t index = IndexOf(planned, input.queries);
        planned.attended = {index};
        of_head.push_back(std::ssize(of_head) * cluster_entries() + index);
      }
    }
    return plan;
  }

  mutable std::map<std::int32_t, std::vector<std::vector<float>>> selected_by;  // by layer
  mutable std::map<std::int32_t, std::vector<std::int64_t>> selected;  // positions, by head

 private:
  static std::int32_t IndexOf(const PlannedCluster& planned, std::span<const float> queries) {
    std::size_t hash = static_cast<std::size_t>(planned.cluster.head);
    for (const float number : queries) hash = 31 * hash + std::hash<float>()(number);
    return static_cast<std::int32_t>(hash % static_cast<std::size_t>(planned.entry_count));
  }
};

// Reads everything that it selects ahead, and nothing once it is asked again.
class ChangingItsMind : public SelectingEarly {
 public:
  explicit ChangingItsMind(const PolicyOptions& options) : SelectingEarly(options) {}
  std::vector<FetchSlice> Select(const SelectionInput& input) const override {
    std::vector<FetchSlice> plan = FullPolicy::Select(input);
    if (input.token_count > 1) return plan;
    if (!asked_.emplace(input.first_position, input.layer).second) return {};
    if (input.layer == 0) return plan;
    for (const FetchSlice& slice : plan) foreseen_count += std::ssize(slice.clusters);
    return plan;
  }

  mutable std::int64_t foreseen_count = 0;  // clusters

 private:
  mutable std::set<std::pair<std::int64_t, std::int32_t>> asked_;  // position, layer
};

// Compares what a layer selected by with its queries, head by head.
class SelectionWatch : public AttentionObserver {
 public:
  SelectionWatch(SelectingAhead& policy, const ModelConfig& config)
      : policy_(policy), config_(config) {}

  void LayerAttended(const AttentionBatch& batch, std::span<const AttendedEntries> heads) override {
    std::vector<std::vector<float>> selected_by =
        std::exchange(policy_.selected_by[batch.layer], {});
    if (batch.token_count > 1) return;
    for (std::size_t head = 0; head < heads.size(); ++head) {
      EXPECT_EQ(heads[head].fetched, policy_.selected[static_cast<std::int32_t>(head)]);
      fetched_count += std::ssize(heads[head].fetched);
    }
    if (batch.layer == 0) {
      ASSERT_EQ(selected_by.size(), 1U);
      EXPECT_TRUE(std::equal(batch.q.begin(), batch.q.end(), selected_by[0].begin()));
      return;
    }
    bool selects_anew = false;
    const std::size_t dim = static_cast<std::size_t>(config_.head_dim);
    const std::size_t group = dim * static_cast<std::size_t>(config_.group_size());
    for (std::size_t i = 0; i < heads.size(); ++i) {
      ForeseenQueries head(1, config_.head_dim);
      head.Set(std::span(selected_by.front()).subspan(i * dim, dim));
      const bool differs = head.Correct(batch.q.subspan(i * group, group));
      const std::span<const float> used = std::span(selected_by.back()).subspan(i * dim, dim);
      EXPECT_TRUE(std::equal(used.begin(), used.end(), head.sums().begin()))
          << "layer " << batch.layer << " head " << i << " differs " << differs;
      ++(differs ? anew_count : foreseen_count);
      selects_anew |= differs;
    }
    EXPECT_EQ(selected_by.size(), selects_anew ? 2U : 1U) << "layer " << batch.layer;
  }

  int anew_count = 0;      // heads of all steps
  int foreseen_count = 0;  // the same
  std::int64_t fetched_count = 0;

 private:
  SelectingAhead& policy_;
  const ModelConfig& config_;
};

class StoredAttentionTest : public ConversationFixture {
 protected:
  // A pass of five tokens, and so many of one token.
  void Run(RetrievalPolicy& policy, int step_count = 1, AttentionObserver* observer = nullptr) {
    const auto session = node.Open({Create()});
    ASSERT_TRUE(session.ok()) << session.status();
    options.window_tokens_max = kWindowTokensMin;
    options.keep_clusters = false;
    StoredAttention kv(options, model.config(), model.pool(), scheduler.scratch(), **session,
                       policy, {}, memory, observer);
    std::string random_state;
    ASSERT_TRUE(kv.Restore(std::nullopt, random_state).ok());
    std::vector<float> logits = Logits();
    ForwardOutput output;
    output.last_logits = logits;
    const std::vector<std::int32_t> text = Prompt(5 + step_count);
    while (kv.token_count() < std::ssize(text)) {
      const std::int64_t count = kv.token_count() == 0 ? 5 : 1;
      const std::span<const std::int32_t> tokens = std::span(text).subspan(
          static_cast<std::size_t>(kv.token_count()), static_cast<std::size_t>(count));
      ASSERT_TRUE(kv.StartPass(count, never, nullptr).ok());
      ASSERT_TRUE(model.Forward(tokens, kv.token_count(), kv, output, nullptr).ok());
      kv.CommitPass();
    }
    counts = kv.fetch_counts();
  }
  PolicyOptions PolicyOf() const {
    PolicyOptions out;
    out.layout = identity.layout;
    out.part_bytes_max = node.part_bytes_max();
    return out;
  }

  FetchCounts counts;  // of the last Run
};

TEST_F(StoredAttentionTest, HeadsThatWereNotForeseenSelectByTheirQueries) {
  SelectingAhead policy(PolicyOf());
  SelectionWatch watch(policy, model.config());
  Run(policy, 200, &watch);
  EXPECT_GT(watch.fetched_count, 0);
  EXPECT_GT(watch.anew_count, 0);
  EXPECT_GT(watch.foreseen_count, 0);
}

TEST_F(StoredAttentionTest, ALayerWhoseHeadsSelectAnewIsSeldomAskedAheadFor) {
  ChangingItsMind policy(PolicyOf());
  Run(policy, 200);
  EXPECT_GT(counts.predicted_count, 0);
  EXPECT_LT(counts.predicted_count, policy.foreseen_count / 2);
}

TEST_F(StoredAttentionTest, NumbersThatTheFormatCannotHoldEndThePass) {
  const auto session = node.Open({Create()});
  ASSERT_TRUE(session.ok()) << session.status();
  FullPolicy policy(PolicyOf());
  StoredAttention kv(options, model.config(), model.pool(), scheduler.scratch(), **session, policy,
                     {}, memory, nullptr);
  std::string random_state;
  ASSERT_TRUE(kv.Restore(std::nullopt, random_state).ok());
  ASSERT_TRUE(kv.StartPass(3, never, nullptr).ok());
  const auto kv_length = static_cast<std::size_t>(3 * model.config().kv_length());
  std::vector<float> query(static_cast<std::size_t>(3 * model.config().query_length()));
  std::vector<float> key(kv_length);
  std::vector<float> value(kv_length);
  key[kv_length - 1] = -7e4F;
  const absl::Status status = kv.Attend({1, 0, 3, query, key, value, query});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Message(status),
            "layer 1: tensor 'blk.1.attn_k.weight' and its bias make a key with the number -70000, "
            "which kv_format f16 cannot hold: start cairn-compute-node with kv_format: \"f32\"");
}

// Its entries leave between steps: the window has room for the step's own one.
TEST_F(StoredAttentionTest, APolicyThatChoosesByQueriesMayKeepAsMuchAsThereIsRoomFor) {
  const std::vector<std::int32_t> prompt = Prompt(90);
  std::vector<std::vector<float>> expected;
  const std::vector<std::int32_t> tokens =
      DenseContinue(prompt, 200, [&](const auto& logits) { expected.push_back(logits); });
  QueryPolicy::Log log;
  const auto conversation =
      Conversation::Open(WithQueryPolicy(deps(), log), {Create()}, {.name = "query"}).value();
  std::vector<float> logits = Logits();
  ASSERT_TRUE(conversation->Prefill(prompt, logits, never, nullptr).ok());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    for (std::size_t j = 0; j < logits.size(); ++j) {
      ASSERT_NEAR(logits[j], expected[i][j], 1e-3) << i;
    }
    ASSERT_TRUE(conversation->Step(tokens[i], logits, never).ok());
  }
}

}  // namespace
}  // namespace cairn::compute
