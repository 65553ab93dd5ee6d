// Conversations that are sealed before the last token of each prompt: the same prompt again, on a
// fork from there, has the same answer to the bit, whatever came behind it meanwhile.
#include <algorithm>
#include <random>

#include "compute-node/kv_client/in_process_kv_node.h"
#include "compute-node/retrieval/policy_registry.h"
#include "compute-node/session/generation.h"
#include "tests/unit/session/conversation_fixture.h"

namespace cairn::compute {
namespace {

constexpr std::int64_t kHistoryTokens = 40;

// A turn of a conversation, and what came of it.
struct Said {
  std::vector<std::int32_t> before;  // all that the conversation held
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> ids;
  std::vector<float> log_probabilities;
};

class SealedPromptTest : public ConversationFixture,
                         public testing::WithParamInterface<PolicyKind> {
 protected:
  SealedPromptTest()
      : ram(MakeRamKvNode({.size_bytes = std::int64_t{1} << 28, .engine = {}}).value()),
        tokenizer(Tokenizer::FromGguf(model.file()).value()) {
    options.policy.name = GetParam().name;
    options.policy.selection.select_tokens_min = 64;
    options.policy.selection.select_tokens_max = 96;
  }

  SessionRef CreateAt(SegmentId parent = {}, std::int64_t token_count = 0) {
    CreateSession request;
    request.key = identity.key;
    request.layout = identity.layout;
    request.parent_segment_id = parent;
    request.parent_token_count = token_count;
    return ram->Create(request).value();
  }

  std::unique_ptr<Conversation> OpenRam(const SessionRef& id) {
    absl::StatusOr<std::unique_ptr<Conversation>> opened =
        Conversation::Open({served, *ram, scheduler, options, memory}, id);
    EXPECT_TRUE(opened.ok()) << Message(opened.status());
    return opened.ok() ? std::move(opened).value() : nullptr;
  }

  // Penalties, random numbers and log probabilities all look at what came before.
  Said Ask(const SessionRef& id, const std::vector<std::int32_t>& before,
           const std::vector<std::int32_t>& prompt) {
    Said said{before, prompt, {}, {}};
    TurnRequest request;
    request.prompt = prompt;
    request.tokens_max = 12;
    request.ignore_end = true;
    request.prompt_end = PromptEnd::kSealed;
    request.log_probabilities = true;
    request.sampling.temperature = 1;
    request.sampling.seed = 7;
    request.sampling.penalties = {.repetition_penalty = 1.5, .penalty_last_tokens = kHistoryTokens};
    const std::int64_t history =
        std::clamp<std::int64_t>(kHistoryTokens - std::ssize(prompt), 0, std::ssize(before));
    request.history.assign(before.end() - history, before.end());
    const TurnObserver observer{
        .prefill = nullptr,
        .token = [&said](std::int32_t token, std::string_view, const LogProbabilities* likely) {
          said.ids.push_back(token);
          said.log_probabilities.push_back(likely->chosen.value);
        }};
    const std::unique_ptr<Conversation> conversation = OpenRam(id);
    if (conversation == nullptr) return said;
    const absl::StatusOr<TurnResult> result =
        Generate(*conversation, *tokenizer, request, observer, never);
    EXPECT_TRUE(result.ok()) << Message(result.status());
    seals = conversation->seals();
    return said;
  }

  // The same turn on a fork, for which its prompt's last token is left.
  Said AskAgain(const SessionRef& origin, const Said& said) {
    std::vector<std::int32_t> before = said.before;
    before.insert(before.end(), said.prompt.begin(), said.prompt.end() - 1);
    const SealedSegment sealed = ram->Seal(origin).value();
    const SessionRef fork = CreateAt(sealed.segment_id, std::ssize(before));
    Said again = Ask(fork, before, {said.prompt.back()});
    last_fork = fork;
    return again;
  }

  std::unique_ptr<KvNode> ram;
  std::unique_ptr<Tokenizer> tokenizer;
  PromptSeals seals;     // of the last Ask
  SessionRef last_fork;  // of the last AskAgain
};

std::vector<std::int32_t> Together(const Said& said) {
  std::vector<std::int32_t> all = said.before;
  all.insert(all.end(), said.prompt.begin(), said.prompt.end());
  all.insert(all.end(), said.ids.begin(), said.ids.end());
  return all;
}

TEST_P(SealedPromptTest, EveryTurnAgainHasTheSameAnswer) {
  SCOPED_TRACE(GetParam().name);
  // A prompt of one pass, and one of several chunks; then turns that are computed in passes, and
  // short ones that are computed in steps.
  for (const std::int64_t first : {90, 730}) {
    std::vector<Said> turns;
    const SessionRef id = CreateAt();
    turns.push_back(Ask(id, {}, Prompt(first)));
    if (options.policy.selects()) {
      EXPECT_EQ(seals.token_counts(), (std::vector<std::int64_t>{first - 1}));
      EXPECT_TRUE(seals.IsFreshAt(first - 1));
    } else {
      EXPECT_TRUE(seals.empty());
    }
    for (const std::int64_t count : {150, 2, 1, 30}) {
      const std::vector<std::int32_t> before = Together(turns.back());
      turns.push_back(Ask(id, before, Prompt(count)));
    }
    std::mt19937_64 random(seed);
    std::vector<std::size_t> order = {0, 1, 2, 3, 4};
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t turn : order) {
      const Said& said = turns[turn];
      Said again = AskAgain(id, said);
      EXPECT_EQ(again.ids, said.ids) << "turn " << turn << " behind " << first;
      EXPECT_EQ(again.log_probabilities, said.log_probabilities) << "turn " << turn;
      // And of the answer that is a fork itself.
      const SessionRef fork = last_fork;
      again = AskAgain(fork, again);
      EXPECT_EQ(again.ids, said.ids) << "turn " << turn << " twice behind " << first;
      EXPECT_EQ(again.log_probabilities, said.log_probabilities) << "turn " << turn;
    }
    // A new conversation has the answer of the first turn only.
    EXPECT_EQ(Ask(CreateAt(), {}, turns[0].prompt).ids, turns[0].ids);
    EXPECT_TRUE(AskAgain(id, turns[0]).ids == turns[0].ids);
    EXPECT_EQ(seals.IsFreshAt(first - 1), options.policy.selects());
  }
}

TEST_P(SealedPromptTest, WhatBeginsInBetweenIsNotFresh) {
  SCOPED_TRACE(GetParam().name);
  if (!options.policy.selects()) return;
  const SessionRef id = CreateAt();
  const Said said = Ask(id, {}, Prompt(300));
  const SealedSegment sealed = ram->Seal(id).value();
  const SessionRef fork = CreateAt(sealed.segment_id, 200);
  const std::unique_ptr<Conversation> conversation = OpenRam(fork);
  EXPECT_FALSE(conversation->seals().IsFreshAt(200));
  EXPECT_FALSE(conversation->seals().IsFreshAt(299));
  EXPECT_TRUE(conversation->seals().Has(200));
  // What is computed from there is sealed, but nothing that a new conversation has.
  std::vector<float> logits = Logits();
  ASSERT_TRUE(conversation->Prefill(Prompt(99), {}, never, nullptr, CheckpointEnd::kSealed).ok());
  EXPECT_TRUE(conversation->seals().Has(299));
  EXPECT_FALSE(conversation->seals().IsFreshAt(299));
  // Again, without anything new: nothing is sealed.
  EXPECT_TRUE(conversation->Seal(never).ok());
  ASSERT_TRUE(conversation->Step(5, logits, never).ok());
  EXPECT_TRUE(conversation->Checkpoint(never).ok());
  EXPECT_EQ(conversation->seals().token_counts(), (std::vector<std::int64_t>{200, 299}));
}

INSTANTIATE_TEST_SUITE_P(Policies, SealedPromptTest, testing::ValuesIn(PolicyKinds()),
                         [](const auto& tested) {
                           std::string name(tested.param.name);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace cairn::compute
