#include "compute-node/service/kept_conversations.h"

#include <numeric>

#include <gtest/gtest.h>

#include "compute-node/service/stored_sessions.h"
#include "tests/unit/session/fake_kv_node.h"

namespace cairn::compute {
namespace {

constexpr const char* kLabel = "cairn:http 127.0.0.1:80";
constexpr const char* kCreator = "the daemon at this socket";
constexpr std::int64_t kSessionBytes = 100;

using Tokens = std::vector<std::int32_t>;

Tokens Numbers(std::int32_t first, std::int64_t count) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Forks, never gives an id twice, and can be away.
class ForkingNode : public FakeKvNode {
 public:
  ForkingNode() : FakeKvNode(1) {}

  absl::StatusOr<SessionRef> Create(const CreateSession& request) override {
    if (is_full) return ResourceExhausted("full");
    const std::int64_t id = next_id_++;
    sessions[id].created = request;
    sessions[id].created.uid = fmt::format("{:16}", ++uid_count_);
    if (request.parent_segment_id.value() != 0) {
      SetTokens(id, {sealed_.begin(), sealed_.begin() + request.parent_token_count});
    }
    return SessionRef{SessionId(id), sessions[id].created.uid};
  }
  absl::StatusOr<SealedSegment> Seal(const SessionRef& session) override {
    sealed_ = sessions.at(session.id.value()).committed.tokens;
    return SealedSegment{SegmentId(1), std::ssize(sealed_)};
  }
  absl::Status Delete(const SessionRef& session) override {
    if (is_away) return Unavailable("away");
    return FakeKvNode::Delete(session);
  }
  absl::StatusOr<KvStats> Stats() override {
    KvStats stats;
    stats.flash_size_bytes = 1000;
    stats.flash_used_bytes = std::ssize(sessions) * kSessionBytes;
    return stats;
  }

  SessionRef Add(const std::string& label, const Tokens& tokens,
                 const ModelIdentity& identity = {}) {
    CreateSession create;
    create.key = identity.key;
    create.layout = identity.layout;
    create.label = label;
    SessionRef session = Create(create).value();
    SetTokens(session.id.value(), tokens);
    return session;
  }
  void SetTokens(std::int64_t id, const Tokens& tokens) {
    sessions[id].committed.tokens = tokens;
    sessions[id].committed.token_count = std::ssize(tokens);
  }
  std::vector<std::int64_t> Ids() const {
    std::vector<std::int64_t> ids;
    for (const auto& [id, record] : sessions) ids.push_back(id);
    return ids;
  }

  bool is_away = false;
  bool is_full = false;

 private:
  std::int64_t next_id_ = 1;
  std::int64_t uid_count_ = 0;
  Tokens sealed_;
};

class KeptConversationsTest : public testing::Test {
 protected:
  KeptConversations Make(int count_max) {
    return {node_, served_, {policy_}, open_, kLabel, kCreator, count_max};
  }

  // A conversation of `tokens` that is kept. -> its id
  std::int64_t Keep(KeptConversations& kept, const Tokens& tokens) {
    const SessionRef session = node_.Add(kLabel, tokens);
    kept.Keep(session, served_.base, tokens, {});
    return session.id.value();
  }

  // The conversation and how much of `prompt` it has; it is given back. 0, 0: none.
  std::pair<std::int64_t, std::int64_t> Take(KeptConversations& kept, const Tokens& prompt) {
    const std::optional<StoredPrefix> taken = kept.Take(served_.base, prompt, never_);
    if (!taken.has_value()) return {0, 0};
    open_.Give(taken->session.id);
    kept.Keep(taken->session, served_.base, {prompt.begin(), prompt.begin() + taken->token_count},
              taken->seals);
    return {taken->session.id.value(), taken->token_count};
  }

  using Found = std::pair<std::int64_t, std::int64_t>;
  using Ids = std::vector<std::int64_t>;

