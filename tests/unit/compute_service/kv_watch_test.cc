#include "compute-node/service/kv_watch.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "tests/tools/says.h"
#include "tests/unit/session/fake_kv_node.h"

namespace cairn::compute {
namespace {

class WatchedNode final : public FakeKvNode {
 public:
  WatchedNode() : FakeKvNode(1) {}
  absl::Status Probe(std::chrono::milliseconds) override {
    ++probe_count;
    return away ? Unavailable("nobody is there") : absl::OkStatus();
  }

  std::atomic<bool> away{false};
  std::atomic<int> probe_count{0};
};

TEST(KvWatchTest, ANodeThatGoesAwayAndComesBackIsToldEachTimeOnce) {
  WatchedNode node;
  DaemonState state;
  std::atomic<int> gone_count{0};
  std::atomic<int> back_count{0};
  const KvWatch watch(
      node, state, [&](bool serves) { ++(serves ? back_count : gone_count); },
      std::chrono::milliseconds(1));
  while (node.probe_count < 3) std::this_thread::yield();
  EXPECT_TRUE(state.kv_status().ok());
  EXPECT_EQ(gone_count + back_count, 0);
  for (int i = 1; i <= 2; ++i) {
    node.away = true;
    while (gone_count < i) std::this_thread::yield();
    EXPECT_EQ(state.kv_status().code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(test::Says(state.kv_status(), "nobody is there"));
    const int seen = node.probe_count;
    while (node.probe_count < seen + 3) std::this_thread::yield();
    EXPECT_EQ(gone_count, i);
    node.away = false;
    while (back_count < i) std::this_thread::yield();
    EXPECT_TRUE(state.kv_status().ok());
  }
}

TEST(KvWatchTest, WhoAsksWhileItDidNotServeHearsWhetherItDoesNow) {
  DaemonState state;
  auto runtime = std::make_shared<Runtime>();
  auto owned = std::make_unique<WatchedNode>();
  WatchedNode& node = *owned;
  runtime->node = std::move(owned);
  state.SetReady(runtime);
  EXPECT_TRUE(state.KvStatusNow().ok());
  EXPECT_EQ(node.probe_count, 0);
  state.SetKvStatus(Unavailable("as of the last look"));
  node.away = true;
  EXPECT_TRUE(test::Says(state.KvStatusNow(), "as of the last look"));
  node.away = false;
  EXPECT_TRUE(state.KvStatusNow().ok());
  EXPECT_FALSE(state.kv_status().ok());  // the watch tells all that hangs on it
}

TEST(KvWatchTest, WhileItIsWaitedForThatIsWhatLoadingMeans) {
  DaemonState state;
  EXPECT_TRUE(test::Says(state.runtime().status(), "still loading the model"));
  state.SetKvStatus(Unavailable("waiting for cairn-kv-node at /run/s"));
  EXPECT_TRUE(test::Says(state.runtime().status(), "loading: waiting for cairn-kv-node at /run/s"));
  EXPECT_TRUE(test::Says(state.KvStatusNow(), "waiting for cairn-kv-node at /run/s"));
}

TEST(KvWatchTest, ItEndsWithoutWaitingForItsNextLook) {
  WatchedNode node;
  DaemonState state;
  const KvWatch watch(
      node, state, [](bool) {}, std::chrono::hours(1));
}

}  // namespace
}  // namespace cairn::compute
