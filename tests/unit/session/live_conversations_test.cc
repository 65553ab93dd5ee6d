#include "compute-node/session/live_conversations.h"

#include <atomic>
#include <thread>

#include "tests/unit/session/conversation_fixture.h"

namespace cairn::compute {
namespace {

class LiveConversationsTest : public ConversationFixture {
 protected:
  std::unique_ptr<Conversation> OpenLive(SessionId id, LiveConversation& live) {
    ConversationDeps saying = deps();
    saying.live = &live;
    absl::StatusOr<std::unique_ptr<Conversation>> opened = Conversation::Open(saying, {id});
    EXPECT_TRUE(opened.ok()) << opened.status();
    return std::move(opened).value();
  }

  LiveConversations registry;
};

TEST_F(LiveConversationsTest, AConversationIsListedForAsLongAsItLives) {
  LiveConversation first(registry, {}, "first");
  {
    const LiveConversation second(registry, {}, "second");
    first.SetPhase(LivePhase::kPrefilling, 100, 40);
    first.Update([](LiveSnapshot& now) { now.token_count = 130; });
    const std::vector<LiveSnapshot> both = registry.List();
    ASSERT_EQ(both.size(), 2U);
    EXPECT_EQ(both[0].label, "first");
    EXPECT_EQ(both[0].phase, LivePhase::kPrefilling);
    EXPECT_EQ(both[0].phase_done_count(), 30);
    EXPECT_EQ(both[1].label, "second");
    EXPECT_EQ(both[1].phase, LivePhase::kQueued);
    EXPECT_EQ(both[1].phase_done_count(), 0);
  }
  EXPECT_EQ(registry.List().size(), 1U);
}

// Whoever asks in the middle of a pass hears what was true before it.
TEST_F(LiveConversationsTest, ASnapshotIsOfBetweenTwoPasses) {
  LiveConversation live(registry, {}, "");
  const auto now = [&] { return registry.List().at(0); };
  const SessionId id = Create();
  const std::unique_ptr<Conversation> conversation = OpenLive(id, live);
  EXPECT_EQ(now().identity, identity);
  EXPECT_EQ(now().policy, "full");
  std::vector<std::int64_t> counts;
  std::vector<std::int64_t> durable_counts;
  node.tamper = [&](const Fetch&, FetchReply&) {
    const LiveSnapshot seen = now();
    EXPECT_FALSE(seen.waits_for_store);
    if (!counts.empty() && counts.back() == seen.token_count) return;
    counts.push_back(seen.token_count);
    durable_counts.push_back(seen.durable_token_count);
  };
  std::vector<float> logits = Logits();
  ASSERT_TRUE(conversation->Prefill(Prompt(330), logits, never, nullptr).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(conversation->Step(Best(logits), logits, never).ok());
  // Behind the first chunk everything is in the window, and nothing is fetched.
  EXPECT_EQ(counts, (std::vector<std::int64_t>{200, 300, 330, 331, 332}));
  EXPECT_EQ(durable_counts, (std::vector<std::int64_t>{200, 300, 330, 330, 330}));
  EXPECT_EQ(now().token_count, 333);
  EXPECT_EQ(now().durable_token_count, 330);
  ASSERT_TRUE(conversation->Checkpoint(never).ok());
  EXPECT_EQ(now().durable_token_count, 333);
  EXPECT_EQ(now().memory_bytes, memory.used_bytes());
  EXPECT_GT(now().memory_bytes, 0);
}

TEST_F(LiveConversationsTest, AWaitForTheKvNodeIsSaid) {
  LiveConversation live(registry, {}, "");
  const std::unique_ptr<Conversation> conversation = OpenLive(Create(), live);
  Continue(*conversation, Prompt(200), 1);
  std::vector<float> logits = Logits();
  ASSERT_TRUE(conversation->Step(5, logits, never).ok());
  StopSignal stop;
  bool waited = false;
  node.stall_checkpoints = [&] {
    waited = registry.List().at(0).waits_for_store;
    stop.Cancel();
  };
  EXPECT_EQ(conversation->Checkpoint(stop).code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(waited);
  EXPECT_FALSE(registry.List().at(0).waits_for_store);
}

// Their passes are computed together, on the threads of all of them.
TEST_F(LiveConversationsTest, SeveralSayWhatTheyDoWhileSomebodyReads) {
  constexpr int kConversations = 3;
  constexpr std::int64_t kPromptTokens = 150;
  constexpr int kSteps = 20;
  const std::vector<std::int32_t> prompt = Prompt(kPromptTokens);
  std::atomic<int> ended{0};
  const auto run = [&](int number) {
    FakeKvNode own_node(seed + static_cast<std::uint64_t>(number));
    CreateSession request;
    request.key = identity.key;
    request.layout = identity.layout;
    const SessionRef session = own_node.Create(request).value();
    KvMemory own_memory;
    LiveConversation live(registry, {}, std::to_string(number));
    ConversationDeps own{served, own_node, scheduler, options, own_memory};
    own.live = &live;
    const std::unique_ptr<Conversation> conversation = *Conversation::Open(own, session);
    live.SetPhase(LivePhase::kPrefilling, 0, kPromptTokens);
    Continue(*conversation, prompt, kSteps);
    ++ended;
    // Stays listed until all have ended, so that the reader sees every last word.
    while (ended < kConversations + 1) std::this_thread::yield();
  };
  std::vector<std::thread> threads;
  threads.reserve(kConversations);
  for (int number = 0; number < kConversations; ++number) threads.emplace_back(run, number);
  std::map<std::string, std::int64_t> counts;
  const auto read = [&] {
    for (const LiveSnapshot& now : registry.List()) {
      EXPECT_GE(now.token_count, counts[now.label]);
      EXPECT_LE(now.durable_token_count, now.token_count);
      counts[now.label] = now.token_count;
    }
  };
  while (ended < kConversations) read();
  read();
  ++ended;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counts.size(), std::size_t{kConversations});
  for (const auto& [label, count] : counts) EXPECT_EQ(count, kPromptTokens + kSteps) << label;
  EXPECT_TRUE(registry.List().empty());
}

}  // namespace
}  // namespace cairn::compute
