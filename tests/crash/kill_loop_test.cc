// kill -9 of the real daemon at random moments, again and again: the stopped store must be whole
// each time (cairn-kv-util verify), and after the restart every session must show its last
// acknowledged checkpoint, or one that was under way, to the byte.
//
// CAIRN_CRASH_KILLS=N       kills; default 100
// CAIRN_CRASH_SECONDS=N     ends after this time, however many there were; default 0: no end
// CAIRN_TEST_SEED=N         another sequence of operations and moments; default 1
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <iostream>
#include <thread>

#include <gtest/gtest.h>

#include "common/log/log.h"
#include "compute-node/kv_client/grpc_kv_node.h"
#include "tests/crash/crash_world.h"
#include "tests/integration/kv_node_process.h"
#include "tests/tools/process.h"

namespace cairn::test {
namespace {

std::int64_t FromEnvironment(const char* name, std::int64_t fallback) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any thread
  return text == nullptr ? fallback : std::atoll(text);
}

class KillLoopTest : public testing::Test {
 protected:
  KillLoopTest() : world_(seed_) {
    node_.SetConfig("pending_bytes_max", "65536");  // so that much is placed
    node_.SetConfig("extent_file_bytes", "16777216");
  }

  // Exit code and output of cairn-kv-util verify.
  std::pair<int, std::string> Verify() const {
    Process util({BinaryPath("cairn-kv-util"), "verify", "--store", node_.data_dir()});
    const auto code = util.Wait();
    return {code.value_or(-1), util.output()};
  }

  // Mostly while operations run, sometimes in the middle of the first few, or long after.
  std::chrono::microseconds Moment() {
    const std::int64_t range_us[] = {3000, 20000, 60000, 60000, 150000};
    return std::chrono::microseconds(world_.Random(range_us[world_.Random(5)]));
  }

  // Works until the node is killed behind its back.
  void WorkUntilKilled() {
    std::promise<void> give_up;
    std::atomic<bool> killing = false;
    std::thread killer([&, wait = give_up.get_future(), moment = Moment()]() mutable {
      wait.wait_for(moment);
      killing = true;
      node_.Kill();
    });
    absl::Status status;
    while (status.ok()) status = world_.Step();
    const bool expected = killing;
    give_up.set_value();
    killer.join();
    EXPECT_TRUE(expected) << "before the kill: " << status;
    EXPECT_EQ(Message(status).find("WRONG"), std::string::npos) << status;
    EXPECT_EQ(Message(status).find("LOST"), std::string::npos) << status;
    world_.Disconnect();
  }

  void Connect() {
    compute::KvClientOptions options;
    // A node that does not answer was killed: nobody starts it before this client has given up.
    options.reconnect_time_max = std::chrono::milliseconds(50);
    options.use_arena = world_.Random(3) != 0;
    auto node = compute::GrpcKvNode::Connect(node_.socket_path(), options);
    ASSERT_TRUE(node.ok()) << node.status();
    const absl::Status connected = world_.Connect(*std::move(node));
    ASSERT_TRUE(connected.ok()) << connected;
  }

  // The kill hits a node that is starting.
  void KillWhileStarting() {
    Process process(node_.Command());
    std::promise<void> never;
    never.get_future().wait_for(std::chrono::microseconds(world_.Random(60000)));
    process.Kill();
  }

  const std::uint64_t seed_ = static_cast<std::uint64_t>(FromEnvironment("CAIRN_TEST_SEED", 1));
  kv::CrashWorld world_;
  KvNodeProcess node_;
};

TEST_F(KillLoopTest, EveryKillLeavesAWholeStoreAndEveryAcknowledgedCheckpoint) {
  ASSERT_TRUE(InitLogging("kill_loop_test", "error").ok());
  const std::int64_t kills_max = FromEnvironment("CAIRN_CRASH_KILLS", 100);
  const std::int64_t seconds_max = FromEnvironment("CAIRN_CRASH_SECONDS", 0);
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t kills = 0;
  std::int64_t start_kills = 0;
  while (kills < kills_max && !HasFailure()) {
    const auto elapsed = std::chrono::steady_clock::now() - begin;
    if (seconds_max > 0 && elapsed > std::chrono::seconds(seconds_max)) break;
    SCOPED_TRACE(fmt::format("kill {} with CAIRN_TEST_SEED={}", kills, seed_));
    const auto ready = node_.Start();
    ASSERT_TRUE(ready.ok()) << ready.status();
    if (kills == 0) {
      const auto [in_use, said] = Verify();
      EXPECT_EQ(in_use, 2) << said;
      EXPECT_NE(said.find("another cairn-kv-node uses"), std::string::npos) << said;
    }
    ASSERT_NO_FATAL_FAILURE(Connect());
    WorkUntilKilled();
    ++kills;
    if (world_.Random(10) == 0) {
      KillWhileStarting();
      ++start_kills;
    }
    const auto [code, said] = Verify();
    EXPECT_EQ(code, 0) << said;
  }
  std::cout << "kills=" << kills << " of starting nodes=" << start_kills;
  for (const auto& [name, count] : world_.counts()) std::cout << ", " << name << "=" << count;
  std::cout << "\n";
  EXPECT_GT(kills, 0);
}

}  // namespace
}  // namespace cairn::test
