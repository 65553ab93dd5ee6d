#include "compute-node/kernels/thread_pool.h"

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(ThreadPoolTest, EveryIndexRunsOnceInEveryLoop) {
  for (const int thread_count : {1, 2, 5}) {
    ThreadPool pool(thread_count);
    EXPECT_EQ(pool.thread_count(), thread_count);
    for (int loop = 0; loop < 2000; ++loop) {
      const int count = loop % 40;
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      pool.ParallelFor(
          count, [&](std::int64_t index) { runs[static_cast<std::size_t>(index)].fetch_add(1); });
      for (const std::atomic<int>& run : runs) {
        ASSERT_EQ(run.load(), 1) << "loop " << loop;
      }
    }
  }
}

TEST(ThreadPoolTest, LoopsOfSeveralCallersDoNotMix) {
  ThreadPool pool(3);
  std::array<std::thread, 4> callers;
  std::atomic<int> wrong{0};
  for (std::thread& caller : callers) {
    caller = std::thread([&] {
      for (int loop = 0; loop < 300; ++loop) {
        std::atomic<std::int64_t> sum{0};
        pool.ParallelFor(50, [&](std::int64_t index) { sum.fetch_add(index); });
        wrong += sum.load() == 1225 ? 0 : 1;
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  EXPECT_EQ(wrong.load(), 0);
}

TEST(ThreadPoolTest, StopsWithoutHavingRun) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(4);
  }
}

}  // namespace
}  // namespace cairn
