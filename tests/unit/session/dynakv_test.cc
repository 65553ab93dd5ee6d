// Conversations of policy dynakv on a KV node in this process.
#include <algorithm>
#include <numeric>

#include "compute-node/kernels/kv_entry.h"
#include "compute-node/kv_client/in_process_kv_node.h"
#include "compute-node/retrieval/dynakv/dynakv_policy.h"
#include "tests/unit/session/conversation_fixture.h"
#include "tests/unit/session/staying_index_policy.h"

namespace cairn::compute {
namespace {

class DynaKvTest : public ConversationFixture {
 protected:
  DynaKvTest() : ram(MakeRamKvNode({.size_bytes = std::int64_t{1} << 28, .engine = {}}).value()) {
    options.policy.name = "dynakv";
    options.policy.selection.select_tokens_min = 64;
    options.policy.selection.select_tokens_max = 96;
  }

  ConversationDeps ram_deps() { return {served, *ram, scheduler, options, memory}; }
  SessionId CreateInRam() {
    CreateSession request;
    request.key = identity.key;
    request.layout = identity.layout;
    return ram->Create(request)->id;
  }
  std::unique_ptr<Conversation> OpenInRam(SessionId id) {
    absl::StatusOr<std::unique_ptr<Conversation>> opened = Conversation::Open(ram_deps(), {id});
    EXPECT_TRUE(opened.ok()) << Message(opened.status());
    return opened.ok() ? std::move(opened).value() : nullptr;
  }

  // A new conversation of the prompt.
  std::unique_ptr<Conversation> Begun(std::span<const std::int32_t> prompt) {
    std::unique_ptr<Conversation> conversation = OpenInRam(CreateInRam());
    std::vector<float> logits = Logits();
    const absl::Status status = conversation->Prefill(prompt, logits, never, nullptr);
    EXPECT_TRUE(status.ok()) << Message(status);
    return conversation;
  }

  // Logits after each of `tokens`, computed one by one.
  std::vector<std::vector<float>> Feed(Conversation& conversation,
                                       std::span<const std::int32_t> tokens) {
    std::vector<std::vector<float>> all;
    for (const std::int32_t token : tokens) {
      all.push_back(Logits());
      const absl::Status status = conversation.Step(token, all.back(), never);
      EXPECT_TRUE(status.ok()) << Message(status);
    }
    return all;
  }
  SessionId ForkOf(const SealedSegment& sealed, std::int64_t token_count) {
    CreateSession request;
    request.key = identity.key;
    request.layout = identity.layout;
    request.parent_segment_id = sealed.segment_id;
    request.parent_token_count = token_count;
    return ram->Create(request)->id;
  }
  // Logits after each of `tokens` behind a fork, which is closed and opened each `stay` tokens.
  std::vector<std::vector<float>> FeedFork(SessionId fork, std::span<const std::int32_t> tokens,
                                           std::size_t stay) {
    std::vector<std::vector<float>> all;
    for (std::size_t at = 0; at < tokens.size(); at += stay) {
      const std::unique_ptr<Conversation> conversation = OpenInRam(fork);
      if (conversation == nullptr) return all;
      const std::size_t count = std::min(stay, tokens.size() - at);
      for (auto& logits : Feed(*conversation, tokens.subspan(at, count))) {
        all.push_back(std::move(logits));
      }
      Checkpoint(*conversation);
    }
    return all;
  }
  void Checkpoint(Conversation& conversation) {
    const absl::Status status = conversation.Checkpoint(never);
    EXPECT_TRUE(status.ok()) << Message(status);
  }

