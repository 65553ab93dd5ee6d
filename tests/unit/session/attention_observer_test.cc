// What an observer is told is what was attended: attention over the entries that it names gives the
// numbers that the pass had.
#include <cmath>
#include <set>

#include "compute-node/kv_client/in_process_kv_node.h"
#include "tests/unit/session/conversation_fixture.h"

namespace cairn::compute {
namespace {

// Keeps all keys and values, and attends again what it is told.
class AttendingObserver : public AttentionObserver {
 public:
  explicit AttendingObserver(const ModelConfig& config)
      : config_(config), entries_(static_cast<std::size_t>(config.layer_count)) {}

  void LayerAttended(const AttentionBatch& batch, std::span<const AttendedEntries> heads) override {
    Entries& entries = entries_[static_cast<std::size_t>(batch.layer)];
    const std::size_t first = static_cast<std::size_t>(batch.first_position * config_.kv_length());
    entries.keys.resize(first);
    entries.values.resize(first);
    entries.keys.insert(entries.keys.end(), batch.k.begin(), batch.k.end());
    entries.values.insert(entries.values.end(), batch.v.begin(), batch.v.end());
    ASSERT_EQ(std::ssize(heads), config_.kv_head_count);
    for (std::int64_t token = 0; token < batch.token_count; token += 50) {
      for (std::int64_t head = 0; head < config_.head_count; ++head) {
        const std::int64_t kv_head = head / config_.group_size();
        Check(batch, token, head,
              Attended(heads[static_cast<std::size_t>(kv_head)], batch.first_position + token));
      }
    }
  }

  std::int64_t held_count = 0;      // told, over all layers, heads and tokens
  std::int64_t fetched_count = 0;   // the same
  std::int64_t left_out_count = 0;  // came and were not attended

 private:
  struct Entries {
    std::vector<float> keys;  // (position, kv_head, head_dim)
    std::vector<float> values;
  };

  // Each once, none behind the query.
  std::set<std::int64_t> Attended(const AttendedEntries& told, std::int64_t position) {
    std::vector<std::int64_t> all = told.fetched;
    all.insert(all.end(), told.held.begin(), told.held.end());
    for (std::int64_t at = told.recent_first; at <= position; ++at) all.push_back(at);
    std::set<std::int64_t> attended(all.begin(), all.end());
    EXPECT_EQ(attended.size(), all.size());
    EXPECT_GE(*attended.begin(), 0);
    EXPECT_EQ(*attended.rbegin(), position);
    held_count += std::ssize(told.held);
    fetched_count += std::ssize(told.fetched);
    left_out_count += told.arrived_count - std::ssize(told.fetched);
    return attended;
  }

  void Check(const AttentionBatch& batch, std::int64_t token, std::int64_t head,
             const std::set<std::int64_t>& attended) const {
    const Entries& entries = entries_[static_cast<std::size_t>(batch.layer)];
    const std::int64_t dim = config_.head_dim;
    const std::int64_t row = token * config_.query_length() + head * dim;
    const std::int64_t column = head / config_.group_size() * dim;
    std::vector<double> out(static_cast<std::size_t>(dim), 0.0);
    double weights = 0;
    for (const std::int64_t position : attended) {
      const std::int64_t at = position * config_.kv_length() + column;
      double score = 0;
      for (std::int64_t i = 0; i < dim; ++i) {
        score += double{batch.q[static_cast<std::size_t>(row + i)]} *
                 double{entries.keys[static_cast<std::size_t>(at + i)]};
      }
      const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
      weights += weight;
      for (std::int64_t i = 0; i < dim; ++i) {
        out[static_cast<std::size_t>(i)] +=
            weight * double{entries.values[static_cast<std::size_t>(at + i)]};
      }
    }
    for (std::int64_t i = 0; i < dim; ++i) {
      ASSERT_NEAR(out[static_cast<std::size_t>(i)] / weights,
                  batch.out[static_cast<std::size_t>(row + i)], 1e-4)
          << "layer " << batch.layer << " head " << head << " token "
          << batch.first_position + token;
    }
  }

  const ModelConfig& config_;
  std::vector<Entries> entries_;  // by layer
};

class AttentionObserverTest : public ConversationFixture {
 protected:
  AttentionObserverTest()
      : ram(MakeRamKvNode({.size_bytes = std::int64_t{1} << 28, .engine = {}}).value()) {
    UseFormat(KvFormat::kF32);
    options.policy.selection.select_tokens_min = 64;
    options.policy.selection.select_tokens_max = 96;
  }

  // A conversation of the policy, watched.
  void Run(const char* policy, AttendingObserver& observer) {
    options.policy.name = policy;
    CreateSession request;
    request.key = identity.key;
    request.layout = identity.layout;
    const SessionId id = ram->Create(request)->id;
    ConversationDeps deps{served, *ram, scheduler, options, memory};
    deps.observer = &observer;
    const std::unique_ptr<Conversation> conversation = Conversation::Open(deps, {id}).value();
    std::vector<float> logits = Logits();
    ASSERT_TRUE(conversation->Prefill(Prompt(250), logits, never, nullptr).ok());
    for (const std::int32_t token : Prompt(250)) {
      ASSERT_TRUE(conversation->Step(token, logits, never).ok());
      if (HasFatalFailure()) return;
    }
  }

  std::unique_ptr<KvNode> ram;
};

TEST_F(AttentionObserverTest, IsToldEverythingOfThePolicyFull) {
  AttendingObserver observer(model.config());
  Run("full", observer);
  EXPECT_EQ(observer.held_count, 0);
  EXPECT_EQ(observer.left_out_count, 0);
  EXPECT_GT(observer.fetched_count, 0);
}

TEST_F(AttentionObserverTest, IsToldClustersAndHeldEntries) {
  AttendingObserver observer(model.config());
  Run("dynakv", observer);
  EXPECT_GT(observer.held_count, 0);
  EXPECT_EQ(observer.left_out_count, 0);
}

TEST_F(AttentionObserverTest, IsToldTheChosenEntriesOfAPageOnly) {
  AttendingObserver observer(model.config());
  Run("no-cluster", observer);
  EXPECT_GT(observer.left_out_count, 0);
  EXPECT_GT(observer.fetched_count, 0);
}

}  // namespace
}  // namespace cairn::compute
