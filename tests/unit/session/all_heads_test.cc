// Conversations whose clusters are of all KV heads: they give what those give whose clusters are of
// one head each, and what full attention gives.
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "compute-node/kv_client/in_process_kv_node.h"
#include "tests/unit/session/conversation_fixture.h"
#include "tests/unit/session/group_policy.h"

namespace cairn::compute {
namespace {

using AllLogits = std::vector<std::vector<float>>;

class AllHeadsTest : public ConversationFixture {
 protected:
  AllHeadsTest() : ram(MakeRamKvNode({.size_bytes = std::int64_t{1} << 28, .engine = {}}).value()) {
    GroupPolicy::adapted_count = 0;
    GroupPolicy::regrouped_count = 0;
  }

  // Of a policy by its name, or of groups.
  struct Opened {
    std::string policy;
    GroupOptions groups{};
    KeyLog keys{};
  };
  static Opened WithGroups(const GroupOptions& groups) {
    return {.policy = "groups", .groups = groups};
  }

  std::unique_ptr<Conversation> OpenAt(KvNode& at, SessionId id, Opened& opened) {
    options.policy.name = opened.policy;
    ConversationDeps with{served, at, scheduler, options, memory};
    with.make_policy = [&opened](std::string_view name, const PolicyOptions& policy_options)
        -> absl::StatusOr<std::unique_ptr<RetrievalPolicy>> {
      if (name != "groups") return MakePolicy(name, policy_options);
      return std::make_unique<GroupPolicy>(policy_options, opened.groups, opened.keys);
    };
    absl::StatusOr<std::unique_ptr<Conversation>> conversation = Conversation::Open(with, {id});
    EXPECT_TRUE(conversation.ok()) << Message(conversation.status());
    return conversation.ok() ? std::move(conversation).value() : nullptr;
  }
  SessionId CreateIn(KvNode& at, SegmentId parent = SegmentId(0), std::int64_t token_count = 0) {
    CreateSession request;
    request.key = identity.key;
    request.layout = identity.layout;
    request.parent_segment_id = parent;
    request.parent_token_count = token_count;
    return at.Create(request).value().id;
  }

  void Fill(Conversation& conversation, std::int64_t count, AllLogits& all) {
    std::vector<std::int32_t> prompt;
    for (std::int64_t i = 0; i < count; ++i) prompt.push_back(TokenAt(i));
    all.push_back(Logits());
    const absl::Status status = conversation.Prefill(prompt, all.back(), never, nullptr);
    ASSERT_TRUE(status.ok()) << Message(status);
  }
  // The same tokens whatever the logits are.
  void Step(Conversation& conversation, int count, AllLogits& all) {
    for (int i = 0; i < count; ++i) {
      all.push_back(Logits());
      const std::int32_t token = TokenAt(conversation.token_count());
      const absl::Status status = conversation.Step(token, all.back(), never);
      ASSERT_TRUE(status.ok()) << Message(status);
    }
  }
  std::int32_t TokenAt(std::int64_t position) const {
    return static_cast<std::int32_t>(3 + position * 37 % (model.config().vocab_size - 3));
  }

  // The logits of a whole life: a prompt of several chunks, steps, two restarts, and what forks of
  // it give.
  AllLogits Live(Opened opened, const std::vector<std::int64_t>& forks,
                 std::int64_t fork_prompt_tokens) {
    AllLogits all;
    const SessionId id = CreateIn(*ram);
    std::unique_ptr<Conversation> conversation = OpenAt(*ram, id, opened);
    Fill(*conversation, prompt_tokens, all);
    for (int restart = 0; restart < 2; ++restart) {
      Step(*conversation, 75, all);
      EXPECT_TRUE(conversation->Checkpoint(never).ok());
      counts = conversation->fetch_counts();
      conversation.reset();
      conversation = OpenAt(*ram, id, opened);
      if (conversation == nullptr) return all;
    }
    Step(*conversation, 20, all);
    EXPECT_TRUE(conversation->Checkpoint(never).ok());
    conversation.reset();
    const SealedSegment sealed = ram->Seal({id}).value();
    for (const std::int64_t token_count : forks) {
      Opened of_fork = opened;
      const SessionId fork_id = CreateIn(*ram, sealed.segment_id, token_count);
      std::unique_ptr<Conversation> fork = OpenAt(*ram, fork_id, of_fork);
      if (fork == nullptr) return all;
      Step(*fork, 25, all);
      if (fork_prompt_tokens > 0) Fill(*fork, fork_prompt_tokens, all);
      EXPECT_TRUE(fork->Checkpoint(never).ok());
      fork = OpenAt(*ram, fork_id, of_fork);
      if (fork == nullptr) return all;
      Step(*fork, 3, all);
    }
    return all;
  }

  static void ExpectNear(const AllLogits& got, const AllLogits& want, double error_max) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      double error = 0;
      double size = 0;
      for (std::size_t j = 0; j < want[i].size(); ++j) {
        error = std::max(error, std::abs(double{got[i][j]} - double{want[i][j]}));
        size = std::max(size, std::abs(double{want[i][j]}));
      }
      ASSERT_LE(error, error_max * size) << i;
    }
  }

  std::unique_ptr<KvNode> ram;
  std::int64_t prompt_tokens = 333;
  FetchCounts counts;  // of the last Live, before its last restart
};