  std::unique_ptr<KvNode> ram;
};

double RelativeDistance(const std::vector<float>& a, const std::vector<float>& b) {
  double off = 0;
  double length = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    off += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    length += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(off / length);
}

TEST_F(DynaKvTest, WithEverythingSelectedItIsFullAttention) {
  UseFormat(KvFormat::kF32);
  options.policy.selection.select_percent = 100;
  options.policy.selection.select_tokens_max = 1 << 20;
  const std::vector<std::int32_t> prompt = Prompt(300);
  const std::vector<std::int32_t> fed = Prompt(400);
  std::vector<std::vector<float>> dense;
  DenseAttention attention(model.config(), options.kv_format, 4096, model.pool());
  std::vector<float> logits = Logits();
  ForwardOutput output;
  output.last_logits = logits;
  ASSERT_TRUE(model.Forward(prompt, 0, attention, output, nullptr).ok());
  for (std::size_t i = 0; i < fed.size(); ++i) {
    const std::int64_t position = 300 + static_cast<std::int64_t>(i);
    ASSERT_TRUE(model.Forward({&fed[i], 1}, position, attention, output, nullptr).ok());
    dense.push_back(logits);
  }
  const std::unique_ptr<Conversation> conversation = OpenInRam(CreateInRam());
  ASSERT_TRUE(conversation->Prefill(prompt, logits, never, nullptr).ok());
  const std::vector<std::vector<float>> sparse = Feed(*conversation, fed);
  for (std::size_t i = 0; i < fed.size(); ++i) {
    ASSERT_LT(RelativeDistance(sparse[i], dense[i]), 1e-4) << i;
  }
}

TEST_F(DynaKvTest, WithEverythingSelectedThereIsNothingToEstimate) {
  options.policy.selection.select_percent = 100;
  options.policy.selection.select_tokens_max = 1 << 20;
  const std::vector<std::int32_t> prompt = Prompt(300);
  const std::vector<std::int32_t> fed = Prompt(100);
  std::vector<std::vector<std::vector<float>>> results;
  for (const double percent : {0.0, 100.0}) {
    options.policy.selection.estimate_percent = percent;
    const std::unique_ptr<Conversation> conversation = OpenInRam(CreateInRam());
    std::vector<float> logits = Logits();
    ASSERT_TRUE(conversation->Prefill(prompt, logits, never, nullptr).ok());
    results.push_back(Feed(*conversation, fed));
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_F(DynaKvTest, EstimatesBringItNearerToFullAttention) {
  const std::vector<std::int32_t> prompt = Prompt(600);
  const std::vector<std::int32_t> fed = Prompt(60);
  std::vector<double> distances;
  std::vector<std::int64_t> memory_bytes;
  std::vector<std::vector<float>> full;
  for (const double percent : {-1.0, 0.0, 50.0, 100.0}) {
    options.policy.name = percent < 0 ? "full" : "dynakv";
    options.policy.selection.estimate_percent = std::max(percent, 0.0);
    const std::unique_ptr<Conversation> conversation = OpenInRam(CreateInRam());
    std::vector<float> logits = Logits();
    ASSERT_TRUE(conversation->Prefill(prompt, logits, never, nullptr).ok());
    const std::vector<std::vector<float>> all = Feed(*conversation, fed);
    if (percent < 0) full = all;
    double distance = 0;
    for (std::size_t i = 0; i < fed.size(); ++i) distance += RelativeDistance(all[i], full[i]);
    distances.push_back(distance);
    memory_bytes.push_back(conversation->policy().keeper().memory_bytes());
  }
  EXPECT_LT(distances[2], 0.8 * distances[1]);
  EXPECT_LT(distances[3], 0.7 * distances[1]);
  EXPECT_GT(memory_bytes[3], memory_bytes[1] * 6 / 5);  // a second vector of each cluster
}

TEST_F(DynaKvTest, APromptsQueriesDecideWhatIsNear) {
  ConversationDeps deps = ram_deps();
  const DynaKvPolicy* policy = nullptr;
  deps.make_policy = [&policy](std::string_view name, const PolicyOptions& policy_options) {
    absl::StatusOr<std::unique_ptr<RetrievalPolicy>> made = MakePolicy(name, policy_options);
    policy = dynamic_cast<const DynaKvPolicy*>(made->get());
    return made;
  };
  const std::unique_ptr<Conversation> conversation =
      Conversation::Open(deps, {CreateInRam()}).value();
  std::vector<float> logits = Logits();
  ASSERT_TRUE(conversation->Prefill(Prompt(300), logits, never, nullptr).ok());
  for (std::int32_t layer = 0; layer < identity.layout.layer_count; ++layer) {
    for (std::int32_t head = 0; head < identity.layout.head_count; ++head) {
      EXPECT_TRUE(policy->metric(layer, head).has_learned()) << layer << " " << head;
    }
  }
  EXPECT_FALSE(std::ranges::equal(policy->metric(0, 0).numbers(), policy->metric(1, 0).numbers()));
}

TEST_F(DynaKvTest, ADecodeFromNothingSelectsOnlyAPart) {
  constexpr std::int64_t kSteps = 20;
  const std::vector<std::int32_t> fed = Prompt(700);
  const std::unique_ptr<Conversation> conversation = OpenInRam(CreateInRam());
  Feed(*conversation, fed);
  const std::int64_t before = conversation->fetch_counts().selected_count;
  Feed(*conversation, std::span(fed).first(kSteps));
  const std::int64_t selected = conversation->fetch_counts().selected_count - before;
  const std::int64_t of_a_head =
      selected / (kSteps * identity.layout.layer_count * identity.layout.head_count);
  // Of 96 tokens a part is the window; 700 tokens are some 90 clusters of 8.
  EXPECT_GT(of_a_head, 2);
  EXPECT_LT(of_a_head, 25);
  Checkpoint(*conversation);
}

// Checkpoints, closing and opening again change no bit of what follows.
class DynaKvRestartTest : public DynaKvTest, public testing::WithParamInterface<double> {};

TEST_P(DynaKvRestartTest, ARestartChangesNothing) {
  options.policy.selection.estimate_percent = GetParam();
  const std::vector<std::int32_t> prompt = Prompt(250);
  const std::vector<std::int32_t> fed = Prompt(300);
  std::vector<float> logits = Logits();
  const std::unique_ptr<Conversation> through = OpenInRam(CreateInRam());
  ASSERT_TRUE(through->Prefill(prompt, logits, never, nullptr).ok());
  const std::vector<std::vector<float>> expected = Feed(*through, fed);

  const SessionId id = CreateInRam();
  std::unique_ptr<Conversation> conversation = OpenInRam(id);
  ASSERT_TRUE(conversation->Prefill(prompt, logits, never, nullptr).ok());
  std::mt19937_64 random(seed);
  for (std::size_t at = 0; at < fed.size();) {
    const std::size_t count = std::min<std::size_t>(1 + random() % 60, fed.size() - at);
    const std::vector<std::vector<float>> part =
        Feed(*conversation, std::span(fed).subspan(at, count));
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(part[i], expected[at + i]) << "seed " << seed << " token " << at + i;
    }
    at += count;
    Checkpoint(*conversation);
    conversation.reset();
    conversation = OpenInRam(id);
    ASSERT_NE(conversation, nullptr);
    EXPECT_GT(conversation->index_time().count(), 0);
    EXPECT_GE(conversation->open_time(), conversation->index_time());
  }
}

INSTANTIATE_TEST_SUITE_P(EstimatePercent, DynaKvRestartTest, testing::Values(0, 30, 100));

TEST_F(DynaKvTest, AskingAheadChangesNothing) {
  options.policy.selection.estimate_percent = 50;
  const std::vector<std::int32_t> prompt = Prompt(400);
  const std::vector<std::int32_t> fed = Prompt(120);
  std::vector<double> used_shares;  // of what was asked for ahead
  for (const bool select_ahead : {true, false}) {
    options.policy.selection.select_ahead = select_ahead;
    std::vector<std::vector<std::vector<float>>> results;
    used_shares.push_back(0);
    for (const bool predict : {true, false}) {
      options.predict_selection = predict;
      const std::unique_ptr<Conversation> conversation = Begun(prompt);
      results.push_back(Feed(*conversation, fed));
      const FetchCounts& counts = conversation->fetch_counts();
      EXPECT_GT(counts.selected_count, 0);
      EXPECT_EQ(counts.predicted_count > 0, predict);
      EXPECT_EQ(counts.foreseen_count > 0, predict);
      if (predict) {
        used_shares.back() = static_cast<double>(counts.foreseen_count) /
                             static_cast<double>(counts.predicted_count);
      }
      const FetchTimes times = conversation->fetch_times();
      EXPECT_GT(times.io_time.count(), 0);
      EXPECT_LE(times.exposed_time, times.io_time);
    }
    EXPECT_EQ(results[0], results[1]) << select_ahead;
  }
  // Of what was selected ahead only heads that select anew leave some.
  EXPECT_GT(used_shares[0], used_shares[1]);
}

// Layers but the first attend other clusters, and with everything selected the same.
TEST_F(DynaKvTest, SelectingAheadAttendsWhatWasForeseen) {
  const std::vector<std::int32_t> prompt = Prompt(400);
  const std::vector<std::int32_t> fed = Prompt(40);
  for (const bool everything : {false, true}) {
    if (everything) {
      options.policy.selection.select_percent = 100;
      options.policy.selection.select_tokens_max = 1 << 20;
    }
    std::vector<std::vector<std::vector<float>>> results;
    for (const bool select_ahead : {true, false}) {
      options.policy.selection.select_ahead = select_ahead;
      results.push_back(Feed(*Begun(prompt), fed));
    }
    EXPECT_EQ(results[0] == results[1], everything);
  }
}

TEST_F(DynaKvTest, KeepingClustersChangesNothing) {
  const std::vector<std::int32_t> prompt = Prompt(400);
  const std::vector<std::int32_t> fed = Prompt(120);
  for (const char* policy : {"dynakv", "no-cluster", "static-cluster", "local-cluster"}) {
    options.policy.name = policy;
    std::vector<std::vector<std::vector<float>>> results;
    for (const bool keep : {true, false}) {
      options.keep_clusters = keep;
      const std::unique_ptr<Conversation> conversation = Begun(prompt);
      results.push_back(Feed(*conversation, fed));
      EXPECT_EQ(conversation->fetch_counts().kept_count > 0, keep) << policy;
    }
    EXPECT_EQ(results[0], results[1]) << policy;
  }
}

// The index comes from the KV node layer by layer where entries join clusters, or stays.
class DynaKvIndexTest : public DynaKvTest, public testing::WithParamInterface<int> {
 protected:
  std::unique_ptr<Conversation> OpenWith(SessionId id, bool stays) {
    ConversationDeps deps = ram_deps();
    if (stays) {
      deps.make_policy = [](std::string_view, const PolicyOptions& policy_options)
          -> absl::StatusOr<std::unique_ptr<RetrievalPolicy>> {
        return std::make_unique<StayingIndexPolicy>(policy_options);
      };
    }
    absl::StatusOr<std::unique_ptr<Conversation>> opened = Conversation::Open(deps, {id});
    EXPECT_TRUE(opened.ok()) << Message(opened.status());
    return opened.ok() ? std::move(opened).value() : nullptr;
  }
};

TEST_P(DynaKvIndexTest, LettingGoOfItChangesNothing) {
  options.policy.selection.estimate_percent = GetParam();
  options.prefill_chunk_tokens = 250;
  const std::vector<std::int32_t> prompt = Prompt(600);
  const std::vector<std::int32_t> fed = Prompt(200);
  std::vector<std::vector<std::vector<float>>> results;
  std::vector<std::int64_t> memory_bytes;
  for (const bool stays : {true, false}) {
    const SessionId id = CreateInRam();
    std::unique_ptr<Conversation> conversation = OpenWith(id, stays);
    std::vector<float> logits = Logits();
    ASSERT_TRUE(conversation->Prefill(prompt, logits, never, nullptr).ok());
    std::vector<std::vector<float>>& all = results.emplace_back();
    all.push_back(logits);
    const auto feed = [&](std::size_t first, std::size_t count) {
      for (std::vector<float>& row : Feed(*conversation, std::span(fed).subspan(first, count))) {
        all.push_back(std::move(row));
      }
    };
    feed(0, 70);
    Checkpoint(*conversation);
    feed(70, 30);
    conversation.reset();
    conversation = OpenWith(id, stays);
    ASSERT_NE(conversation, nullptr);
    feed(100, 50);
    ASSERT_TRUE(conversation->Prefill(prompt, logits, never, nullptr).ok());
    all.push_back(logits);
    Checkpoint(*conversation);
    feed(150, 50);
    memory_bytes.push_back(conversation->policy().keeper().memory_bytes());
  }
  EXPECT_EQ(results[0], results[1]);
  // What means are made of is needed in each step.
  if (GetParam() == 0) {
    EXPECT_LT(memory_bytes[1], memory_bytes[0] * 4 / 5);
  } else {
    EXPECT_EQ(memory_bytes[1], memory_bytes[0]);
  }
}

// What was stored before there was a metric, and what a fork cuts, is stale: its clusters are
// computed again in steps in which nothing leaves the window.
TEST_P(DynaKvIndexTest, StaleClustersAreMadeAnewWithoutIt) {
  options.policy.selection.estimate_percent = GetParam();
  const std::vector<std::int32_t> fed = Prompt(240);
  const std::vector<std::int32_t> prompt = Prompt(600);
  std::vector<std::vector<std::vector<float>>> results;
  for (const bool stays : {true, false}) {
    const SessionId id = CreateInRam();
    std::unique_ptr<Conversation> conversation = OpenWith(id, stays);
    Feed(*conversation, std::span(fed).first(150));
    Checkpoint(*conversation);
    std::vector<float> logits = Logits();
    ASSERT_TRUE(conversation->Prefill(prompt, logits, never, nullptr).ok());
    Checkpoint(*conversation);
    results.push_back(Feed(*conversation, fed));
    Checkpoint(*conversation);
    conversation.reset();
    const SealedSegment sealed = ram->Seal({id}).value();
    CreateSession fork;
    fork.key = identity.key;
    fork.layout = identity.layout;
    fork.parent_segment_id = sealed.segment_id;
    fork.parent_token_count = 703;
    conversation = OpenWith(ram->Create(fork)->id, stays);
    ASSERT_NE(conversation, nullptr);
    for (std::vector<float>& row : Feed(*conversation, fed)) results.back().push_back(row);
  }
  EXPECT_EQ(results[0], results[1]);
}

INSTANTIATE_TEST_SUITE_P(EstimatePercent, DynaKvIndexTest, testing::Values(0, 50));

// A prompt of several chunks is clustered again as a whole, and nothing of it is lost by that.
TEST_F(DynaKvTest, APromptOfManyChunksIsClusteredAgain) {
  options.prefill_chunk_tokens = 250;
  const std::vector<std::int32_t> prompt = Prompt(1000);
  std::vector<float> logits = Logits();
  std::vector<std::int64_t> next_ids;
  for (const bool recluster : {true, false}) {
    options.recluster_prompts = recluster;
    const SessionId id = CreateInRam();
    {
      const std::unique_ptr<Conversation> conversation = OpenInRam(id);
      ASSERT_TRUE(conversation->Prefill(prompt, logits, never, nullptr).ok());
    }
    next_ids.push_back(ram->Open({id}).value()->attachment().next_cluster_ids[0]);
    const std::unique_ptr<Conversation> again = OpenInRam(id);
    ASSERT_NE(again, nullptr);
    EXPECT_EQ(again->token_count(), 1000);
    Feed(*again, Prompt(50));
    Checkpoint(*again);
  }
  EXPECT_GT(next_ids[0], next_ids[1] * 3 / 2);
}

TEST_F(DynaKvTest, ALocalPromptAttendsItsOwnChunk) {
  options.prefill_chunk_tokens = 250;
  const std::vector<std::int32_t> prompt = Prompt(1000);
  for (const char* policy : {"dynakv", "full"}) {
    options.policy.name = policy;
    std::vector<std::vector<float>> first_chunk;
    std::vector<std::vector<float>> last_chunk;
    for (const bool local : {false, true}) {
      options.local_prompts = local;
      const std::unique_ptr<Conversation> conversation = OpenInRam(CreateInRam());
      for (const std::size_t first : {0U, 250U}) {
        std::vector<std::vector<float>>& logits = first == 0 ? first_chunk : last_chunk;
        logits.push_back(Logits());
        const std::span<const std::int32_t> part =
            std::span(prompt).subspan(first, first == 0 ? 250 : 750);
        ASSERT_TRUE(conversation->Prefill(part, logits.back(), never, nullptr).ok());
      }
      EXPECT_EQ(conversation->token_count(), 1000);
      Checkpoint(*conversation);
      Feed(*conversation, Prompt(20));
    }
    EXPECT_EQ(first_chunk[0], first_chunk[1]);
    EXPECT_NE(last_chunk[0], last_chunk[1]);
  }
}

TEST_F(DynaKvTest, AForkAtAnyTokenGoesOnAsIfItHadStayedOpen) {
  for (const double percent : {0.0, 60.0}) {
    options.policy.selection.estimate_percent = percent;
    const SessionId id = CreateInRam();
    {
      const std::unique_ptr<Conversation> conversation = OpenInRam(id);
      std::vector<float> logits = Logits();
      ASSERT_TRUE(conversation->Prefill(Prompt(250), logits, never, nullptr).ok());
      Feed(*conversation, Prompt(250));
      Checkpoint(*conversation);
    }
    const SealedSegment sealed = ram->Seal({id}).value();
    std::mt19937_64 random(seed);
    const std::vector<std::int32_t> fed = Prompt(80);
    for (int i = 0; i < 6; ++i) {
      const std::int64_t at =
          i == 0 ? sealed.token_count : 1 + static_cast<std::int64_t>(random() % 500U);
      const auto stayed = FeedFork(ForkOf(sealed, at), fed, fed.size());
      ASSERT_EQ(stayed.size(), fed.size()) << "seed " << seed << " at " << at;
      EXPECT_EQ(FeedFork(ForkOf(sealed, at), fed, 20), stayed) << "seed " << seed << " at " << at;
    }
  }
}

}  // namespace
}  // namespace cairn::compute