  StopSignal never_;
  ForkingNode node_;
  ServedModel served_;
  PolicyChoice policy_;
  OpenConversations open_;
};

TEST_F(KeptConversationsTest, GoesOnWithWhatThePromptContinuesAndForksTheRest) {
  KeptConversations kept = Make(8);
  const std::int64_t id = Keep(kept, Numbers(0, 40));
  EXPECT_EQ(Take(kept, Numbers(0, 41)), Found(id, 40));
  // One token of the prompt is left to be computed.
  EXPECT_EQ(Take(kept, Numbers(0, 40)), Found(id + 1, 39));
  EXPECT_EQ(Take(kept, Numbers(0, kSharedTokensMin + 1)), Found(id + 2, kSharedTokensMin));
  EXPECT_EQ(Take(kept, Numbers(0, kSharedTokensMin)), Found(0, 0));
  EXPECT_EQ(Take(kept, {7}), Found(0, 0));
  // Of equals the one that needs no fork.
  EXPECT_EQ(Take(kept, Numbers(0, 40)), Found(id + 1, 39));
  EXPECT_EQ(node_.Ids(), Ids({id, id + 1, id + 2}));
}

TEST_F(KeptConversationsTest, DropsTheOldestAndKeepsWhatIsSomebodyElses) {
  const std::int64_t own = node_.Add("mine", Numbers(0, 40)).id.value();
  const std::int64_t other = node_.Add("cairn:http 127.0.0.1:81", Numbers(0, 40)).id.value();
  KeptConversations kept = Make(2);
  kept.Adopt();
  Keep(kept, Numbers(100, 40));
  const std::int64_t second = Keep(kept, Numbers(200, 40));
  const std::int64_t third = Keep(kept, Numbers(300, 40));
  EXPECT_EQ(node_.Ids(), Ids({own, other, second, third}));
  // The KV node comes back with another store, where somebody else has these ids.
  node_.sessions[second].created.label = "mine";
  EXPECT_EQ(Take(kept, Numbers(200, 50)), Found(0, 0));
  node_.sessions[third].created.label = "mine";
  kept.DropAll();
  EXPECT_EQ(node_.Ids(), Ids({own, other, second, third}));
}

// The KV node comes back with another store, whose conversation looks like the one that is kept.
TEST_F(KeptConversationsTest, WhatHasTheNumberOfAKeptOneIsLeftAlone) {
  KeptConversations kept = Make(1);
  const std::int64_t first = Keep(kept, Numbers(0, 40));
  node_.sessions[first].created.uid = std::string(kUidBytes, 'x');
  EXPECT_EQ(Take(kept, Numbers(0, 50)), Found(0, 0));
  EXPECT_EQ(Take(kept, Numbers(0, 30)), Found(0, 0));  // no fork of it either
  const std::int64_t second = Keep(kept, Numbers(100, 40));
  node_.sessions[second].created.uid = std::string(kUidBytes, 'y');
  Keep(kept, Numbers(200, 40));  // the one before gives way
  kept.DropAll();
  EXPECT_EQ(node_.Ids(), Ids({first, second}));
}

TEST_F(KeptConversationsTest, ForgetsWhatSomebodyWentOnWithOrDeleted) {
  KeptConversations kept = Make(8);
  const std::int64_t longer = Keep(kept, Numbers(100, 40));
  node_.SetTokens(longer, Numbers(100, 41));
  EXPECT_EQ(Take(kept, Numbers(100, 50)), Found(0, 0));
  const std::int64_t gone = Keep(kept, Numbers(200, 40));
  node_.sessions.erase(gone);
  EXPECT_EQ(Take(kept, Numbers(200, 50)), Found(0, 0));
  EXPECT_EQ(node_.Ids(), Ids({longer}));
}

TEST_F(KeptConversationsTest, DeletesLaterWhatCannotBeDeletedNow) {
  KeptConversations kept = Make(1);
  const std::int64_t read = Keep(kept, Numbers(100, 40));
  EXPECT_TRUE(open_.TryTake(SessionId(read)));
  const std::int64_t second = Keep(kept, Numbers(200, 40));
  EXPECT_EQ(node_.Ids(), Ids({read, second}));
  open_.Give(SessionId(read));
  node_.is_away = true;
  const std::int64_t third = Keep(kept, Numbers(300, 40));
  const std::int64_t empty = Keep(kept, {});
  EXPECT_EQ(node_.Ids(), Ids({read, second, third, empty}));
  node_.is_away = false;
  const std::int64_t fourth = Keep(kept, Numbers(400, 40));
  EXPECT_EQ(node_.Ids(), Ids({fourth}));
}

TEST_F(KeptConversationsTest, AForkThatNobodyTookIsKept) {
  KeptConversations kept = Make(8);
  const std::int64_t id = Keep(kept, Numbers(0, 40));
  EXPECT_TRUE(open_.TryTake(SessionId(id + 1)));
  StopSignal stopped;
  stopped.Cancel();
  EXPECT_FALSE(kept.Take(served_.base, Numbers(0, 30), stopped).has_value());
  open_.Give(SessionId(id + 1));
  EXPECT_EQ(Take(kept, Numbers(0, 30)), Found(id + 1, 29));
}

TEST_F(KeptConversationsTest, WhereNoForkCanBeMadeItStays) {
  KeptConversations kept = Make(8);
  const std::int64_t id = Keep(kept, Numbers(0, 40));
  node_.is_full = true;
  EXPECT_EQ(Take(kept, Numbers(0, 30)), Found(0, 0));
  EXPECT_EQ(Take(kept, Numbers(0, 50)), Found(id, 40));
}

TEST_F(KeptConversationsTest, ManyForksOfFewTokensAreComputedAnew) {
  for (const bool selects : {false, true}) {
    if (selects) policy_.name = "dense";
    KeptConversations kept = Make(1);
    Keep(kept, Numbers(0, 1000));
    // Each turn changes what the one before ended with, behind a token more.
    std::int64_t forks = 0;
    while (forks < 1000) {
      Tokens prompt = Numbers(0, 500 + forks);
      prompt.push_back(-1);
      const std::optional<StoredPrefix> taken = kept.Take(served_.base, prompt, never_);
      if (!taken.has_value()) break;
      EXPECT_EQ(taken->token_count, 500 + forks);
      ++forks;
      Tokens held = Numbers(0, 500 + forks);
      held.insert(held.end(), {-2, -2});
      node_.SetTokens(taken->session.id.value(), held);
      open_.Give(taken->session.id);
      kept.Keep(taken->session, served_.base, held, taken->seals);
    }
    EXPECT_EQ(forks, kForkDepthMin + (501 + forks) / kForkTokensMin) << selects;
    // An earlier beginning has fewer segments.
    EXPECT_GT(Take(kept, Numbers(0, 300)).first, 0);
    kept.DropAll();
  }
}

TEST_F(KeptConversationsTest, ASealedConversationIsAsDeepAsItHasSeals) {
  policy_.name = "dense";
  KeptConversations kept = Make(1);
  const std::int64_t id = Keep(kept, Numbers(0, 100));
  std::int64_t turns = 0;
  for (; turns < 1000; ++turns) {
    // Behind the prompt that is sealed comes its last token and the answer.
    const std::optional<StoredPrefix> taken =
        kept.Take(served_.base, Numbers(0, 110 + 10 * turns), never_);
    if (!taken.has_value()) break;
    EXPECT_EQ(taken->session.id.value(), id);
    PromptSeals seals = taken->seals;
    seals.Add(109 + 10 * turns);
    node_.SetTokens(id, Numbers(0, 110 + 10 * turns));
    open_.Give(taken->session.id);
    kept.Keep(taken->session, served_.base, Numbers(0, 110 + 10 * turns), seals);
  }
  EXPECT_EQ(turns, kForkDepthMin + (110 + 10 * turns) / kForkTokensMin);
  // Each prompt that came may come again, the last one too.
  for (const std::int64_t turn : {turns - 1, std::int64_t{0}}) {
    EXPECT_EQ(Take(kept, Numbers(0, 110 + 10 * turn)).second, 109 + 10 * turn);
  }
}

TEST_F(KeptConversationsTest, APromptThatComesAgainGoesOnWhereItWasSealed) {
  policy_.name = "dense";
  KeptConversations kept = Make(8);
  const auto keep = [&](std::int64_t count, const std::vector<std::int64_t>& at, bool fresh) {
    PromptSeals seals;
    for (const std::int64_t seal : at) fresh ? seals.AddFresh(seal) : seals.Add(seal);
    const SessionRef session = node_.Add(kLabel, Numbers(0, count));
    kept.Keep(session, served_.base, Numbers(0, count), seals);
    return session.id.value();
  };
  const auto origin = [&](std::int64_t count) {
    const auto taken = kept.Take(served_.base, Numbers(0, count), never_);
    if (!taken.has_value()) return std::int64_t{0};
    open_.Give(taken->session.id);
    // Out of the way of the next one.
    if (taken->session.id != taken->origin) kept.Keep(taken->session, served_.base, {}, {});
    return taken->origin.value();
  };
  const std::int64_t longer = keep(90, {}, false);
  EXPECT_EQ(origin(61), longer);
  const std::int64_t sealed = keep(95, {60, 80}, false);
  EXPECT_EQ(origin(61), sealed);
  EXPECT_EQ(origin(81), sealed);
  // One that a new conversation would be like before one that is not.
  const std::int64_t fresh = keep(99, {60}, true);
  EXPECT_EQ(origin(61), fresh);
  EXPECT_EQ(origin(81), sealed);
  // More tokens before everything else.
  EXPECT_EQ(origin(98), fresh);
  policy_.name = "full";
  KeptConversations all = Make(8);
  for (const std::int64_t count : {70, 60}) {
    PromptSeals seals;
    if (count == 70) seals.AddFresh(60);
    all.Keep(node_.Add(kLabel, Numbers(0, count)), served_.base, Numbers(0, count), seals);
  }
  // All are alike: no fork is needed.
  const auto taken = all.Take(served_.base, Numbers(0, 61), never_);
  EXPECT_EQ(taken->session.id, taken->origin);
}

TEST_F(KeptConversationsTest, MakesAsMuchRoomAsIsWanted) {
  KeptConversations kept = Make(8);
  for (std::int32_t number = 0; number < 7; ++number) Keep(kept, Numbers(number * 100, 40));
  kept.MakeRoom(node_.Stats().value(), 50);
  EXPECT_EQ(node_.Ids(), Ids({1, 2, 3, 4, 5, 6, 7}));
  // What the KV node frees counts, not what its list says of a conversation.
  kept.MakeRoom(node_.Stats().value(), 250);
  EXPECT_EQ(node_.Ids(), Ids({3, 4, 5, 6, 7}));
  kept.MakeRoom(node_.Stats().value(), 5000);
  EXPECT_EQ(node_.Ids(), Ids({}));
}

TEST_F(KeptConversationsTest, TheNextStartFindsWhatIsKeptUnlessNoneMayBe) {
  const std::int64_t own = node_.Add("mine", Numbers(0, 40)).id.value();
  const std::int64_t id = node_.Add(kLabel, Numbers(0, 40)).id.value();
  node_.Add(kLabel, {});
  KeptConversations kept = Make(8);
  kept.Adopt();
  EXPECT_EQ(node_.Ids(), Ids({own, id}));
  EXPECT_EQ(Take(kept, Numbers(0, 50)), Found(id, 40));
  KeptConversations none = Make(0);
  none.Adopt();
  EXPECT_EQ(node_.Ids(), Ids({own}));
}

TEST_F(KeptConversationsTest, TheNextStartDropsWhatAnotherPolicyMade) {
  PolicyChoice dense;
  dense.name = "dense";
  PolicyChoice denser = dense;
  denser.selection.select_percent = 6;
  const std::int64_t full = node_.Add(kLabel, Numbers(0, 40)).id.value();
  const std::int64_t wanted = node_.Add(kLabel, Numbers(100, 40)).id.value();
  const std::int64_t other = node_.Add(kLabel, Numbers(200, 40)).id.value();
  const std::int64_t damaged = node_.Add(kLabel, Numbers(300, 40)).id.value();
  node_.sessions[wanted].committed.policy = WrapPolicyState(dense, {1, "state"});
  node_.sessions[other].committed.policy = WrapPolicyState(denser, {1, "state"});
  node_.sessions[damaged].committed.policy = {kWrappedPolicyVersion, "x"};
  EXPECT_EQ(node_.Ids(), Ids({full, wanted, other, damaged}));
  policy_ = dense;
  KeptConversations kept = Make(8);
  kept.Adopt();
  EXPECT_EQ(node_.Ids(), Ids({wanted}));
  EXPECT_EQ(Take(kept, Numbers(100, 50)), Found(wanted, 40));
}

// With another adapter, or the same one at another scale, tokens have other keys and values.
class KeptIdentitiesTest : public KeptConversationsTest {
 protected:
  KeptIdentitiesTest() { served_.adapter_digests = {std::string(kDigestBytes, 'a')}; }

