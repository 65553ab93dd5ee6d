// A KV node that is killed at any moment: the store opens again at the last checkpoint, and a
// client that is still there goes on as if nothing had happened.
#include <atomic>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>

#include "tests/integration/kv_node_process.h"
#include "tests/tools/rng.h"
#include "tests/tools/seed.h"

namespace cairn::test {
namespace {

using compute::GrpcKvNode;
using compute::KvClientOptions;
using compute::KvSession;
using compute::ReplayMode;

class KvNodeCrashTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto ready = node_.Start();
    ASSERT_TRUE(ready.ok()) << ready.status();
    Connect();
  }
  void Connect() {
    KvClientOptions options;
    options.reconnect_time_max = kProcessTimeMax;
    auto connected = GrpcKvNode::Connect(node_.socket_path(), options);
    ASSERT_TRUE(connected.ok()) << connected.status();
    client_ = *std::move(connected);
  }
  void KillAndRestart() {
    node_.Kill();
    const auto ready = node_.Start();
    ASSERT_TRUE(ready.ok()) << ready.status();
  }

  KvNodeProcess node_;
  std::unique_ptr<GrpcKvNode> client_;
  Rng rng_{TestSeed()};
};

TEST_F(KvNodeCrashTest, KilledNodeGetsEverythingAgainThatNoCheckpointCovers) {
  const auto session = client_->Open(client_->Create(Talk::Request()).value()).value();
  std::int64_t token_count = 0;
  std::int64_t covered = 0;
  for (int kill = 0; kill < 10; ++kill) {
    const auto before = static_cast<std::int64_t>(rng_.Below(60));
    ASSERT_TRUE(Talk::Append(session.get(), token_count, before).ok());
    token_count += before;
    if (rng_.Below(2) == 1) {
      // The kill may hit before, in or after it.
      ASSERT_TRUE(session->Send(Talk::CheckpointAt(token_count, covered)).ok());
      covered = token_count;
    }
    ASSERT_NO_FATAL_FAILURE(KillAndRestart());
    const auto done = session->WaitForCheckpoint();
    ASSERT_TRUE(done.ok()) << done.status();
    ASSERT_TRUE(Talk::Holds(session.get(), token_count)) << "after kill " << kill;
  }
  ASSERT_TRUE(Talk::TakeCheckpoint(session.get(), token_count, covered).ok());
  EXPECT_EQ(session->replay_bytes(), 0);
}

TEST_F(KvNodeCrashTest, KillsWhileTheClientNeverPausesLoseNothing) {
  const auto session = client_->Open(client_->Create(Talk::Request()).value()).value();
  constexpr int kKills = 8;
  // Each kill waits until the client has got somewhere, so that it hits work in progress.
  std::atomic<std::int64_t> progress = 0;
  std::atomic<bool> done = false;
  std::thread killer([&] {
    for (int kill = 0; kill < kKills; ++kill) {
      const std::int64_t until = progress.load() + 1 + static_cast<std::int64_t>(rng_.Below(20));
      std::int64_t seen = progress.load();
      while (seen < until) {
        progress.wait(seen);
        seen = progress.load();
      }
      KillAndRestart();
    }
    done = true;
  });
  std::int64_t token_count = 0;
  std::int64_t covered = 0;
  // Once more after the last restart.
  for (bool last = false; !last;) {
    last = done;
    ASSERT_TRUE(Talk::Append(session.get(), token_count, 5).ok());
    token_count += 5;
    ASSERT_TRUE(Talk::Holds(session.get(), token_count));
    if (token_count % 35 == 0) {
      const auto checkpoint = Talk::TakeCheckpoint(session.get(), token_count, covered);
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
      covered = token_count;
    }
    ++progress;
    progress.notify_all();
  }
  killer.join();
  EXPECT_TRUE(Talk::Holds(session.get(), token_count));
  EXPECT_GE(session->reconnect_count(), kKills);
}

TEST_F(KvNodeCrashTest, NewClientFindsTheLastCheckpointAfterAKill) {
  const SessionId id = client_->Create(Talk::Request())->id;
  std::int64_t acknowledged = 0;
  for (int kill = 0; kill < 10; ++kill) {
    std::int64_t attempted = acknowledged;
    {
      auto opened = client_->Open({id});
      ASSERT_TRUE(opened.ok()) << opened.status();
      KvSession& session = **opened;
      ASSERT_EQ(session.attachment().token_count, acknowledged) << "kill " << kill;
      ASSERT_TRUE(Talk::Holds(&session, acknowledged)) << "kill " << kill;
      session.SetReplayMode(ReplayMode::kNothing);
      const auto count = 1 + static_cast<std::int64_t>(rng_.Below(200));
      ASSERT_TRUE(Talk::Append(&session, acknowledged, count).ok());
      if (rng_.Below(3) != 0) {
        attempted = acknowledged + count;
        ASSERT_TRUE(session.Send(Talk::CheckpointAt(attempted, acknowledged)).ok());
        if (rng_.Below(2) == 1) {
          ASSERT_TRUE(session.WaitForCheckpoint().ok());
          acknowledged = attempted;
        }
      }
      node_.Kill();
    }
    const auto ready = node_.Start();
    ASSERT_TRUE(ready.ok()) << ready.status();
    Connect();
    const std::int64_t found = client_->List(ListDetail::kRows)->front().token_count;
    EXPECT_TRUE(found == acknowledged || found == attempted)
        << found << " of " << acknowledged << " or " << attempted;
    acknowledged = found;
  }
}

TEST_F(KvNodeCrashTest, SecondSignalEndsTheNodeAtOnceWithCode130) {
  // Both are pending when it runs again, so the second cannot come too late.
  node_.process().Hang();
  node_.process().Signal(SIGTERM);
  node_.process().Signal(SIGINT);
  node_.process().Signal(SIGCONT);
  const auto code = node_.process().Wait();
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 130);
}

}  // namespace
}  // namespace cairn::test
