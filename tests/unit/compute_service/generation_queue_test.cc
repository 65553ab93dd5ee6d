#include "compute-node/service/generation_queue.h"

#include <atomic>
#include <future>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/mutex.h"

namespace cairn::compute {
namespace {

std::shared_ptr<StopSignal> NewStop() { return std::make_shared<StopSignal>(); }

TEST(GenerationQueueTest, RunsJobsInTheirOrder) {
  std::vector<int> order;
  {
    GenerationQueue queue(1);
    for (int i = 0; i < 10; ++i) {
      EXPECT_TRUE(queue.Submit(NewStop(), [&order, i] { order.push_back(i); }).ok());
    }
  }
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(GenerationQueueTest, RunsAsManyAtOnceAsItMay) {
  constexpr int kAtOnce = 3;
  std::promise<void> all_started;
  std::shared_future<void> release = all_started.get_future().share();
  std::atomic<int> started{0};
  GenerationQueue queue(kAtOnce);
  for (int i = 0; i < kAtOnce; ++i) {
    ASSERT_TRUE(queue
                    .Submit(NewStop(),
                            [&] {
                              if (++started == kAtOnce) all_started.set_value();
                              release.wait();
                            })
                    .ok());
  }
  release.wait();
  EXPECT_TRUE(queue.Stop(std::chrono::minutes(10)));
  EXPECT_EQ(started, kAtOnce);
}

TEST(GenerationQueueTest, RefusesMoreThanItsLimitAndNotForCancelledOnes) {
  std::promise<void> started;
  std::promise<void> release;
  GenerationQueue queue(1);
  ASSERT_TRUE(queue
                  .Submit(NewStop(),
                          [&] {
                            started.set_value();
                            release.get_future().wait();
                          })
                  .ok());
  started.get_future().wait();
  std::vector<std::shared_ptr<StopSignal>> stops;
  for (int i = 0; i < kGenerationsWaitingMax; ++i) {
    stops.push_back(NewStop());
    EXPECT_TRUE(queue.Submit(stops.back(), [] {}).ok());
  }
  EXPECT_EQ(queue.Submit(NewStop(), [] {}).code(), absl::StatusCode::kResourceExhausted);
  stops[3]->Cancel();
  EXPECT_TRUE(queue.Submit(NewStop(), [] {}).ok());
  release.set_value();
}

TEST(GenerationQueueTest, TurnsOfOneConversationRunInOrderAndHoldUpNoOther) {
  std::promise<void> started;
  std::promise<void> release;
  std::promise<void> other_ran;
  Mutex mutex;
  std::vector<int> order;
  const auto note = [&](int turn) {
    const MutexLock lock(mutex);
    order.push_back(turn);
  };
  GenerationQueue queue(3);
  ASSERT_TRUE(queue
                  .Submit(
                      NewStop(),
                      [&] {
                        started.set_value();
                        release.get_future().wait();
                        note(0);
                      },
                      SessionId(7))
                  .ok());
  started.get_future().wait();
  for (int i = 1; i < 6; ++i) {
    ASSERT_TRUE(queue
                    .Submit(
                        NewStop(), [&note, i] { note(i); }, SessionId(7))
                    .ok());
  }
  ASSERT_TRUE(queue
                  .Submit(
                      NewStop(), [&] { other_ran.set_value(); }, SessionId(8))
                  .ok());
  EXPECT_EQ(other_ran.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  release.set_value();
  const auto have_all_run = [&] {
    const MutexLock lock(mutex);
    return order.size() == 6;
  };
  while (!have_all_run()) std::this_thread::yield();
  const MutexLock lock(mutex);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5}));
}

TEST(GenerationQueueTest, WhatIsStoppedWhileItWaitsEndsBeforeItsTurn) {
  std::promise<void> started;
  std::promise<void> release;
  std::promise<void> cancelled_ran;
  std::promise<void> late_ran;
  std::atomic<bool> patient_ran{false};
  GenerationQueue queue(1);
  ASSERT_TRUE(queue
                  .Submit(NewStop(),
                          [&] {
                            started.set_value();
                            release.get_future().wait();
                          })
                  .ok());
  started.get_future().wait();
  const std::shared_ptr<StopSignal> cancelled = NewStop();
  ASSERT_TRUE(queue.Submit(NewStop(), [&] { patient_ran = true; }).ok());
  ASSERT_TRUE(queue.Submit(cancelled, [&] { cancelled_ran.set_value(); }).ok());
  ASSERT_TRUE(queue
                  .Submit(std::make_shared<StopSignal>(StopSignal::Clock::now()),
                          [&] { late_ran.set_value(); })
                  .ok());
  cancelled->Cancel();
  const auto ran = [](std::promise<void>& promise) {
    return promise.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  };
  EXPECT_TRUE(ran(cancelled_ran));
  EXPECT_TRUE(ran(late_ran));
  EXPECT_FALSE(patient_ran);
  release.set_value();
  EXPECT_TRUE(queue.Stop(std::chrono::minutes(10)));
  EXPECT_TRUE(patient_ran);
}

TEST(GenerationQueueTest, StopCancelsWhatRunsAndWaits) {
  auto running = NewStop();
  auto waiting = NewStop();
  std::promise<void> started;
  bool waiting_ran = false;
  GenerationQueue queue(1);
  ASSERT_TRUE(queue
                  .Submit(running,
                          [&] {
                            started.set_value();
                            while (!running->cancelled()) std::this_thread::yield();
                          })
                  .ok());
  ASSERT_TRUE(queue.Submit(waiting, [&] { waiting_ran = true; }).ok());
  started.get_future().wait();
  EXPECT_TRUE(queue.Stop(std::chrono::minutes(10)));
  EXPECT_TRUE(waiting->cancelled());
  EXPECT_TRUE(waiting_ran);
  EXPECT_EQ(queue.Submit(NewStop(), [] {}).code(), absl::StatusCode::kUnavailable);
}

TEST(GenerationQueueTest, StopTellsWhenAJobDoesNotEnd) {
  std::promise<void> release;
  GenerationQueue queue(1);
  ASSERT_TRUE(queue.Submit(NewStop(), [&] { release.get_future().wait(); }).ok());
  EXPECT_FALSE(queue.Stop(std::chrono::milliseconds(20)));
  release.set_value();
  EXPECT_TRUE(queue.Stop(std::chrono::minutes(10)));
}

}  // namespace
}  // namespace cairn::compute
