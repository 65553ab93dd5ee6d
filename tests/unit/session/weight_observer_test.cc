// What policies that observe weights are told: the softmax over what was attended.
#include "compute-node/retrieval/weight_observer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compute-node/kernels/kv_entry.h"
#include "compute-node/kv_client/in_process_kv_node.h"
#include "compute-node/retrieval/baselines/full_policy.h"
#include "tests/unit/session/conversation_fixture.h"
#include "tests/unit/session/group_policy.h"

namespace cairn::compute {
namespace {

// Keeps what it is told.
class KeepingObserver : public WeightObserver {
 public:
  explicit KeepingObserver(std::int64_t weighed_tokens_max)
      : weighed_tokens_max_(weighed_tokens_max) {}

  std::int64_t WeighedTokens(std::int64_t token_count) const override {
    return std::min(token_count, weighed_tokens_max_);
  }
  void TakeWeights(const WeighedLayer& weights) override {
    const std::vector<AttendedEntries> heads(weights.heads.begin(), weights.heads.end());
    told[{weights.layer, weights.first_position}] = {weights.token_count, heads};
  }

  struct Told {
    std::int64_t token_count = 0;
    std::vector<AttendedEntries> heads;
  };
  std::map<std::pair<std::int32_t, std::int64_t>, Told> told;  // by layer and first position

 private:
  const std::int64_t weighed_tokens_max_;
};

template <typename Policy>
class Observing : public Policy {
 public:
  template <typename... Arguments>
  explicit Observing(WeightObserver* observer, Arguments&&... arguments)
      : Policy(std::forward<Arguments>(arguments)...), observer_(observer) {}
  WeightObserver* weight_observer() override { return observer_; }

 private:
  WeightObserver* const observer_;
};

// Keeps all keys as they are stored, and compares weights with their softmax. It is told after the
// policy.
class SoftmaxChecker : public AttentionObserver {
 public:
  SoftmaxChecker(const ModelConfig& config, KvFormat format, KeepingObserver& kept)
      : config_(config), format_(format), kept_(kept) {}

  void LayerAttended(const AttentionBatch& batch, std::span<const AttendedEntries> heads) override {
    Keep(batch);
    const std::int64_t weighed = kept_.WeighedTokens(batch.token_count);
    if (weighed == 0) {
      for (const AttendedEntries& head : heads) EXPECT_TRUE(head.weights.empty());
      return;
    }
    const std::int64_t first = batch.token_count - weighed;
    const auto found = kept_.told.find({batch.layer, batch.first_position + first});
    ASSERT_NE(found, kept_.told.end());
    EXPECT_EQ(found->second.token_count, weighed);
    ASSERT_EQ(std::ssize(found->second.heads), config_.kv_head_count);
    for (std::int32_t head = 0; head < config_.kv_head_count; ++head) {
      const AttendedEntries& told = found->second.heads[static_cast<std::size_t>(head)];
      EXPECT_EQ(told.weights, heads[static_cast<std::size_t>(head)].weights);
      for (std::int64_t token = first; token < batch.token_count; ++token) {
        Check(batch, head, token, token - first, weighed, told);
        if (testing::Test::HasFailure()) return;
      }
    }
    held_count += std::ssize(heads[0].held);
    fetched_count += std::ssize(heads[0].fetched);
  }

  std::int64_t held_count = 0;  // of the first head, over all layers and passes
  std::int64_t fetched_count = 0;

 private:
  void Keep(const AttentionBatch& batch) {
    const std::size_t dim = static_cast<std::size_t>(config_.head_dim);
    std::vector<std::byte> entry(static_cast<std::size_t>(KvEntryBytes(format_, config_.head_dim)));
    for (std::int64_t token = 0; token < batch.token_count; ++token) {
      for (std::int32_t head = 0; head < config_.kv_head_count; ++head) {
        const std::size_t from =
            static_cast<std::size_t>(token * config_.kv_head_count + head) * dim;
        StoreKvEntry(batch.k.subspan(from, dim), batch.v.subspan(from, dim), format_, entry.data());
        std::vector<float>& key = keys_[{batch.layer, head, batch.first_position + token}];
        key.resize(dim);
        std::vector<float> value(dim);
        LoadKvEntry(entry.data(), format_, key, value);
      }
    }
  }

