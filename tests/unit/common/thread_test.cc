#include "common/base/thread.h"

#include <pthread.h>
#include <sched.h>

#include <array>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "common/base/mutex.h"

namespace cairn {
namespace {

TEST(ThreadTest, CarriesItsNameAndBlocksSignals) {
  std::string name;
  int term_blocked = 0;
  std::thread thread = StartThread("kv-engine", [&] {
    std::array<char, 16> buffer{};
    pthread_getname_np(pthread_self(), buffer.data(), buffer.size());
    name = buffer.data();
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    term_blocked = sigismember(&blocked, SIGTERM);
  });
  thread.join();
  EXPECT_EQ(name, "kv-engine");
  EXPECT_EQ(term_blocked, 1);
}

TEST(ThreadTest, RealtimePriorityIsOfItsThreadAndThoseThatItStarts) {
  const auto policy = [] {
    sched_param parameters{};
    int now = -1;
    EXPECT_EQ(pthread_getschedparam(pthread_self(), &now, &parameters), 0);
    return now;
  };
  EXPECT_TRUE(RealtimePriority(0).status().ok());
  int inherited = -1;
  {
    const RealtimePriority realtime(1);
    if (!realtime.status().ok()) {
      EXPECT_EQ(realtime.status().code(), absl::StatusCode::kPermissionDenied);
      EXPECT_EQ(policy(), SCHED_OTHER);
      GTEST_SKIP() << "no realtime priorities here: " << realtime.status();
    }
    EXPECT_EQ(policy(), SCHED_RR);
    StartThread("inherits", [&] { inherited = policy(); }).join();
  }
  EXPECT_EQ(inherited, SCHED_RR);
  EXPECT_EQ(policy(), SCHED_OTHER);
}

TEST(ThreadDeathTest, ANameThatTheKernelWouldCutIsAProgrammerError) {
  EXPECT_DEATH(StartThread("sixteen-letters!", [] {}), "against");
}

TEST(CondVarTest, WakesTheWaiterAndHoldsTheLockAgain) {
  Mutex mutex;
  CondVar changed;
  int turn = 0;  // guarded by mutex
  std::thread other = StartThread("other", [&] {
    MutexLock lock(mutex);
    while (turn != 1) changed.Wait(mutex);
    turn = 2;
    changed.NotifyAll();
  });
  {
    MutexLock lock(mutex);
    turn = 1;
    changed.NotifyAll();
    while (turn != 2) changed.Wait(mutex);
  }
  other.join();
  EXPECT_EQ(turn, 2);
}

TEST(CondVarTest, WaitUntilTellsThatTheDeadlinePassed) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(mutex);
  EXPECT_FALSE(never.WaitUntil(mutex, std::chrono::steady_clock::now()));
}

}  // namespace
}  // namespace cairn
