// What the service asks of the KV node about whole conversations.
#include "compute-node/service/stored_sessions.h"

#include <gtest/gtest.h>

#include "tests/unit/session/fake_kv_node.h"

namespace cairn::compute {
namespace {

TEST(StoredSessionsTest, OnlyWhatAnEarlierProcessLeftIsDeleted) {
  FakeKvNode node(1);
  const auto create = [&node](const std::string& creator, SessionLifetime lifetime) {
    CreateSession request;
    request.creator = creator;
    request.lifetime = lifetime;
    return node.Create(request)->id.value();
  };
  const std::int64_t ephemeral = create("this", SessionLifetime::kEphemeral);
  const std::int64_t unfinished = create("this", SessionLifetime::kFromCheckpoint);
  const std::int64_t permanent = create("this", SessionLifetime::kPermanent);
  const std::int64_t attached = create("this", SessionLifetime::kEphemeral);
  const std::int64_t others = create("another", SessionLifetime::kEphemeral);
  node.sessions[attached].attached = true;
  DeleteLeftBehind(node, "this");
  EXPECT_FALSE(node.sessions.contains(ephemeral));
  EXPECT_FALSE(node.sessions.contains(unfinished));
  EXPECT_TRUE(node.sessions.contains(permanent));
  EXPECT_TRUE(node.sessions.contains(attached));
  EXPECT_TRUE(node.sessions.contains(others));
}

TEST(StoredSessionsTest, ASessionIsFoundByItsNumberAndUid) {
  FakeKvNode node(1);
  const SessionRef session = *node.Create({});
  EXPECT_EQ(FindSession(node, {session.id})->uid, session.uid);
  EXPECT_EQ(FindSession(node, session)->session_id, session.id);
  const SessionRef wrong{session.id, std::string(kUidBytes, 'w')};
  EXPECT_TRUE(absl::IsNotFound(FindSession(node, wrong).status()));
  EXPECT_TRUE(absl::IsNotFound(FindSession(node, {SessionId(99)}).status()));
}

}  // namespace
}  // namespace cairn::compute