  ModelIdentity WithAdapter(char digest, float scale) const {
    ModelIdentity identity = served_.base;
    identity.key.adapter_digest = std::string(kDigestBytes, digest);
    identity.key.adapter_scale = scale;
    return identity;
  }
  // What is gone on with for a request of this identity, and of which identity it is.
  std::int64_t OriginOf(KeptConversations& kept, const ModelIdentity& identity,
                        const Tokens& prompt) {
    const auto taken = kept.Take(identity, prompt, never_);
    if (!taken.has_value()) return 0;
    EXPECT_EQ(node_.sessions.at(taken->session.id.value()).created.key, identity.key);
    open_.Give(taken->session.id);
    kept.Keep(taken->session, identity, {prompt.begin(), prompt.begin() + taken->token_count},
              taken->seals);
    return taken->origin.value();
  }
};

TEST_F(KeptIdentitiesTest, ABeginningIsOnlyForRequestsOfItsOwnIdentity) {
  KeptConversations kept = Make(8);
  const ModelIdentity half = WithAdapter('a', 0.5F);
  const ModelIdentity whole = WithAdapter('a', 1);
  const SessionRef of_half = node_.Add(kLabel, Numbers(0, 40), half);
  kept.Keep(of_half, half, Numbers(0, 40), {});
  for (const ModelIdentity& other : {served_.base, whole, WithAdapter('b', 0.5F)}) {
    EXPECT_EQ(OriginOf(kept, other, Numbers(0, 41)), 0);
    EXPECT_EQ(OriginOf(kept, other, Numbers(0, 30)), 0);  // no fork either
  }
  const SessionRef of_base = node_.Add(kLabel, Numbers(0, 40), served_.base);
  kept.Keep(of_base, served_.base, Numbers(0, 40), {});
  EXPECT_EQ(OriginOf(kept, half, Numbers(0, 41)), of_half.id.value());
  EXPECT_EQ(OriginOf(kept, served_.base, Numbers(0, 41)), of_base.id.value());
  EXPECT_EQ(OriginOf(kept, half, Numbers(0, 30)), of_half.id.value());
  EXPECT_EQ(OriginOf(kept, whole, Numbers(0, 41)), 0);
}

TEST_F(KeptIdentitiesTest, TheNextStartFindsEachWithItsOwnIdentity) {
  const ModelIdentity half = WithAdapter('a', 0.5F);
  const std::int64_t of_half = node_.Add(kLabel, Numbers(0, 40), half).id.value();
  const std::int64_t of_base = node_.Add(kLabel, Numbers(0, 40), served_.base).id.value();
  node_.Add(kLabel, Numbers(0, 40), WithAdapter('b', 1));  // which is not loaded
  KeptConversations kept = Make(8);
  kept.Adopt();
  EXPECT_EQ(node_.Ids(), Ids({of_half, of_base}));
  EXPECT_EQ(OriginOf(kept, half, Numbers(0, 41)), of_half);
  EXPECT_EQ(OriginOf(kept, served_.base, Numbers(0, 41)), of_base);
  EXPECT_EQ(OriginOf(kept, WithAdapter('a', 1), Numbers(0, 41)), 0);
}

}  // namespace
}  // namespace cairn::compute
