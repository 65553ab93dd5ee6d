#include "compute-node/service/event_queue.h"

#include <thread>

#include <gtest/gtest.h>

namespace cairn::compute {
namespace {

v1::GenerateEvent Event(std::int32_t id) {
  v1::GenerateEvent event;
  event.mutable_token()->set_id(id);
  return event;
}

TEST(EventQueueTest, GivesEventsInOrderAndThenIsDone) {
  const StopSignal never;
  EventQueue queue;
  EXPECT_TRUE(queue.Push(Event(1), never).ok());
  EXPECT_TRUE(queue.Push(Event(2), never).ok());
  queue.Close();
  EXPECT_FALSE(queue.done());
  EXPECT_EQ(queue.Pop(std::chrono::seconds(1))->token().id(), 1);
  EXPECT_EQ(queue.Pop(std::chrono::seconds(1))->token().id(), 2);
  EXPECT_TRUE(queue.done());
  EXPECT_FALSE(queue.Pop(std::chrono::seconds(1)).has_value());
}

TEST(EventQueueTest, EmptyQueueAnswersWhenTheTimeIsUp) {
  EventQueue queue;
  EXPECT_FALSE(queue.Pop(std::chrono::milliseconds(1)).has_value());
  EXPECT_FALSE(queue.done());
}

TEST(EventQueueTest, FullQueueWaitsForItsReader) {
  const StopSignal never;
  EventQueue queue;
  std::thread producer([&] {
    for (int i = 0; i < 3 * kEventsMax; ++i) EXPECT_TRUE(queue.Push(Event(i), never).ok());
    queue.Close();
  });
  int expected = 0;
  while (!queue.done()) {
    const std::optional<v1::GenerateEvent> event = queue.Pop(std::chrono::seconds(5));
    if (event.has_value()) {
      EXPECT_EQ(event->token().id(), expected++);
    }
  }
  EXPECT_EQ(expected, 3 * kEventsMax);
  producer.join();
}

TEST(EventQueueTest, StopEndsTheWaitForAClientThatDoesNotRead) {
  EventQueue queue;
  const StopSignal never;
  for (int i = 0; i < kEventsMax; ++i) ASSERT_TRUE(queue.Push(Event(i), never).ok());
  StopSignal stop;
  stop.Cancel();
  EXPECT_EQ(queue.Push(Event(0), stop).code(), absl::StatusCode::kCancelled);
}

TEST(EventQueueTest, AClientThatReadsNothingIsToldThoughThereIsRoom) {
  const StopSignal never;
  EventQueue queue(std::chrono::milliseconds(0));
  absl::Status status;
  int pushed = 0;
  for (; status.ok() && pushed <= kEventsMax; ++pushed) status = queue.Push(Event(pushed), never);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_LT(pushed, kEventsMax);
  // What has been taken by then counts.
  while (queue.Pop(std::chrono::milliseconds(0)).has_value()) {
  }
  EXPECT_TRUE(queue.Push(Event(0), never).ok());
}

TEST(EventQueueTest, AReaderThatSeesForItselfIsWaitedFor) {
  StopSignal stop;
  EventQueue queue(std::chrono::milliseconds(0));
  queue.TrustReader();
  for (int i = 0; i < kEventsMax; ++i) ASSERT_TRUE(queue.Push(Event(i), stop).ok()) << i;
  stop.Cancel();
  EXPECT_EQ(queue.Push(Event(0), stop).code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace cairn::compute
