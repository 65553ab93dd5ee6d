#include "common/base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
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

TEST(ThreadTest, AThreadForWhichThereIsNoRoomIsAnError) {
  pthread_attr_t before;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  pthread_attr_t huge;
  ASSERT_EQ(pthread_getattr_default_np(&huge), 0);
  // More than an address space has.
  ASSERT_EQ(pthread_attr_setstacksize(&huge, std::size_t{1} << 60), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  const absl::Status status = TryStartThread("kv-engine", [] {}).status();
  ASSERT_EQ(pthread_setattr_default_np(&before), 0);
  pthread_attr_destroy(&huge);
  pthread_attr_destroy(&before);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  absl::StatusOr<std::thread> thread = TryStartThread("kv-engine", [] {});
  ASSERT_TRUE(thread.ok()) << thread.status();
  thread->join();
}

TEST(ThreadTest, RealtimePriorityIsOfItsThreadAndThoseThatItStarts) {
  const auto policy = [] {
    sched_param parameters{};
    int now = -1;
    EXPECT_EQ(pthread_getschedparam(pthread_self(), &now, &parameters), 0);
    return now;
  };
  EXPECT_TRUE(ServingPriority(0).status().ok());
  int inherited = -1;
  {
    const ServingPriority realtime(1);
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

// The calling thread's time slice, 0 where Linux does not tell.
std::uint64_t SliceNanoseconds() {
  struct {
    std::uint32_t size_bytes;
    std::uint32_t policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime;
    std::uint64_t deadline;
    std::uint64_t period;
  } attributes{};
  EXPECT_EQ(syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0U), 0);
  return attributes.runtime;
}

TEST(ThreadTest, AShortSliceIsOfItsThreadAndThoseThatItStarts) {
  const std::uint64_t before = SliceNanoseconds();
  std::uint64_t inside = 0;
  std::uint64_t inherited = 0;
  {
    const ServingPriority serving(0);
    inside = SliceNanoseconds();
    StartThread("inherits", [&] { inherited = SliceNanoseconds(); }).join();
  }
  EXPECT_EQ(SliceNanoseconds(), before);
  EXPECT_EQ(inherited, inside);
  if (before == 0) GTEST_SKIP() << "this Linux has no slices of single threads";
  EXPECT_LT(inside, before);
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