// Within the first group, at the end of the prompt, between the restarts, and at the end.
const std::vector<std::int64_t> kForks = {1, 333, 420, 503};

class AllHeadsFormatTest : public AllHeadsTest, public testing::WithParamInterface<KvFormat> {};

TEST_P(AllHeadsFormatTest, EverythingInSequenceGivesTheBitsOfFull) {
  UseFormat(GetParam());
  const AllLogits expected = Live({.policy = "full"}, kForks, 90);
  EXPECT_EQ(Live(WithGroups({.without_queries = true}), kForks, 90), expected);
}

INSTANTIATE_TEST_SUITE_P(Formats, AllHeadsFormatTest,
                         testing::Values(KvFormat::kF32, KvFormat::kF16, KvFormat::kQ8,
                                         KvFormat::kQ4),
                         [](const auto& param) { return std::string(KvFormatName(param.param)); });

struct GroupCase {
  std::string name;
  GroupOptions groups;
};

class AllHeadsGroupsTest : public AllHeadsTest, public testing::WithParamInterface<GroupCase> {};

TEST_P(AllHeadsGroupsTest, GiveTheBitsOfGroupsOfEachHead) {
  GroupOptions groups = GetParam().groups;
  const AllLogits all_heads = Live(WithGroups(groups), kForks, 90);
  EXPECT_GT(counts.kept_count, 0);
  EXPECT_GT(counts.foreseen_count, 0);
  EXPECT_EQ(GroupPolicy::adapted_count > 0, groups.adapts);
  EXPECT_EQ(GroupPolicy::regrouped_count > 0, groups.regroups);
  const std::int64_t selected_count = counts.selected_count;
  groups.all_heads = false;
  const AllLogits of_each = Live(WithGroups(groups), kForks, 90);
  EXPECT_EQ(counts.selected_count, selected_count * identity.layout.head_count);
  EXPECT_EQ(all_heads, of_each);
  UseFormat(KvFormat::kF32);
  groups.all_heads = true;
  const AllLogits exact = Live(WithGroups(groups), kForks, 90);
  const AllLogits full = Live({.policy = "full"}, kForks, 90);
  if (!groups.chooses) {
    ExpectNear(exact, full, 1e-4);
  } else {
    EXPECT_NE(exact, full);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, AllHeadsGroupsTest,
    testing::Values(
        GroupCase{"plain", {.group_entries = 8}},
        GroupCase{"choosing", {.group_entries = 8, .chooses = true}},
        GroupCase{"holding", {.group_entries = 12, .chooses = true, .holds = true}},
        GroupCase{"adapting", {.group_entries = 16, .adapts = true}},
        GroupCase{"regrouping", {.group_entries = 12, .chooses = true, .regroups = true}},
        GroupCase{"everything",
                  {.group_entries = 24, .holds = true, .adapts = true, .regroups = true}}),
    [](const auto& param) { return param.param.name; });

class AllHeadsAnswersTest : public AllHeadsTest, public testing::WithParamInterface<bool> {
 protected:
  absl::Status StepWith(const std::function<void(FetchedCluster&)>& change) {
    Opened opened = WithGroups({.group_entries = 8, .without_queries = GetParam()});
    node.cut_spans = false;
    const std::unique_ptr<Conversation> conversation = OpenAt(node, CreateIn(node), opened);
    AllLogits all;
    Fill(*conversation, 200, all);
    node.tamper = [&](const Fetch& fetch, FetchReply& reply) {
      if (fetch.layer == 0) change(reply.clusters[0]);
    };
    all.push_back(Logits());
    absl::Status status = conversation->Step(5, all.back(), never);
    node.tamper = nullptr;
    return status;
  }
};

TEST_P(AllHeadsAnswersTest, WrongOnesAreDataLoss) {
  const std::int64_t head_bytes = identity.layout.EntryBytes(0);
  const auto cut_to = [](FetchedCluster& cluster, std::int64_t bytes) {
    cluster.spans[0].bytes = cluster.spans[0].bytes.first(static_cast<std::size_t>(bytes));
  };
  const std::vector<std::function<void(FetchedCluster&)>> changes = {
      [](FetchedCluster& c) { c.cluster.head = 0; },
      [](FetchedCluster& c) { c.outcome = FetchOutcome::kUnknown; },
      [](FetchedCluster& c) { c.outcome = FetchOutcome::kLost; },
      [](FetchedCluster& c) { c.spans.clear(); },
      // What as many entries of one head have, and an entry without its last head.
      [&](FetchedCluster& c) { cut_to(c, 8 * head_bytes); },
      [&](FetchedCluster& c) { cut_to(c, std::ssize(c.spans[0].bytes) - head_bytes); },
      [](FetchedCluster& c) { c.spans[0].entry_count *= 2; },
      [](FetchedCluster& c) { c.spans[0].positions = Positions::Range(1, 8); },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const absl::Status status = StepWith(changes[i]);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << i;
    EXPECT_NE(Message(status).find("layer 0 head -1 cluster 2"), std::string::npos)
        << i << " " << Message(status);
  }
  EXPECT_TRUE(StepWith([](FetchedCluster&) {}).ok());
}

INSTANTIATE_TEST_SUITE_P(Ways, AllHeadsAnswersTest, testing::Bool());

}  // namespace
}  // namespace cairn::compute
