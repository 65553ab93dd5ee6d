// What a turn does with whatever store of prefixes it is given: here one that keeps what came last.
#include "compute-node/service/prefix_store.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "compute-node/kv_client/in_process_kv_node.h"
#include "tests/unit/compute_service/inference_service_fixture.h"

namespace cairn::compute {
namespace {

using Tokens = std::vector<std::int32_t>;

class NewestPrefix : public PrefixStore {
 public:
  explicit NewestPrefix(OpenConversations& open) : open_(open) {}

  const std::string& label() const override { return label_; }
  std::optional<StoredPrefix> Take(const ModelIdentity& /*identity*/,
                                   std::span<const std::int32_t> prompt,
                                   const StopSignal& /*stop*/) override {
    const bool begins = tokens.size() < prompt.size() && !tokens.empty() &&
                        std::equal(tokens.begin(), tokens.end(), prompt.begin());
    if (!begins || !open_.TryTake(session.id)) return std::nullopt;
    return StoredPrefix{session, std::ssize(tokens), session.id, {}};
  }
  void Keep(SessionRef kept, ModelIdentity /*identity*/, Tokens holds,
            PromptSeals /*seals*/) override {
    session = kept;
    tokens = std::move(holds);
  }
  void Remove(SessionId id) override { removed.push_back(id); }
  void MakeRoom(const KvStats& /*stats*/, std::int64_t /*wanted_bytes*/) override {}
  void DropAll() override { tokens.clear(); }

  SessionRef session;
  Tokens tokens;
  std::vector<SessionId> removed;

 private:
  OpenConversations& open_;
  const std::string label_ = "of a test";
};

class PrefixStoreTest : public InferenceServiceTest {
 protected:
  void SetUp() override {
    InferenceServiceTest::SetUp();
    LoadModel("", MakeRamKvNode({.size_bytes = 64 << 20, .engine = {}}).value());
    runtime_ = state_.runtime().value();
  }
  // -> how much of the prompt was stored before
  std::int64_t ReusedBy(const Tokens& prompt) {
    return RunKeptTurn(*runtime_, runtime_->served.base, prompt, store_).reused_token_count;
  }
  static Tokens Numbers(int count) {
    Tokens tokens(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) tokens[static_cast<std::size_t>(i)] = 3 + i;
    return tokens;
  }

  std::shared_ptr<Runtime> runtime_;
  NewestPrefix store_{state_.open_conversations()};
};

TEST_F(PrefixStoreTest, ATurnGoesOnFromWhatItsStoreHasAndLeavesThereWhatItComputed) {
  EXPECT_EQ(ReusedBy(Numbers(20)), 0);
  EXPECT_EQ(store_.tokens, Numbers(20));
  const SessionInfo made = runtime_->node->Get(store_.session, ListDetail::kRows).value();
  EXPECT_EQ(made.label, "of a test");
  EXPECT_EQ(made.token_count, 20);
  EXPECT_EQ(ReusedBy(Numbers(30)), 20);
  EXPECT_EQ(store_.tokens, Numbers(30));
  EXPECT_EQ(store_.session.id, made.session_id);  // in the conversation itself
  EXPECT_TRUE(store_.removed.empty());
}

TEST_F(PrefixStoreTest, WhatCannotBeReadIsGivenUpAndComputedAnew) {
  EXPECT_EQ(ReusedBy(Numbers(20)), 0);
  const SessionRef before = store_.session;
  store_.tokens.back() = 99;  // not what the conversation holds
  Tokens prompt = store_.tokens;
  prompt.push_back(7);
  EXPECT_EQ(ReusedBy(prompt), 0);
  EXPECT_EQ(store_.removed, std::vector<SessionId>{before.id});
  EXPECT_NE(store_.session.id, before.id);
  EXPECT_EQ(store_.tokens, prompt);
}

}  // namespace
}  // namespace cairn::compute
