// That each position is in one place behind long contexts, where the window's step grows. By
// itself, because 32,768 tokens take minutes under a thread sanitizer.
#include <algorithm>
#include <random>

#include "compute-node/kv_client/in_process_kv_node.h"
#include "compute-node/retrieval/baselines/full_policy.h"
#include "compute-node/retrieval/policy_choice.h"
#include "compute-node/session/attention/stored_attention.h"
#include "tests/unit/session/conversation_fixture.h"

namespace cairn::compute {
namespace {

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

class LongStoredAttentionTest : public ConversationFixture {
 protected:
  static constexpr std::int64_t kPassTokens = 512;

  // Random keys, values and queries for a pass of each, and what it answers.
  void Pass(std::span<StoredAttention* const> all, std::int64_t token_count) {
    for (StoredAttention* kv : all) ASSERT_TRUE(kv->StartPass(token_count, never, nullptr).ok());
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
    for (StoredAttention* kv : all) kv->CommitPass();
  }
  // Goes over the border in steps of one token.
  void Cross(std::span<StoredAttention* const> all, std::int64_t border) {
    std::string random_state;
    for (StoredAttention* kv : all) ASSERT_TRUE(kv->Restore(std::nullopt, random_state).ok());
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
  PolicyOptions PolicyOf() const {
    PolicyOptions out;
    out.layout = identity.layout;
    out.part_bytes_max = ram_->part_bytes_max();
    return out;
  }
  std::unique_ptr<RetrievalPolicy> DynaKv(double select_percent, std::int64_t select_tokens_max) {
    PolicyOptions out = PolicyOf();
    out.group_size = model.config().group_size();
    out.selection.select_percent = select_percent;
    out.selection.select_tokens_max = select_tokens_max;
    return MakePolicy("dynakv", out).value();
  }
  StoredAttention MakeKv(KvSession& session, RetrievalPolicy& policy, AttentionObserver* observer) {
    options.local_prompts = true;
    options.keep_clusters = false;
    return {options, model.config(), model.pool(), scheduler.scratch(), session, policy,
            {},      memory,         observer};
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

TEST_F(LongStoredAttentionTest, EverythingIsAttendedOnceWhereTheWindowsStepDoubles) {
  const auto full_session = NewSession();
  const auto session = NewSession();
  FullPolicy full(PolicyOf());
  const std::unique_ptr<RetrievalPolicy> policy = DynaKv(100, std::int64_t{1} << 24);
  PlaceChecker checker(/*everything=*/true);
  StoredAttention with_all = MakeKv(*full_session, full, nullptr);
  StoredAttention kv = MakeKv(*session, *policy, &checker);
  Cross(std::vector<StoredAttention*>{&kv, &with_all}, 16384);
  EXPECT_GT(checker.recent_min, 112);
  EXPECT_LE(checker.recent_max, 128);
}

TEST_F(LongStoredAttentionTest, StartOfTheWindowMayGoBack) {
  const auto session = NewSession();
  const std::unique_ptr<RetrievalPolicy> policy = DynaKv(3, 245);  // 61 newest tokens
  PlaceChecker checker(/*everything=*/false);
  StoredAttention kv = MakeKv(*session, *policy, &checker);
  Cross(std::vector<StoredAttention*>{&kv}, 16384);
  EXPECT_GT(checker.recent_min, 61);
  EXPECT_LE(checker.recent_max, 61 + 16);
}

}  // namespace
}  // namespace cairn::compute