  // The sum over the group of each query head's softmax over the positions, ascending.
  std::vector<double> Softmax(const AttentionBatch& batch, std::int32_t kv_head, std::int64_t token,
                              const std::vector<std::int64_t>& positions) {
    const std::int64_t dim = config_.head_dim;
    const std::int64_t group = config_.group_size();
    std::vector<double> sums(positions.size(), 0.0);
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const float* query = batch.q.data() + token * config_.query_length() + head * dim;
      std::vector<double> weights;
      double all = 0;
      for (const std::int64_t position : positions) {
        const std::vector<float>& key = keys_.at({batch.layer, kv_head, position});
        double score = 0;
        for (std::int64_t i = 0; i < dim; ++i) {
          score += double{query[i]} * double{key[static_cast<std::size_t>(i)]};
        }
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(dim))));
        all += weights.back();
      }
      for (std::size_t i = 0; i < weights.size(); ++i) sums[i] += weights[i] / all;
    }
    return sums;
  }

  void Check(const AttentionBatch& batch, std::int32_t kv_head, std::int64_t token,
             std::int64_t row, std::int64_t row_count, const AttendedEntries& told) {
    const std::int64_t own = batch.first_position + token;
    const std::int64_t entry_count = std::ssize(told.weights) / row_count;
    ASSERT_EQ(entry_count * row_count, std::ssize(told.weights));
    ASSERT_EQ(told.PositionOf(entry_count - 1), batch.first_position + batch.token_count - 1);
    std::map<std::int64_t, float> seen;
    double sum = 0;
    for (std::int64_t entry = 0; entry < entry_count; ++entry) {
      const float weight = told.weights[static_cast<std::size_t>(row * entry_count + entry)];
      const std::int64_t position = told.PositionOf(entry);
      sum += double{weight};
      if (position > own) {
        ASSERT_EQ(weight, 0.0F);
      } else {
        ASSERT_TRUE(seen.emplace(position, weight).second) << position;
      }
    }
    EXPECT_NEAR(sum, static_cast<double>(config_.group_size()), 1e-5);
    std::vector<std::int64_t> positions;
    positions.reserve(seen.size());
    for (const auto& [position, weight] : seen) positions.push_back(position);
    const std::vector<double> expected = Softmax(batch, kv_head, token, positions);
    std::size_t at = 0;
    for (const auto& [position, weight] : seen) {
      ASSERT_NEAR(weight, expected[at++], 1e-5) << "layer " << batch.layer << " head " << kv_head
                                                << " token " << own << " entry " << position;
    }
  }

  const ModelConfig& config_;
  const KvFormat format_;
  KeepingObserver& kept_;
  std::map<std::tuple<std::int32_t, std::int32_t, std::int64_t>, std::vector<float>> keys_;
};

class WeightObserverTest : public ConversationFixture,
                           public testing::WithParamInterface<KvFormat> {
 protected:
  WeightObserverTest() { UseFormat(GetParam()); }

  // The logits of a prompt of several chunks and some steps.
  std::vector<std::vector<float>> Run(WeightObserver* weights, AttentionObserver* observer,
                                      const GroupOptions* groups) {
    const auto ram = MakeRamKvNode({.size_bytes = std::int64_t{1} << 28, .engine = {}}).value();
    options.policy.name = groups == nullptr ? "full" : "groups";
    KeyLog keys;
    ConversationDeps deps{served, *ram, scheduler, options, memory};
    deps.observer = observer;
    deps.make_policy = [&](std::string_view, const PolicyOptions& policy_options)
        -> absl::StatusOr<std::unique_ptr<RetrievalPolicy>> {
      if (groups == nullptr)
        return std::make_unique<Observing<FullPolicy>>(weights, policy_options);
      return std::make_unique<Observing<GroupPolicy>>(weights, policy_options, *groups, keys);
    };
    CreateSession request;
    request.key = identity.key;
    request.layout = identity.layout;
    const auto conversation = Conversation::Open(deps, ram->Create(request).value()).value();
    std::vector<std::int32_t> prompt;
    prompt.reserve(250);
    for (std::int32_t i = 0; i < 250; ++i) prompt.push_back(3 + i * 37 % 50);
    std::vector<std::vector<float>> all = {Logits()};
    EXPECT_TRUE(conversation->Prefill(prompt, all.back(), never, nullptr).ok());
    for (std::int32_t i = 0; i < 60; ++i) {
      all.push_back(Logits());
      EXPECT_TRUE(conversation->Step(3 + i * 7 % 50, all.back(), never).ok());
    }
    return all;
  }
};

TEST_P(WeightObserverTest, IsToldTheSoftmaxOverAllPositionsOfFull) {
  KeepingObserver weights(/*weighed_tokens_max=*/80);
  SoftmaxChecker checker(model.config(), GetParam(), weights);
  const auto logits = Run(&weights, &checker, nullptr);
  EXPECT_GT(checker.fetched_count, 0);
  // Of three chunks and each step, in each layer.
  EXPECT_EQ(std::ssize(weights.told), 63 * model.config().layer_count);
  EXPECT_EQ(weights.told.at({0, 20}).token_count, 80);
  for (const auto& [at, told] : weights.told) {
    if (told.token_count > 1) continue;
    for (const AttendedEntries& head : told.heads) {
      EXPECT_EQ(std::ssize(head.weights), at.second + 1);
    }
  }
  EXPECT_EQ(Run(nullptr, nullptr, nullptr), logits);
  EXPECT_EQ(memory.used_bytes(), 0);
}

TEST_P(WeightObserverTest, IsToldOfChosenAndHeldEntriesOfAllHeads) {
  for (const bool all_heads : {false, true}) {
    const GroupOptions groups{
        .group_entries = 24, .all_heads = all_heads, .chooses = true, .holds = true};
    KeepingObserver weights(/*weighed_tokens_max=*/32);
    SoftmaxChecker checker(model.config(), GetParam(), weights);
    const auto logits = Run(&weights, &checker, &groups);
    EXPECT_GT(checker.fetched_count, 0);
    EXPECT_GT(checker.held_count, 0);
    EXPECT_EQ(Run(nullptr, nullptr, &groups), logits);
  }
}

TEST_P(WeightObserverTest, NoTokensAreWeighedIfThePolicyWantsNone) {
  KeepingObserver weights(/*weighed_tokens_max=*/0);
  SoftmaxChecker checker(model.config(), GetParam(), weights);
  Run(&weights, &checker, nullptr);
  EXPECT_TRUE(weights.told.empty());
}

INSTANTIATE_TEST_SUITE_P(Formats, WeightObserverTest,
                         testing::Values(KvFormat::kF16, KvFormat::kQ8),
                         [](const auto& param) { return std::string(KvFormatName(param.param)); });

}  // namespace
}  // namespace cairn::compute
