// Single events on an engine that is stepped.
#include <gtest/gtest.h>

#include "tests/sim/sim_node.h"
#include "tests/unit/engine/engine_harness.h"

namespace cairn::sim {
namespace {

class SteppedEngineTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(node_.Start(store_, kv::EngineOptions(), now_).ok()); }

  // Steps until the engine has answered.
  template <typename T, typename Start>
  absl::StatusOr<T> Await(Start start) {
    std::optional<absl::StatusOr<T>> answer;
    start([&](absl::StatusOr<T> result) { answer = std::move(result); });
    while (!answer) {
      node_.meta().Step();
      node_.core().RunOnce(now_);
    }
    return *std::move(answer);
  }

  // Of commits that fail, what is doubtful turns out to be there.
  SimWire wire_;
  SimStore store_{1, 'a', kLargeStorePages};
  SimNode node_{wire_, [](std::int64_t /*below*/) { return 0; }};
  kv::EngineTime now_{std::chrono::seconds(1000)};
};

TEST_F(SteppedEngineTest, ACreationThatSeemedToFailIsFoundWhenItIsRepeated) {
  CreateSession request;
  request.key = kv::SmallKey();
  request.layout = kv::SmallLayout();
  request.uid = std::string(kUidBytes, 'u');
  const auto create = [&] {
    return Await<SessionRef>(
        [&](auto done) { node_.core().Create(kDefaultApp, request, std::move(done)); });
  };
  node_.meta().FillDisk();
  EXPECT_TRUE(absl::IsResourceExhausted(create().status()));
  EXPECT_TRUE(absl::IsResourceExhausted(create().status()));
  node_.meta().FreeDisk();
  const absl::StatusOr<SessionRef> created = create();
  ASSERT_TRUE(created.ok()) << created.status();
  const auto sessions = Await<std::vector<SessionInfo>>([&](auto done) {
    node_.core().ListSessions(kDefaultApp, ListDetail::kRows, std::move(done));
  });
  ASSERT_TRUE(sessions.ok());
  ASSERT_EQ(sessions->size(), 1U);
  EXPECT_EQ(RefTo(sessions->front()), *created);
}

TEST_F(SteppedEngineTest, ACreationThatIsRepeatedLateMakesASessionThatStays) {
  CreateSession request;
  request.key = kv::SmallKey();
  request.layout = kv::SmallLayout();
  request.uid = std::string(kUidBytes, 'u');
  request.lifetime = SessionLifetime::kEphemeral;
  const auto create = [&] {
    return Await<SessionRef>(
        [&](auto done) { node_.core().Create(kDefaultApp, request, std::move(done)); });
  };
  const auto rest = [&] {
    for (int pass = 0; pass < 100; ++pass) {
      node_.meta().Step();
      node_.core().RunOnce(now_);
    }
  };
  const auto first = create();
  ASSERT_TRUE(first.ok()) << first.status();
  // Asked for again just before it would go.
  now_ += kv::EngineOptions().abandoned_after - std::chrono::milliseconds(1);
  EXPECT_EQ(create(), first);
  now_ += std::chrono::milliseconds(2);
  rest();
  EXPECT_EQ(create(), first);
  // And when it has gone.
  now_ += kv::EngineOptions().abandoned_after;
  rest();
  const auto again = create();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_NE(again->id, first->id);
  const auto attachment = Await<Attachment>([&](auto done) {
    const AttachAttempt attempt{std::string(kUidBytes, 'o'), 1};
    node_.core().OpenSession(kDefaultApp, {*again, attempt}, std::move(done));
  });
  EXPECT_TRUE(attachment.ok()) << attachment.status();
}

TEST_F(SteppedEngineTest, AnAttachmentWaitsForItsChannelAsLongAsTheClockSays) {
  CreateSession request;
  request.key = kv::SmallKey();
  request.layout = kv::SmallLayout();
  const auto created = Await<SessionRef>(
      [&](auto done) { node_.core().Create(kDefaultApp, request, std::move(done)); });
  ASSERT_TRUE(created.ok()) << created.status();
  const auto open = [&](std::int64_t number) {
    return Await<Attachment>([&](auto done) {
      const AttachAttempt attempt{std::string(kUidBytes, 'o'), number};
      node_.core().OpenSession(kDefaultApp, {*created, attempt}, std::move(done));
    });
  };
  const auto first = open(1);
  ASSERT_TRUE(first.ok()) << first.status();
  now_ += kv::EngineOptions().channel_wait_max - std::chrono::milliseconds(200);
  const auto same = open(2);  // the owner's own, which nobody bound
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->epoch, first->epoch);
  now_ += kv::EngineOptions().channel_wait_max + std::chrono::milliseconds(200);
  node_.core().RunOnce(now_);
  const auto other = open(3);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_GT(other->epoch, first->epoch);
}

}  // namespace
}  // namespace cairn::sim
