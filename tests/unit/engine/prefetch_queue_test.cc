#include "kv-node/engine/fetch/prefetch_queue.h"

#include <gtest/gtest.h>

namespace cairn::kv {
namespace {

TEST(PrefetchQueueTest, HoldsSoManyBytesAndSoManyParts) {
  PrefetchQueue queue;
  QueuedPrefetch prefetch;
  prefetch.bytes = kPrefetchQueueBytesMax / 2;
  EXPECT_TRUE(queue.Add(prefetch));
  EXPECT_TRUE(queue.Add(prefetch));
  prefetch.bytes = kPageBytes;
  EXPECT_FALSE(queue.Add(prefetch));
  EXPECT_EQ(queue.Clear(), 2);
  for (std::int64_t i = 0; i < kPrefetchQueueCountMax; ++i) EXPECT_TRUE(queue.Add(prefetch));
  EXPECT_FALSE(queue.Add(prefetch));
  EXPECT_EQ(queue.bytes(), kPrefetchQueueCountMax * kPageBytes);
}

TEST(PrefetchQueueTest, CancelTakesOutOneRequestsPartsOnly) {
  PrefetchQueue queue;
  for (const std::int64_t request : {0, 1, 2, 1, 0}) {
    QueuedPrefetch prefetch;
    prefetch.request_id = RequestId(request);
    prefetch.staged = request == 0;
    prefetch.bytes = kPageBytes;
    EXPECT_TRUE(queue.Add(prefetch));
  }
  queue.Cancel(RequestId(0));
  EXPECT_EQ(queue.bytes(), 5 * kPageBytes);
  queue.Cancel(RequestId(1));
  EXPECT_EQ(queue.bytes(), 3 * kPageBytes);
  queue.DropStaged();
  EXPECT_EQ(queue.bytes(), kPageBytes);
  EXPECT_EQ(queue.front().request_id, RequestId(2));
  queue.PopFront();
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.bytes(), 0);
}

}  // namespace
}  // namespace cairn::kv
